"""The asynchronous trainer on a vLLM server: TRL's worker in its own process, asked for prompts by row."""

import pytest
from async_training import GROUP, STEPS
from conftest import result, serving


@pytest.fixture(scope="module")
def run(untrained, tmp_path_factory):
    """A run of some steps against a server."""
    folder = tmp_path_factory.mktemp("asynchronous")
    with serving(untrained, folder / "server.log") as address:
        return result("async_training.py", folder, untrained, "--server", address)


def test_whole_groups_of_the_requested_prompts_come_back(run):
    print(run["groups"][:3])
    assert len(run["groups"]) == 4 * STEPS
    assert all(each["completions"] == GROUP and each["prompts"] == 1 for each in run["groups"])
    assert len({each["row"] for each in run["groups"][:12]}) == 12  # an epoch has each prompt once


def test_the_policy_that_generated_is_the_one_that_is_told(run):
    first = run["logged"][0]
    print({name: first[name] for name in ("ratio", "kl", "sample/staleness_max")})
    assert first["ratio"] == pytest.approx(1, abs=1e-3) and abs(first["kl"]) < 1e-5
    assert all(row["sample/staleness_max"] <= 1 for row in run["logged"])


def test_completions_are_dropped_and_reweighted(run):
    kept = [row["prune/kept_share"] for row in run["logged"]]
    print(kept)
    assert min(kept) < 1 and max(row["prune/largest_weight"] for row in run["logged"]) > 1
