"""``verify`` as a whole: everything passes on the real code, and each kind of sabotage fails where it should."""

import json
from dataclasses import replace

import pytest
import torch

from dppo.errors import ConfigError
from dppo.methods import CPPO, DAPO_LOSS, DPPO, DPPO_THRESHOLD
from dppo.objective import BATCH_SCALED
from dppo.pruning import DESIGNS, PIVOTAL, inverse_probability
from dppo.trl import DPPOTrainer
from dppo.verification import checks
from dppo.verification.checks import (
    LEGEND,
    Settings,
    at_level,
    control_checks,
    draw_checks,
    enumeration_checks,
    frequency_checks,
    parity_checks,
)
from dppo.verification.parity import tiny_script
from dppo.verification.records import Check, Report, above, at_most
from dppo.verification.subject import Sampling, frozen_subject, random_rewards
from dppo.verification.verify import verify

QUICK = Settings(draws=200, table_draws=20)


@pytest.fixture(scope="module")
def report(subject):
    told = []
    report = verify(subject, [DPPO], settings=QUICK, progress=told.append)
    assert len(told) == 7
    return report


def test_the_real_code_passes_every_check(report):
    assert [check for check in report.checks if not check.passed] == []
    assert report.passed
    assert {check.name[0] for check in report.checks} == set("12345")
    assert [check.name[0] for check in report.checks] == sorted(check.name[0] for check in report.checks)
    assert {check.what.split(" +-")[0] for check in report.checks} == {*LEGEND, "draws"}
    for check in report.checks:
        assert check.passed == (check.figure > check.bound if "control" in check.name else check.figure <= check.bound)


def test_the_report_is_json(report):
    saved = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert set(saved) == {"subject", "passed", "checks", "variance", "failure_rate", "environment", "seconds"}
    assert set(saved["checks"][0]) == {"name", "figure", "bound", "passed", "what"}
    assert {"torch", "trl", "dppo"} <= set(saved["environment"]["versions"])
    assert len(saved["variance"]) == len(report.variance) > 30


def test_the_report_says_that_and_why_training_is_padded(subject, report, monkeypatch):
    assert "padded" not in report.subject
    monkeypatch.setattr("dppo.verification.verify.padded_because", lambda model: "it has sinks")
    for part in ("enumeration", "draw", "parity", "row", "frequency", "control"):
        monkeypatch.setattr(f"dppo.verification.verify.{part}_checks", lambda *_: [])
    found = verify(subject, [DPPO], settings=QUICK)
    assert found.subject == f"{report.subject} Its training is padded, without dense rows: it has sinks."


def test_figures_that_are_not_numbers_fail_and_are_still_json():
    for check in (
        at_most("c", float("nan"), 1.0, "x"),
        above("c", float("nan"), 1.0, "x"),
        at_most("c", 2.0, 1.0, "x"),
    ):
        assert not check.passed and check.verdict == "FAIL"
    report = Report(
        subject="",
        checks=(at_most("c", float("inf"), 1, ""),),
        variance=(),
        failure_rate=0.1,
        environment={},
        seconds=1,
    )
    assert json.loads(json.dumps(report.as_json(), allow_nan=False))["checks"][0]["figure"] == "inf"
    assert not report.passed
    assert above("c", 2.0, 1.0, "x") == Check(name="c", figure=2.0, bound=1.0, passed=True, what="x")


def _doubled(keep_N, prob_N):
    return 2 * inverse_probability(keep_N, prob_N)


SABOTAGED = {
    "weights doubled": replace(
        DPPO,
        completions=replace(DPPO.completions, weighting=_doubled),
        prompts=replace(DPPO.prompts, weighting=_doubled),
    ),
    "another draw": replace(
        DPPO,
        completions=replace(
            DPPO.completions,
            design=replace(PIVOTAL, draw=lambda prob, score, rng: PIVOTAL.draw(prob.square(), score, rng)),
        ),
    ),
}


@pytest.mark.parametrize("name", SABOTAGED)
def test_a_sabotaged_method_fails_where_it_is_broken(subject, name):
    method = SABOTAGED[name]
    failed = {
        check.name.split(",")[0]
        for check in (*enumeration_checks([method]), *draw_checks(subject, [method], QUICK))
        if not check.passed
    }
    prompts = {"2 prompts"} if name == "weights doubled" else set()
    assert failed == {"1 completions", "2 both levels"} | prompts


def test_a_method_that_says_it_is_biased_fails_too(subject):
    found = [*enumeration_checks([CPPO]), *draw_checks(subject, [CPPO], QUICK)]
    assert [check.passed for check in found if check.name.startswith("1")] == [False, False]


def test_a_design_that_breaks_its_promise_fails(subject, monkeypatch):
    fewer = replace(PIVOTAL, draw=lambda prob, score, rng: PIVOTAL.draw(prob * 0.8, score, rng))
    monkeypatch.setitem(DESIGNS, "pivotal", fewer)
    found = list(frequency_checks(subject, DPPO, QUICK, 1))
    assert [check.name[2:9] for check in found if not check.passed] == ["pivotal", "designs", "pivotal"]


def test_a_broken_trainer_fails(monkeypatch):
    class Halved(DPPOTrainer):
        def _build_window(self, output):
            window = super()._build_window(output)
            return replace(window, advantage_B=window.advantage_B / 2)

    class Unweighted(DPPOTrainer):
        def _micro_batch_loss(self, model, batch, draw, means):
            return super()._micro_batch_loss(model, replace(batch, weight=batch.weight.sign()), draw, means)

    script = tiny_script(prompts=2)
    monkeypatch.setattr(checks, "LOSSES", {name: checks.LOSSES[name] for name in ("grpo", "dr_grpo")})
    for trainer, expected in ((Halved, "3 nothing"), (Unweighted, "3 half pruned")):
        monkeypatch.setattr(checks, "DPPOTrainer", trainer)
        failed = [check.name for check in parity_checks(script) if not check.passed]
        assert len(failed) == 2 and all(name.startswith(expected) for name in failed)


def test_a_blind_verification_fails_its_controls(subject, monkeypatch):
    """If what is wrong were not found out, nothing that passes would mean anything."""
    monkeypatch.setattr(checks, "wrong_methods", lambda method: {"not wrong at all": at_level(method, "completions")})
    assert [check.passed for check in control_checks(subject, DPPO, QUICK, 1)] == [False, False]


@pytest.mark.parametrize(
    "method",
    [DPPO.with_rates(completion=0.05), DAPO_LOSS.with_rates(prompt=0.5, completion=0.5), CPPO],
    ids=["low rate", "token normaliser", "biased itself"],
)
def test_controls_are_found_out_whatever_the_method(subject, method):
    assert all(check.passed for check in control_checks(subject, method, QUICK, 1))


def test_levels_keep_a_methods_own_rates_and_fill_in_the_usual_one():
    own = DPPO.with_rates(prompt=0.3, completion=0.7)
    rates = {
        level: (at_level(own, level).prompts.rate, at_level(own, level).completions.rate) for level in checks.CLAIMS
    }
    assert rates == {"completions": (0, 0.7), "prompts": (0.3, 0), "both levels": (0.3, 0.7)}
    nothing = DPPO_THRESHOLD.with_rates(prompt=0.0, completion=0.0)
    assert at_level(nothing, "both levels").prompts.rate == at_level(nothing, "both levels").completions.rate == 0.5


def test_what_is_exact_without_prompt_pruning_only_is_replaced_only_there():
    method = replace(DAPO_LOSS, advantages=BATCH_SCALED)
    assert at_level(method, "completions").normaliser.name == "dapo"
    assert at_level(method, "prompts").unbiased
    pruned = method.with_rates(prompt=0.5)
    assert at_level(pruned, "prompts").normaliser.name == "dapo"
    assert not next(c for c in enumeration_checks([pruned]) if c.name.startswith("2")).passed


def test_the_failure_rate_is_shared_out():
    assert Settings(failure_rate=1e-4).share(2) == pytest.approx(1e-4 / 9)


def test_a_subject_without_rewards_says_that_they_are_random(subject):
    assert "drawn at random" in subject.describe()
    assert subject.reward_PG.std(1).gt(0).sum() >= 4
    shape = subject.reward_PG[:, None].expand(-1, 2, -1).shape
    assert random_rewards(shape, 0).equal(random_rewards(shape, 0))
    assert not random_rewards(shape, 0).equal(random_rewards(shape, 1))


def test_a_subject_keeps_real_rewards_and_needs_two_of_everything(subject):
    again = frozen_subject(
        subject.model,
        subject.tokenizer,
        list(subject.prompt_tokens),
        lambda prompt, tokens: torch.tensor([float(sum(row) % 2) for row in tokens]),
        sampling=Sampling(generations=4, max_new_tokens=10),
        title="parity",
    )
    assert again.notes == ()
    assert again.completion_tokens == subject.completion_tokens, "the same seed"
    expected = [float(sum(row) % 2) for row in again.completion_tokens]
    assert again.reward_PG.flatten().tolist() == expected
    with pytest.raises(ConfigError, match="at least 2"):
        frozen_subject(
            subject.model, subject.tokenizer, [[1, 2]], lambda *_: torch.zeros(16), sampling=Sampling(), title="one"
        )
