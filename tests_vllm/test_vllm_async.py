"""The asynchronous trainer on a vLLM server: TRL's worker in its own process, asked for prompts by row."""

import pytest
from async_training import GROUP, STEPS
from conftest import result, serving


def test_whole_groups_of_the_requested_prompts_come_back_and_are_pruned(untrained, tmp_path):
    with serving(untrained, tmp_path / "server.log") as address:
        run = result("async_training.py", tmp_path, untrained, "--server", address)
    groups, logged, first = run["groups"], run["logged"], run["logged"][0]
    print(groups[:3], {name: first[name] for name in ("ratio", "kl", "sample/staleness_max")})
    assert len(groups) == 4 * STEPS
    assert all(each["completions"] == GROUP and each["prompts"] == 1 for each in groups)
    assert len({each["row"] for each in groups[:12]}) == 12  # an epoch has each prompt once

    # the policy that generated is the one that the trainer is told
    assert first["ratio"] == pytest.approx(1, abs=1e-3) and abs(first["kl"]) < 1e-5
    assert all(row["sample/staleness_max"] <= 1 for row in logged)

    kept = [row["prune/kept_share"] for row in logged]
    print(kept)
    assert min(kept) < 1 and max(row["prune/largest_weight"] for row in logged) > 1
