"""Prompt rates that are chosen: from what prompts gave when they came back, and left off where nothing is to be had.

That a resumed run chooses the same is among the runs of ``test_step_prompts``.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pages import ROOT, blocks
from refusals import refused
from test_step_prompts import AUTO, DPPO, GROUP, same, source, taught

from dppo.errors import CheckpointError
from dppo.evidence import Evidence
from dppo.methods import METHODS
from dppo.objective import Tokens
from dppo.pruning import COMPLETION_AUTO, Auto, PromptHistory, PromptStream, Pruning, advantage_with_length
from dppo.rng import step_streams
from dppo.step import PromptSource, RolledOut, micro_batch_loss, plan_step
from dppo.types import Rewards


def test_auto_starts_unpruned_and_prunes_once_prompts_have_come_back():
    run = source(AUTO, prompts=8)
    steps = taught(run, 24)
    assert all(prompts.kept_share == 1 for prompts in steps[:4]), "an epoch of three steps, and a step of visits"
    pruned = [prompts for prompts in steps[4:] if prompts.kept_share < 1]
    assert len(pruned) > 10 and len(run.visits) > 8
    for prompts in pruned:
        assert torch.equal(prompts.weight_Q, 1 / prompts.prob_Q) and prompts.sequences == 8 * GROUP
    assert AUTO.prompts.choice(run.visits).rate > 0
    assert run.figures["prune/prompt_ceiling"] == pytest.approx(1.5, abs=0.1)  # a third is silent, visit after visit
    flat_P, keep_P = (torch.cat(list(each)) for each in zip(
        *((prompts.candidates.row_P % 3 == 0, prompts.draw.keep_N) for prompts in pruned), strict=True
    ))  # fmt: skip
    assert keep_P[flat_P].double().mean() < 0.5 < 0.85 < keep_P[~flat_P].double().mean()


def test_a_run_that_forgot_what_prompts_gave_would_be_seen(tmp_path):
    """The wrong twin: history and place are there, and the evidence that auto chose from is not."""
    whole, first, second = (source(AUTO, prompts=8) for _ in range(3))
    steps = taught(whole, 14)
    taught(first, 9)
    position = first.save(tmp_path)
    assert len(position["visits"]["found_N"]) > 8
    second.load(tmp_path, position | {"visits": Evidence.none().saved()})
    assert not all(same(a, b) for a, b in zip(taught(second, 5, first=9), steps[9:], strict=True))
    with refused(CheckpointError, "damaged"):
        second.load(tmp_path, position | {"visits": {"found_N": "x"}})
    with refused(CheckpointError, "damaged"):
        second.load(tmp_path, {name: value for name, value in position.items() if name != "visits"})


SCORED = Pruning(rate=0.8, floor=0.1, auto=Auto(fewest=16), score=advantage_with_length)
OWN_RATE = replace(DPPO, completions=SCORED)


def stepped(run, step, *, mixed):
    """A step in which the first so many groups have a gradient, that of one completion in three a large one."""
    prompts = run.block(step, generations=GROUP)
    reward_QG = torch.zeros(len(prompts.row_Q), GROUP)
    reward_QG[:mixed, 0] = 1.0
    tokens_N = torch.tensor([400, 1, 1] * len(prompts.row_Q))
    rolled_out = RolledOut(rewards=Rewards.of_groups(reward_QG), tokens_N=tokens_N)
    plan = plan_step(OWN_RATE, rolled_out, prompts, streams=step_streams(0, step), max_tokens=400)
    run.learn(plan, step)
    return int(plan.completions.live_N.sum() - (plan.weight_UN > 0).sum()), plan


def test_completions_of_a_step_with_little_to_teach_are_pruned_by_what_earlier_steps_showed(tmp_path):
    run = source(OWN_RATE, prompts=8)
    assert stepped(run, 0, mixed=2)[0] == 0, "six completions are too few to choose from"
    dropped = [stepped(run, step, mixed=8)[0] for step in range(1, 4)]
    assert all(dropped) and len(run.completions) > 60
    position, again, forgetful = run.save(tmp_path), source(OWN_RATE, prompts=8), source(OWN_RATE, prompts=8)
    few, plan = stepped(run, 4, mixed=2)
    assert few > 0 and not plan.weight_UN[0, 6:].any()
    again.load(tmp_path, position)
    assert torch.equal(stepped(again, 4, mixed=2)[1].weight_UN, plan.weight_UN)
    position["completions"] = Evidence.none().saved()
    forgetful.load(tmp_path, position)
    assert stepped(forgetful, 4, mixed=2)[0] == 0, "the wrong twin looks at one step alone"


def steps_that_prune(code):
    """Of 40 steps with the code of docs/how_it_works.md, those in which ``auto`` drops completions with a gradient.

    Three prompts a step, of which some are never solved: a step alone seldom has enough to choose a rate from.
    """
    completions = replace(METHODS["dppo"].completions, rate=0.8, auto=COMPLETION_AUTO)
    method, found = replace(METHODS["dppo"], completions=completions), 0
    run = PromptSource(PromptStream(64, 0), PromptHistory(np.arange(64, dtype=np.uint64)), prompts=3)
    names = {"source": run, "method": method, "seed": 0, "replace": replace, "RolledOut": RolledOut}
    names |= {"plan_step": plan_step, "step_streams": step_streams, "micro_batch_loss": micro_batch_loss}

    def forward(kept, advantage_B):
        logp_BT = torch.zeros(len(kept), 1, requires_grad=True)
        return Tokens(logp_BT=logp_BT, old_logp_BT=logp_BT.detach(), advantage_B=advantage_B, mask_BT=logp_BT == 0)

    for step in range(40):
        rng = np.random.default_rng(step)

        def roll_out(row_Q, rng=rng):
            right_QG = rng.random((len(row_Q), 8)) < row_Q.numpy()[:, None] % 4 / 4
            return Rewards.of_groups(torch.from_numpy(right_QG)), torch.from_numpy(rng.integers(1, 65, right_QG.size))

        exec(code, names | (made := {"step": step, "roll_out": roll_out, "forward": forward}), made)
        found += len(made["kept"]) < int(made["plan"].completions.live_N.sum())
    return found


def test_the_method_on_one_screen_remembers_what_auto_chooses_from():
    (heart,) = [block for block in blocks(ROOT / "docs" / "how_it_works.md", "python") if "plan_step" in block]
    assert steps_that_prune(heart) > 25
    forgetful = heart.replace("source.learn(plan, step)", "source.learn(replace(plan, evidence=None), step)")
    assert forgetful != heart and steps_that_prune(forgetful) < 15, "the wrong twin looks at one step alone"
