"""One step, one owner: on the same groups and random numbers, everything that makes weights makes the same ones."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tiny_runs import GENERATIONS, ON_CPU, length_reward
from trl_gradients import gradients

from dppo.context import NOTHING_KNOWN
from dppo.lab.demo.decode import Rollout
from dppo.lab.frozen import sample as frozen
from dppo.rng import step_streams
from dppo.session import Session
from dppo.step import StepPlan
from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.types import Rewards
from dppo.verification.draws import draw, draw_errors, full_batch
from dppo.verification.draws import gradients as of_draws
from dppo.verification.subject import Subject
from examples.engine import Loop


def halves(prompts, completions, **_):
    """A second reward function, so that rules over several have two."""
    return [float(len(text) % 2) for text in completions]


def flat_for_odd_answers(reward):
    """The same reward, but 1 for every completion of every other problem: such groups do not count."""

    def rewards(prompts, completions, answer, **_):
        found = reward(prompts, completions)
        return [1.0 if int(number) % 2 else value for value, number in zip(found, answer, strict=True)]

    return rewards


ROUNDS = dict(accept_bias=True, prompts=32, seed=5, per_device_train_batch_size=4 * GENERATIONS, prompt_prune_rate=0.0)
ROUNDS |= dict(reward=[flat_for_odd_answers(length_reward), flat_for_odd_answers(halves)])
CASES = {
    "dppo": dict(method="dppo", completion_score="length"),
    "by uncertainty": dict(method="dppo", completion_score="uncertainty", loss_type="dr_grpo"),
    "threshold, independent draws": dict(method="dppo_threshold", sampling_design="poisson"),
    "by tokens": dict(method="dppo", completion_budget="tokens", sampling_design="systematic"),
    "cppo": dict(method="cppo", accept_bias=True),
    "pods": dict(method="pods", loss_type="grpo", accept_bias=True),
    "scaled over the batch": dict(method="dppo", loss_type="grpo", scale_rewards="batch"),
    "kl": dict(method="dppo", beta=0.1),
    "dapo": dict(method="dapo", **ROUNDS),
    "greso": dict(method="greso", **ROUNDS),
    "two passes": dict(method="dppo", num_iterations=2, max_steps=4),
}


@pytest.fixture(scope="module", params=CASES)
def trained(request, tiny_path, tmp_path_factory):
    """A run of two generations, the second with pruned prompts: what was handed to the plan, and the plans."""
    plans, options = [], CASES[request.param]
    half = {"completion_prune_rate": 0.5} if options["method"] == "dppo" else {}  # `auto` might drop nothing
    original = DPPOTrainer._plan

    class Remembers(DPPOTrainer):
        def _plan(self, prompts, generated):
            plan = original(self, prompts, generated)
            mask, tokens = generated.completion_mask.cpu(), generated.completion_ids.cpu()
            logp = generated.sampler_logp if generated.sampler_logp is None else generated.sampler_logp.cpu()
            plans.append((plan, Rollout(token_NT=tokens, length_N=mask.sum(1), logp_NT=logp)))
            return plan

    options = dict(reward=[length_reward, halves], max_steps=2, prompt_prune_rate=0.5) | half | options
    _, trainer = gradients(Remembers, DPPOConfig, tiny_path, tmp_path_factory.mktemp("one_step"), **options)
    assert trainer.in_use is not None and 0 < (trainer.in_use.batch.weight_UB[0] > 0).sum() < len(plans[1][1].length_N)
    return trainer, plans


def subject_of(plan: StepPlan, trainer: DPPOTrainer) -> Subject:
    """The candidates of a step as a subject: those that were not rolled out have rewards that nothing may look at."""
    prompts = plan.prompts
    keep_N = prompts.draw.keep_N.repeat_interleave(GENERATIONS)

    def spread(value_R, unknown):
        value_N = torch.full((len(keep_N), *value_R.shape[1:]), unknown, dtype=value_R.dtype)
        value_N[keep_N] = value_R
        return value_N

    rewards = Rewards(
        reward_NF=spread(plan.rewards.reward_NF.double(), 7.0),
        group_N=torch.arange(len(keep_N)) // GENERATIONS,
        weight_F=plan.rewards.weight_F,
    )
    # Of the second generation all prompts are new too, so none is skipped.
    assert trainer.method.rounds is None or (prompts.draw.prob_N == 1).all()
    missing = dict.fromkeys(("model", "tokenizer", "gram_NN"))
    return Subject(
        **missing,
        title="",
        notes=(),
        prompt_tokens=(),
        completion_tokens=tuple([1] * n for n in spread(plan.completions.tokens_N, 1).tolist()),
        rewards=rewards,
        context=NOTHING_KNOWN,
        earlier_rewards=Rewards.of_groups(torch.eye(GENERATIONS)[:1].repeat(len(prompts.draw.keep_N), 1)),
        wanted=trainer.session.source.prompts,
        uncertainty_N=spread(plan.completions.uncertainty_N, 0.0),
        candidates=prompts.candidates,
        earlier_tokens=(),
        max_tokens=trainer.args.max_completion_length,
        temperature=1.0,
    )


@pytest.mark.skipif(not ON_CPU, reason="the demo computes on the CPU, and bits are compared")
@pytest.mark.parametrize("number", [0, 1], ids=["first generation", "pruned prompts"])
def test_the_demo_plans_what_the_trainer_plans(number, trained):
    trainer, plans = trained
    (plan, rollout), args, known = plans[number], trainer.args, plans[number][0].prompts.context
    session = Session(trainer.method, seed=args.seed, generations=GENERATIONS, max_tokens=args.max_completion_length)
    session.number, session.samples, session.others = number, known.samples, known.others
    loop = SimpleNamespace(session=session, live=None)
    mine = Loop._plan(loop, plan.prompts, rollout, replace(plan.rewards), done=0.0)
    assert torch.equal(mine.advantage_N, plan.advantage_N)
    assert torch.equal(mine.weight_UN[0], plan.weight_UN[0])
    assert mine.sizes.denominator == plan.sizes.denominator and torch.equal(mine.signal_Q, plan.signal_Q)


@pytest.mark.parametrize("number", [0, 1], ids=["first generation", "pruned prompts"])
def test_what_is_proved_and_compared_is_what_is_trained(number, trained, monkeypatch):
    trainer, plans = trained
    plan, _ = plans[number]
    subject, seed = subject_of(plan, trainer), trainer.args.seed
    if number and trainer.method.beta:  # what the KL term weighed was learned from an optimizer step
        subject = replace(subject, context=replace(subject.context, others=plan.prompts.context.others))
    streams, keep_N = step_streams(seed, number), plan.prompts.draw.keep_N.repeat_interleave(GENERATIONS)
    expected_N = torch.zeros(len(keep_N), dtype=torch.float64)
    expected_N[keep_N] = plan.weight_UN[0]

    drawn = draw(subject, trainer.method, streams)
    assert torch.equal(drawn.weight_N, expected_N)
    # Where history expects the tokens, a proof on rollouts that stand still takes those of the full batch.
    assert drawn.sizes.denominator == plan.sizes.denominator or plan.prompts.expected_tokens is not None

    error_MN = draw_errors(subject, trainer.method, number + 1, seed)
    error_N = of_draws(subject, trainer.method, [drawn])[0] - full_batch(subject, trainer.method)
    assert torch.equal(error_MN[number], error_N), "dppo verify"

    monkeypatch.setattr(frozen, "generator", lambda seed, purpose: streams(purpose))
    sample = frozen.sample(subject, trainer.method, 2, seed)
    assert torch.equal(sample.weight_MN[0], expected_N), "dppo compare --frozen"
    certain = sample.exact or trainer.method.rounds is not None  # of prompts without a past, none of which is skipped
    assert certain or not torch.equal(sample.weight_MN[1], expected_N)


def test_other_random_numbers_are_seen(trained):
    """The wrong version: a step that draws with the numbers of another one, or ends its rounds with another group."""
    trainer, plans = trained
    subject, method, seed = subject_of(plans[1][0], trainer), trainer.method, trainer.args.seed
    right, wrong = (draw(subject, method, step_streams(seed, step)) for step in (1, 2))
    if method.rounds is not None:
        assert plans[1][0].prompts.collected.counted > 1 and torch.equal(right.weight_N, wrong.weight_N)
        wrong = draw(replace(subject, wanted=subject.wanted - 1), method, step_streams(seed, 1))
    assert not torch.equal(right.weight_N, wrong.weight_N)
