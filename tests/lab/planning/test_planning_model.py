"""Costs, kinds of prompts and plans: recovered from what they made, and moved by what should move them."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
from planning_worlds import COSTS, MIXED, STEP, planned, timed, workload
from refusals import refused

from dppo.errors import ConfigError
from dppo.lab.planning.costs import PHASES, fitted, free_tokens, with_noise
from dppo.lab.planning.records import Length, Option, Step
from dppo.lab.planning.run_plan import length_of
from dppo.lab.planning.table import findings, pasted
from dppo.lab.planning.work import work_of
from dppo.lab.planning.workload import Shares, pass_rates


def test_costs_are_recovered_from_steps_of_two_sizes_unless_timings_are_noise():
    steps = [timed(8), timed(16)]
    assert asdict(fitted(steps)) == pytest.approx(asdict(COSTS), rel=1e-6)
    assert free_tokens(steps, fitted(steps)) == ()
    alike = fitted([steps[1], steps[1]])
    assert alike.rollout_fixed == 0 and alike.rollout_token > COSTS.rollout_token, "one size cannot tell fixed seconds"
    small, large = steps  # timings in which fewer tokens took longer
    slow = replace(small, rollout=2 * large.rollout)
    costs = fitted([slow, large])
    assert costs.rollout_token == 0 < costs.token
    (warning,) = free_tokens([slow, large], costs)
    assert "rollout" in warning and f"{slow.generated:,.0f}" in warning and "--pilot 64" in warning
    noisy = [replace(slow, update=2 * large.update), large]
    with refused(ConfigError, "noisy", "rollout", "update", f"{large.forwarded:,.0f}", "--pilot 64"):
        free_tokens(noisy, fitted(noisy))


@pytest.mark.parametrize(("rate", "strength", "size"), [(0.5, 0.18, 8), (0.3, 4.0, 4)])
def test_pass_rates_come_back_from_the_mean_and_the_share_of_equal_groups(rate, strength, size):
    rng = np.random.default_rng(0)
    rate_Q = rng.beta(rate * strength, (1 - rate) * strength, size=100_000)
    right_Q = rng.binomial(size, rate_Q)
    equal = np.mean((right_Q == 0) | (right_Q == size))
    shares = Shares.of(right_Q.mean() / size, 0, 1, equal, size)
    found = np.array(pass_rates(shares))
    assert found.mean() == pytest.approx(rate, abs=0.02)
    for other in (2, size):
        expected = np.mean(rate_Q**other + (1 - rate_Q) ** other)
        assert np.mean(found**other + (1 - found) ** other) == pytest.approx(expected, abs=0.02)
    few, many = (np.std([shares.resampled(groups, rng).mean for _ in range(200)]) for groups in (16, 400))
    assert few == pytest.approx(5 * many, rel=0.3), "an interval narrows with the root of the groups"


def test_the_interval_of_a_pilot_is_as_wide_as_its_noise_makes_its_costs():
    """Five steps, seconds off by 5%. The wrong twin resamples the seconds as they are: its interval is a point."""
    rng, true = np.random.default_rng(0), [timed(prompts) for prompts in (4, 2, 2, 4, 4)]

    def seconds(steps):
        return fitted(steps).seconds(work_of(MIXED, STEP, Option(name="exact")), 1).total

    def off(step):
        return replace(step, **{name: getattr(step, name) * (1 + 0.05 * rng.normal()) for name in PHASES})

    found, said, covered = [], [], 0
    for _ in range(60):
        steps = [off(step) for step in true]
        draws = [seconds(with_noise(steps, fitted(steps), rng)) for _ in range(40)]
        found.append(seconds(steps))
        said.append(np.std(draws))
        low, high = np.quantile(draws, (0.025, 0.975))
        covered += low <= seconds(true) <= high
    assert 0.8 < np.mean(said) / np.std(found) < 3 and covered >= 0.85 * 60
    assert with_noise(true, fitted(true), rng)[0].update == pytest.approx(true[0].update), "no noise, none is added"


def test_a_plan_adds_up():
    plan = planned(processes=2)
    rows = {row.option.name: row for row in plan.rows}
    assert rows["TRL"].speedup.value == 1 and rows["TRL"].noise.value == 1
    for row in plan.rows:
        seconds = row.seconds
        assert row.per_step.value == pytest.approx(seconds.rollout + seconds.reward + seconds.update + seconds.rest)
        if not row.option.prompt_rate:
            assert row.equal_hours.value == pytest.approx(row.hours.value * row.noise.value)
    exact, prompts = rows["without zero advantages"], rows["prompts 0.3"]
    assert exact.hours.value == pytest.approx(100 * exact.per_step.value / 3600)
    expected = 20 * exact.per_step.value + 80 * prompts.per_step.value
    assert prompts.hours.value == pytest.approx(expected / 3600), "nothing is pruned in the first epoch"
    expected = 20 * exact.per_step.value * exact.noise.value + 80 * prompts.per_step.value * prompts.noise.value
    assert prompts.equal_hours.value == pytest.approx(expected / 3600), "nor does it add noise there"
    whole = planned().rows[2].seconds
    assert whole.rollout - COSTS.rollout_fixed == pytest.approx(2 * (exact.seconds.rollout - COSTS.rollout_fixed))


def test_what_pays_is_recommended_and_what_cannot_pay_is_said():
    free = replace(COSTS, rollout_token=1e-9, rollout_fixed=0.0, completion=0.0, rest=0.0, update_fixed=0.0)
    _, completions = planned(workload((0.5, 1), (0.97, 9)), free).advice
    assert completions.rate > 0 and completions.gain.value > 1.05, "rare wrong answers weigh more than many right ones"
    plan = planned(costs=replace(COSTS, token=1e-9))
    assert plan.advice[1].rate == 0 and plan.advice[1].gain.value <= 1
    assert any("do not prune completions" in line for line in findings(plan))
    assert pasted(plan)[-1] == "completion_prune_rate: 0"
    once = planned(length=Length(steps=20, first_epoch=20)).advice[0]
    assert once.rate == 0 and "before prompts come back" in once.why
    silent = planned(workload((0.0, 1))).advice
    assert all(each.rate == 0.0 and "differing reward" in each.why for each in silent)


@pytest.mark.parametrize(
    ("prompts", "step", "epochs", "wanted"),
    [
        (7, Step(prompts=2, generations=4), 3, Length(steps=9, first_epoch=3)),
        (7, Step(prompts=2, generations=4, passes=2, shares=2), 2, Length(steps=8, first_epoch=4)),
        (1, Step(prompts=2, generations=4), 1, Length(steps=1, first_epoch=1)),
    ],
)
def test_an_epoch_is_of_whole_generations(prompts, step, epochs, wanted):
    """As many steps as TRL's sampler gives, which leaves out what fills no generation."""
    training = SimpleNamespace(max_steps=-1, num_train_epochs=epochs)
    assert length_of(SimpleNamespace(training=training), step, prompts) == wanted
