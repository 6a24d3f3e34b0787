"""Two processes over gloo: the gradient is TRL's, and ranks with different numbers of kept rows stay in step."""

import json

import pytest
import tiny_runs
import torch
from safetensors.torch import load_file
from sft_two_ranks import RESUMED, RUNS, on_rows
from tiny_runs import GENERATIONS, logged, relative_difference, two_processes
from trl_gradients import TOLERANCE, dppo_run
from trl_recorder_runs import lines, run_file

from dppo.trl.grpo.rollouts import gathered_order


def part_of_script(part):
    """A fixture with the folder of what a part of ``two_ranks.py`` wrote, and its results."""

    @pytest.fixture(scope="module")
    def ran(tiny_path, tmp_path_factory):
        folder = tmp_path_factory.mktemp(part)
        two_processes("two_ranks.py", tiny_path, str(folder), part)
        return folder, json.loads((folder / f"{part}.json").read_text())

    return ran


often, further = part_of_script("often"), part_of_script("further")


def series(found, name):
    """A figure wherever a run logged it."""
    return [row[name] for row in found["logged"] if name in row]


def of_ranks(folder, name):
    """Gradients of each step, by rank."""
    return [torch.load(folder / f"{name} rank {rank}.pt") for rank in range(2)]


def as_alone(folder, name, path, tmp_path, **options):
    """Largest distance of each rank's gradients from those of one process, and its trainer."""
    alone, trainer = dppo_run(path, tmp_path, **options)
    pairs = [zip(steps, alone, strict=True) for steps in of_ranks(folder, name)]
    assert len(alone) > 1
    return [max(relative_difference(*pair) for pair in each) for each in pairs], trainer


def test_two_ranks(often):
    _, found = often
    assert found["dapo"] < 1e-5 and found["grpo"] < 1e-5
    assert found["pruned"]["apart"] == 0.0 and found["no rows"]["steps"] == 2
    assert series(found["pruned"], "prune/kept_share")[0] > 0


@pytest.mark.slow
def test_what_ranks_decide_together(further):
    _, found = further
    assert found["high entropies"] < 1e-5, "a threshold is over the tokens of both"
    odd, auto, uneven, single = (found[name] for name in ("odd", "auto", "uneven groups", "groups of one"))
    assert all(each["apart"] == 0.0 for each in (odd, auto, uneven, single))
    assert series(odd, "prune/prompts_kept_share")[-1] == 4 / 6, "three of six groups are nine rows on two ranks"
    rates = series(auto, "prune/prompt_rate")
    assert rates[:2] == [0.0, 0.0] and min(rates[2:]) > 0
    assert found["auto resumed"]["alike"] and min(found["auto resumed"]["kept"]) < 1
    assert uneven["agreed"] and single["agreed"] and uneven["expected"] and single["expected"], "the same history"
    assert sum(uneven["sizes"]) == 18 and len(set(uneven["sizes"])) > 1, "equal numbers of completions on each"
    assert len(single["rows"]) == 6 and single["sizes"] is None


@pytest.mark.parametrize("dealing", ["over ranks", "at home"])
def test_ranks_with_other_rows_have_the_gradient_of_one_process(dealing, often, tiny_path, tmp_path):
    """Rows of the first rank are dealt to both; left at home, the second has none and runs one pass a step for it."""
    folder, found = often
    first, second = found[dealing]["forwarded"]
    assert all(weights for _, weights in first)
    assert sum(gradient for gradient, _ in first) >= 2 and sum(not gradient for gradient, _ in first) >= 1
    assert all(weights for _, weights in second) if dealing == "over ranks" else second == [[True, False]] * 2
    options = tiny_runs.UNEVEN | {"completion_prune_rate": 0.5}
    assert max(as_alone(folder, dealing, tiny_path, tmp_path, **options)[0]) < TOLERANCE


def test_only_the_last_call_needs_a_pass_on_every_rank(often, tiny_path, tmp_path):
    """The wrong twin has its work in the first calls, in which nothing is synchronized."""
    folder, found = often
    assert found["last calls"]["forwarded"] == [[[True, True]] * 2, [[True, False]] * 2]
    options = tiny_runs.ACCUMULATED | {"per_device_train_batch_size": 2 * GENERATIONS}
    assert max(as_alone(folder, "last calls", tiny_path, tmp_path, **options)[0]) < TOLERANCE
    assert min(as_alone(folder, "first calls", tiny_path, tmp_path, **options)[0]) > 0.1


@pytest.mark.slow
def test_earlier_generations_of_a_step_are_synchronized_by_an_empty_one(further, tiny_path, tmp_path):
    folder, found = further
    assert [each.count([True, False]) for each in found["two generations"]["forwarded"]] == [2, 2]
    assert max(as_alone(folder, "two generations", tiny_path, tmp_path, **tiny_runs.two_generations())[0]) < TOLERANCE


@pytest.mark.slow
def test_what_is_cut_on_two_ranks_is_what_is_cut_on_one(further, tiny_path, tmp_path):
    folder, found = further
    apart, trainer = as_alone(folder, "tokens", tiny_path, tmp_path, **tiny_runs.CUT)
    assert max(apart) < TOLERANCE
    assert series(found["tokens"], "prune/tokens_trained") == logged(trainer, "prune/tokens_trained")
    uncut = tiny_runs.UNEVEN | {"loss_type": "dr_grpo", "completion_prune_rate": 0.0}
    assert min(as_alone(folder, "tokens", tiny_path, tmp_path, **uncut)[0]) > 0.01, "the wrong twin"


@pytest.mark.slow
def test_prompts_drawn_for_each_share_are_the_same_on_two_ranks(further, tiny_path, tmp_path):
    """Dealt completions may differ: every process deals its own."""
    folder, _ = further
    options = tiny_runs.SHARES | {"per_device_train_batch_size": 4 * GENERATIONS}
    assert max(as_alone(folder, "shares", tiny_path, tmp_path, **options)[0]) < 10 * TOLERANCE
    for steps in of_ranks(folder, "shares"):
        assert relative_difference(*steps[-2:]) > 0.1, "steps of one generation"


@pytest.mark.slow
def test_ranks_agree_on_rounds(further, tiny_path, tmp_path):
    """What a step is made of is the same on both ranks, and the same as in one process where rounds are as large."""
    folder, found = further
    for method in (found["dapo"], found["greso"]):
        assert method["apart"] == 0.0 and method["agreed"] and max(series(method, "rollout/rounds")) > 1
        assert len(method["rows"]) % 2 == 0
    options = tiny_runs.ROUNDS | {"method": "dapo", "loss_type": "dapo", "per_device_train_batch_size": 4 * GENERATIONS}
    apart, trainer = as_alone(folder, "dapo", tiny_path, tmp_path, **options)
    rows = trainer.in_use.plan.prompts.row_Q
    order = gathered_order([4] * (len(rows) // 4), 2)
    assert found["dapo"]["rows"] == rows[order].tolist(), "ranks hold whole groups of each round"
    assert max(apart) < TOLERANCE


@pytest.mark.slow
def test_two_ranks_write_one_record(further):
    """Counts of both ranks, files of the first."""
    (folder, _), rolled_out = further, {}
    for name in ("dppo", "trl"):
        seen = [json.loads((folder / f"{name}_{rank}.json").read_text()) for rank in range(2)]
        totals = lines(folder / name, "metrics.jsonl")[-1]
        rolled_out[name] = sum(rank["rollouts"] for rank in seen)
        assert totals["total/rollouts"] == rolled_out[name] > 0
        assert totals["total/rollout_tokens"] == sum(rank["tokens"] for rank in seen)
        assert totals["total/tokens_trained"] == seen[0]["trained"] == seen[1]["trained"] > 0
        assert run_file(folder / name)["environment"]["processes"] == 2
    records = lines(folder / "dppo", "prompts.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3]
    for record in records:
        assert sum(record["rolled_out"]) * 4 <= rolled_out["dppo"]
        assert [len(rewards) > 0 for rewards in record["rewards"]] == record["rolled_out"]


def alone_and_together(kind, folder, path, tmp_path):
    """A run on one process, what two ranks wrote of theirs, and how far apart the weights are."""
    one = on_rows(path, tmp_path, kind, ranks=2)
    one.train()
    weights, mine = load_file(folder / kind / "two.safetensors"), dict(one.model.named_parameters())
    apart = max(float((weights[name] - mine[name].detach()).abs().max()) for name in weights)
    return one, json.loads((folder / kind / "two.json").read_text()), apart


@pytest.mark.parametrize("kind", [kind for kind in RUNS if kind not in RESUMED])
@pytest.mark.slow
def test_what_ranks_do_not_share_trains_as_one_process_does(kind, further, tiny_path, tmp_path):
    """Rows of a stream, and of a router loss, stay with the rank that loaded them."""
    _, two, apart = alone_and_together(kind, further[0], tiny_path, tmp_path)
    assert two["apart"] == 0.0 and apart < 1e-4


@pytest.mark.parametrize(("kind", "of_scores", "of_weights"), [("uneven", 1e-3, 1e-4), ("pairs", 1e-2, 1e-3)])
def test_trainers_on_rows_train_as_one_process_does(kind, of_scores, of_weights, often, tiny_path, tmp_path):
    one, two, apart = alone_and_together(kind, often[0], tiny_path, tmp_path)
    assert two["processes"] == 2 and two["apart"] == 0.0 and two["resumed alike"]
    assert two["scores"] == pytest.approx(one.source.scores.score.tolist(), rel=of_scores) and apart < of_weights
