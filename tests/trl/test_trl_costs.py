"""Costs and savings do not depend on gradient accumulation: runs by a clock that only passes and rollouts move."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from cases import parameters
from tiny_runs import GENERATIONS, LOG_ALL, SHORT, length_reward, problems, scripted
from trl_recorder_runs import make

from dppo.costs import MEASURED_GENERATIONS
from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.trl.forwards import ForwardPasses
from dppo.trl.grpo.savings import unpruned_passes
from dppo.trl.metrics import MAIN, OURS
from dppo.types import Work

PROMPTS, ROWS, BUDGET = 8, 24, 24
PASS, TOKEN, ROLLOUT = 0.5, 0.02, 0.05
"""Seconds of a pass, of one of its tokens, and of a generated token."""
NO_GRADIENT = 0.3
"""Share of these that a pass without a gradient takes."""


@dataclass
class Clock:
    """Seconds of what was done since its beginning, by the rule above."""

    seconds: float = 0.0

    def now(self):
        return self.seconds

    def rollouts(self, prompts, trainer):
        output = scripted(prompts, trainer)
        self.seconds += ROLLOUT * sum(map(len, output["completion_ids"]))
        return output


def some_silent(prompts, completions, answer, **_):
    """Rewards that differ within the groups of every third problem alone."""
    rewards = length_reward(prompts, completions)
    return [0.0 if int(number) % 3 else reward for reward, number in zip(rewards, answer, strict=True)]


def none_silent(prompts, completions, **_):
    return [float(place % GENERATIONS) for place in range(len(prompts))]


def made(path, folder, clock, accumulation, *, reward=some_silent, budget=BUDGET, **options):
    """A trainer of 32 completions a step, dealt to so many calls."""
    size = PROMPTS * GENERATIONS // accumulation
    settings = SHORT | LOG_ALL | dict(output_dir=str(folder), max_steps=MEASURED_GENERATIONS + 2, learning_rate=0.0)
    settings |= dict(per_device_train_batch_size=size, gradient_accumulation_steps=accumulation, logging_steps=100)
    settings |= dict(method="grpo", completion_prune_rate=0.0, max_tokens_per_row=budget) | options
    trainer = DPPOTrainer(path, reward, DPPOConfig(**settings), problems(ROWS), rollout_func=clock.rollouts)
    trainer.clock.now = clock.now
    return trainer


def trained(path, folder, monkeypatch, accumulation, *, resume=None, **options):
    """A trainer after its run, and the seconds that its clock has counted."""
    clock, forward = Clock(), ForwardPasses.__call__

    def timed(self, model, batch, **asked):
        clock.seconds += (PASS + TOKEN * batch.tokens) * (1.0 if torch.is_grad_enabled() else NO_GRADIENT)
        return forward(self, model, batch, **asked)

    trainer = made(path, folder, clock, accumulation, **options)
    with monkeypatch.context() as patch:
        patch.setattr(ForwardPasses, "__call__", timed)
        trainer.train(resume_from_checkpoint=resume)
    return trainer, clock.seconds


ACCUMULATIONS = (1, 4, 32)
"""Calls of the loss for 32 completions; most of 32 calls have no row."""
CASES = {
    "silent groups": {},
    "KL term": {"beta": 0.04, "completion_prune_rate": 0.5, "method": "dppo"},
    "two iterations": {"num_iterations": 2, "max_steps": 2 * (MEASURED_GENERATIONS + 2)},
}


@pytest.mark.parametrize("options", parameters(CASES, ("KL term", "two iterations")))
def test_costs_and_what_was_saved_are_the_same_at_every_accumulation(options, tiny_path, tmp_path, monkeypatch):
    """The truth is a run that drops nothing, over the same completions."""
    options = {"prompt_prune_rate": 0.0, **options}
    everything = options | {"method": "grpo", "completion_prune_rate": 0.0, "reward": none_silent}
    _, whole = trained(tiny_path, tmp_path, monkeypatch, 1, **everything)
    costs = []
    for accumulation in ACCUMULATIONS:
        trainer, seconds = trained(tiny_path, tmp_path, monkeypatch, accumulation, **options)
        costs.append(trainer.session.costs.rollout_cost)
        true = 1 - seconds / whole
        assert true > 0.1
        assert trainer.savings.metrics(trainer.session.costs)["saved/share"] == pytest.approx(true, abs=0.05)
    assert max(costs) <= 2 * min(costs), costs


def test_one_sequence_in_a_row_costs_a_pass_for_each(tiny_path, tmp_path, monkeypatch):
    """The default budget at a batch of one: passes grow with what is kept, and what was saved is still the truth."""
    trainer, seconds = trained(tiny_path, tmp_path, monkeypatch, 8, budget=16)
    _, whole = trained(tiny_path, tmp_path, monkeypatch, 8, budget=16, reward=none_silent)
    saved, costs = trainer.savings, trainer.session.costs
    assert saved.metrics(costs)["saved/share"] == pytest.approx(1 - seconds / whole, abs=0.05)
    assert saved.trained.unpruned_passes > 2 * saved.trained.passes > 0
    assert costs.training.growing > 0.7 * costs.training.seconds


def test_passes_are_counted_as_the_model_runs_them(tiny_path, tmp_path):
    """Without a gradient and with one; each adds the tokens that it computes."""
    seen = []

    def hook(module, args, kwargs):
        seen.append((torch.is_grad_enabled(), kwargs["input_ids"].numel()))

    trainer, _ = make(tiny_path, tmp_path, recorded=False, beta=0.1, max_tokens_per_row=30, max_steps=2)
    trainer.forwards.check_once()
    for model in (trainer.model, trainer.ref_model):
        model.register_forward_pre_hook(hook, with_kwargs=True)
    trainer.train()
    for kind, run in zip((False, True), trainer.forwards.run, strict=True):
        tokens = [count for graded, count in seen if graded == kind]
        assert run == Work(passes=len(tokens), tokens=sum(tokens)) and len(tokens) > 2


def test_a_step_that_drops_nothing_is_the_plan_of_an_unpruned_one(tiny_path, tmp_path, monkeypatch):
    trainer, _ = trained(tiny_path, tmp_path, monkeypatch, 1, reward=none_silent, max_steps=2, beta=0.1)
    for found in (trainer.savings.scored, trainer.savings.trained):
        assert found[:2] == found[2:4] and found.passes > 2
    plan, own = trainer.in_use.plan, trainer.in_use.batch
    once = unpruned_passes(trainer.forwards, own, plan, 0)[1][0]
    half = SimpleNamespace(**{name: getattr(plan, name) for name in ("completions", "share_UN", "prompts", "method")})
    half.tokens_U = 2 * plan.tokens_U  # every prompt stands for two
    twice = unpruned_passes(trainer.forwards, own, half, 0)[1][0]
    assert twice.tokens == 2 * once.tokens and 2 * once.passes - 1 <= twice.passes <= 2 * once.passes


def test_a_generation_in_use_brings_its_passes_into_the_checkpoint_and_the_resumed_run_adds_the_rest(
    tiny_path, tmp_path, monkeypatch
):
    """Two optimizer steps of a generation, saved after each: passes and seconds are those of one whole run."""
    options = dict(num_iterations=2, max_steps=4, save_strategy="steps", save_steps=1)
    whole, _ = trained(tiny_path, tmp_path / "a", monkeypatch, 2, **options)
    checkpoint = str(tmp_path / "a" / "checkpoint-3")
    resumed, _ = trained(tiny_path, tmp_path / "b", monkeypatch, 2, resume=checkpoint, **options)
    for name in ("scored", "trained", "generated", "unpruned_tokens", "completions", "prompts"):
        assert getattr(resumed.savings, name) == getattr(whole.savings, name), name
    assert whole.savings.trained.passes < whole.savings.trained.unpruned_passes


def test_calls_without_a_row_cost_no_pass_and_whole_steps_are_counted(tiny_path, tmp_path, monkeypatch):
    """Every look at this clock takes a second: 31 of 32 calls of the loss have no row, and their seconds are TRL's."""
    seconds = iter(range(10**6))
    found = {}
    for accumulation in (1, 32):
        found[accumulation] = trainer = made(tiny_path, tmp_path, Clock(), accumulation, budget=10_000)
        trainer.clock.now = lambda: float(next(seconds))
        trainer.train()
        assert trainer.savings.trained.passes == trainer.args.max_steps
    few, many = (trainer.session.costs.training.seconds for trainer in found.values())
    assert 0 < many <= few, "the wrong twin: 32 calls in each generation, at a second or more"
    longer = found[32].savings.seconds - found[1].savings.seconds
    assert longer > 31 * (MEASURED_GENERATIONS + 2), "the steps themselves took longer"


def test_ten_metrics_of_ours_are_logged_unless_all_are_wanted(tiny_path, tmp_path):
    def names(**options):
        clock = Clock()
        trainer = made(tiny_path, tmp_path, clock, 2, logging_steps=1, method="dppo", **options)
        trainer.train()
        records = [each for each in trainer.state.log_history if "time/rollout" in each]
        assert len(records) == MEASURED_GENERATIONS + 2 and None not in records[-1].values()
        step = sum(value for each in records for name, value in each.items() if name.startswith("time/"))
        assert step == pytest.approx(clock.seconds) and clock.seconds > 0
        return {name for name in records[-1] if name.startswith((*OURS, "saved/"))}

    assert names(log_metrics="main") == MAIN
    assert names() > MAIN - {"time/update"} | {"time/reward", "prune/effective_rows", "rows/tokens"}
