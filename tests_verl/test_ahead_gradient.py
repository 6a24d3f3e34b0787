"""Prompts asked for ahead, whose groups come back mixed: on average over every draw the gradient is that of all."""

import copy
from dataclasses import replace
from itertools import product

import in_process
import pytest
import torch
import transfer_queue
from in_process import PRUNING, STORE, record_gradients, sized, trainer
from late_server import Server
from steps import CUTS, KL, POINTS, OffPolicy, ToldCuts, bias, in_quarters
from test_ahead import APART, COLOCATE, SEPARATE

from dppo.pruning import TokenPruning
from dppo.step.records import drawn_block
from dppo.types import Block, Draw

GENERATIONS = 2
DRAWS = {
    COLOCATE: {(0, 1): 0.5, (0, 2): 0.3, (1, 2): 0.2},
    SEPARATE: {(0, 1): 0.5, (0, 2): 0.3, (1, 3): 0.2},
}
"""The draws of a block of three prompts, or of four that two updates share, and their chances."""
PROMPTS = {COLOCATE: 3, SEPARATE: 4}
SIZES = {COLOCATE: sized(3, GENERATIONS), SEPARATE: (*sized(4, GENERATIONS, mini_batch=2), *APART)}
COMMON = ("data.train_max_samples=8", "trainer.total_training_steps=8")
COMMON += (f"{PRUNING}.completion_prune_rate=0.0", "actor_rollout_ref.actor.loss_scale_factor=12")
COMMON += tuple(f"trainer.v1.{mode.removeprefix('dynamic_pruning_')}.num_warmup_batches=0" for mode in DRAWS)


class Frozen(Server):
    """Completions of a prompt do not depend on the step: the same rollouts for every draw, sampled once."""

    def __init__(self, trainer, policy=None):
        super().__init__(trainer, policy)
        self.known = {}

    def _sessions(self, prompt, text, size):
        uid = prompt["uid"]
        if text not in self.known:
            super()._sessions(prompt, text, size)
            self.known[text] = [STORE["train"][f"{uid}_{session}_0"] for session in range(size)]
        for session, (tag, row) in enumerate(copy.deepcopy(self.known[text])):
            STORE["train"][f"{uid}_{session}_0"] = (tag, row | {"uid": uid})


class Blocks:
    """Two blocks of a trainer whose draws are told; their groups come back mixed, and the policy stays where it is."""

    def __init__(self, toy, mode, *options, **given):
        self.made = trainer(toy, mode, *COMMON, *SIZES[mode], *options, agents=Frozen, **given)
        self.made.timing_raw = {}
        self.made.on_step_begin()
        self.gradients = record_gradients(self.made.actor_rollout_wg.worker)
        self.draws, self.everything = DRAWS[mode], tuple(range(PROMPTS[mode]))
        self.prob_P = torch.tensor(
            [sum(chance for kept, chance in self.draws.items() if place in kept) for place in self.everything],
            dtype=torch.float64,
        )

    def block(self, keep, number):
        """The next prompts of the stream and their draw."""
        row_P = self.made.source.stream.take(len(self.everything))
        keep_P = torch.tensor([place in keep for place in self.everything])
        prob_P = torch.ones_like(self.prob_P) if keep == self.everything else self.prob_P
        draw = Draw(keep_N=keep_P, prob_N=prob_P, weight_N=torch.where(keep_P, 1 / prob_P, 0.0))
        candidates = self.made.source.history.candidates(row_P, number)
        return drawn_block(Block(candidates=candidates, draw=draw), GENERATIONS)

    def gradient(self, *keep_B, weights=None):
        """The sum of the gradients of all updates of the blocks."""
        made, told = self.made, iter(keep_B)
        STORE.clear()
        made.session.in_flight = replace(made.ahead, asked=0, flights=(), due=())
        made.source.stream.load_state_dict({"epoch": 0, "offset": 0})
        made.agent_loop_manager.waiting.clear()
        made.source.block = lambda method, number, **options: self.block(next(told), number)
        for _ in keep_B:
            made._add_batch_to_generate()
        if weights is not None:
            flights = zip(made.ahead.flights, weights(self, made.ahead.flights), strict=True)
            changed = (replace(f, weight=weight) for f, weight in flights)
            made.session.in_flight = replace(made.ahead, flights=tuple(changed))
        for step, update in product(range(len(keep_B)), range(made.parameter_sync_step)):
            made.global_steps, made.local_trigger_step = step + 1, update
            batch = made._step_once({}, {}, 0)
            transfer_queue.kv_clear(batch.keys, batch.partition_id)
        total = sum(each.double() for each in self.gradients)
        assert len(self.gradients) == len(keep_B) * made.parameter_sync_step and not made.ahead.flights
        self.gradients.clear()
        return total

    def mean(self, weights=None):
        """Its mean over every pair of draws of both blocks."""
        pairs = product(self.draws.items(), repeat=2)
        return sum(p * q * self.gradient(one, two, weights=weights) for (one, p), (two, q) in pairs)

    def mean_together(self, weights=None):
        """The same where both blocks have one draw: every group as often, in fewer pairs."""
        return sum(chance * self.gradient(kept, kept, weights=weights) for kept, chance in self.draws.items())


def of_the_step_that_trains(blocks, flights):
    """Wrong: weights by the place in the update that takes a group, in place of those it was asked with."""
    return [1 / float(blocks.prob_P[place % 2]) for place in range(len(flights))]


def forgotten(blocks, flights):
    """Wrong: no weights."""
    return [1.0 for _ in flights]


@pytest.fixture(autouse=True)
def all_groups_have_a_gradient(monkeypatch):
    monkeypatch.setattr(in_process, "compute_score", lambda source, text, truth: sum(map(ord, text)) % 97 / 97)


@pytest.mark.parametrize("mode", DRAWS)
@pytest.mark.parametrize(("aggregation", "terms"), [("seq-mean-token-mean", ()), ("seq-mean-token-sum-norm", KL)])
def test_the_mean_over_every_draw_of_prompts_is_the_gradient_of_all_of_them(toy, mode, aggregation, terms):
    blocks = Blocks(toy, mode, f"actor_rollout_ref.actor.loss_agg_mode={aggregation}", *terms)
    full = blocks.gradient(blocks.everything, blocks.everything)
    back = [text for _, text in blocks.made.agent_loop_manager.back]
    assert back != [f"0+{number}=" for number in range(8)][: len(back)]  # in another order than they were asked for
    wrong = (of_the_step_that_trains, forgotten)
    found = [bias(blocks.mean(), full), *(bias(blocks.mean_together(weights), full) for weights in (None, *wrong))]
    print(mode, aggregation, *terms, *(f"{each:.1e}" for each in found))
    assert max(found[:2]) < 1e-6 and min(found[2:]) > 0.02


@pytest.mark.parametrize(("mode", "aggregation"), [(COLOCATE, "seq-mean-token-mean"), (SEPARATE, "token-sum")])
def test_the_mean_over_every_draw_of_prompts_and_every_cut_is_the_gradient_of_all_tokens(toy, mode, aggregation):
    options = (f"actor_rollout_ref.actor.loss_agg_mode={aggregation}", *KL)
    blocks = Blocks(toy, mode, *options, CUTS, group=OffPolicy)
    made, cut = blocks.made, blocks.made.method

    def over_cuts(weighted=True, weights=None):
        mean = 0.0
        for point in range(POINTS):
            told = ToldCuts(rate=0.6, cut_rule=in_quarters, points=[point], weighted=weighted)
            made.session.method = replace(cut, tokens=told)
            mean = mean + blocks.mean_together(weights) / POINTS
        return mean

    made.session.method = replace(cut, tokens=TokenPruning())
    full = blocks.gradient(blocks.everything, blocks.everything)
    found = [bias(mean, full) for mean in (over_cuts(), over_cuts(weighted=False), over_cuts(weights=forgotten))]
    print(mode, aggregation, *(f"{each:.1e}" for each in found))
    assert found[0] < 2e-6 and min(found[1:]) > 0.02  # float32, summed over the updates of two blocks
    assert not any(STORE[name] for name in STORE if name != "train")
