"""Sessions: rates of completions that earlier steps choose, what outlives a checkpoint, and damage that is refused."""

import json
from dataclasses import replace

import numpy as np
import torch
from arrays import rewards_of
from refusals import refused

from dppo.costs import Passes, Spent
from dppo.errors import CheckpointError, ConfigError
from dppo.files import sealed, unsealed
from dppo.methods import METHODS
from dppo.pruning import Auto, PromptHistory, PromptStream, Pruning, advantage_with_length
from dppo.session import Session
from dppo.step import PromptSource, RolledOut, whole_block

DPPO, GROUP = METHODS["dppo"].with_rates(prompt=0.5), 3
OWN_RATE = replace(DPPO, completions=Pruning(rate=0.8, floor=0.1, auto=Auto(fewest=16), score=advantage_with_length))
SPENT = Spent(generating=3.0, training=1.0, total=4.0, trained=Passes(1, 50, 1, 50, layouts=1))


def session(**options):
    """A run that chooses a rate for completions."""
    prompts = PromptSource(PromptStream(24, 6), PromptHistory(np.arange(24, dtype=np.uint64)), prompts=8)
    return Session(OWN_RATE, prompts, seed=0, generations=GROUP, max_tokens=400, **options)


def stepped(run, *, mixed):
    """A step in which the first so many groups have a gradient, that of one completion in three a large one."""
    prompts = run.prompts()
    rewards = rewards_of(*([[1, 0, 0]] * mixed + [[0, 0, 0]] * 8)[: len(prompts.row_Q)])
    tokens_N = torch.tensor([400, 1, 1] * len(prompts.row_Q))
    plan = run.plan(prompts, RolledOut(rewards=rewards, tokens_N=tokens_N))
    return int(plan.completions.live_N.sum() - (plan.weight_UN > 0).sum()), plan


def test_completions_of_a_step_with_little_to_teach_are_pruned_by_what_earlier_steps_showed(tmp_path):
    run, again, forgetful = session(), session(), session()
    assert stepped(run, mixed=2)[0] == 0, "six completions are too few to choose from"
    dropped = [stepped(run, mixed=8)[0] for _ in range(3)]
    assert all(dropped) and len(run.samples) > 60
    state = json.loads(json.dumps(run.save(tmp_path)))
    few, plan = stepped(run, mixed=2)
    assert few > 0 and not plan.weight_UN[0, 6:].any()
    again.load(tmp_path, state)
    assert torch.equal(stepped(again, mixed=2)[1].weight_UN, plan.weight_UN)
    forgetful.load(tmp_path, sealed(unsealed(state) | {"samples": None}))
    assert stepped(forgetful, mixed=2)[0] == 0, "the wrong twin looks at one step alone"


def test_other_terms_and_costs_outlive_a_checkpoint_and_a_damaged_state_is_refused(tmp_path):
    run, again, given = session(), session(), session(rollout_cost=2.0)
    assert run.observe_terms(2.0, 8.0) == run.observe_terms(0.0, 0.0) == {"prune/other_terms": 0.5}
    for each in (run, given):
        for _ in range(3):
            each.observe_costs(SPENT, 100, 50)
        each.settle_costs()
    assert given.method is OWN_RATE and given.costs.fixed, "a given cost stays"
    assert run.method.completions.auto.rollout_cost == run.costs.rollout_cost != OWN_RATE.completions.auto.rollout_cost
    state = json.loads(json.dumps(run.save(tmp_path)))
    again.load(tmp_path, state)
    assert (again.others, again.costs, again.method, again.number) == (run.others, run.costs, run.method, run.number)
    source, others = state["source"], state["others"]
    for wrong in ({"number": 5}, {"others": others | {"square": 2.5}}, {"source": source | {"epoch": 1}}):
        with refused(CheckpointError, "damaged", "checksum"):
            session().load(tmp_path, state | wrong)
        session().load(tmp_path, sealed(unsealed(state) | wrong))  # the wrong twin, without a checksum, sees nothing
    by_name = {"products": [0.0] * 10, "unpruned": [0.0, 0.0]}  # as the versions before wrote it
    for wrong in ({"costs": {}}, {"costs": state["costs"] | {"training": by_name}}, {"others": {"squares": 1.0}}):
        with refused(CheckpointError, "another version"):
            session().load(tmp_path, sealed(unsealed(state) | wrong))


def test_a_stream_of_data_has_no_prompts_to_choose_from():
    run = Session(DPPO, seed=0, generations=GROUP, max_tokens=9)
    with refused(ConfigError, "dppo.step.whole_block"):
        run.prompts()
    plan = run.plan(whole_block(2, 6), RolledOut(rewards=rewards_of([1, 0, 0], [0, 1, 0]), tokens_N=torch.ones(6)))
    assert len(plan.kept(0)) and run.number == 1 and run.visits is None and run.metrics == {} == dict(run.messages())
