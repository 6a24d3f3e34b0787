"""``verify`` as a whole: everything passes on the real code, and each kind of sabotage fails where it should."""

from dataclasses import replace

import pytest
from refusals import refused
from trl import GRPOTrainer
from wrong_weights import DOUBLED

from dppo.errors import ConfigError
from dppo.methods import METHODS
from dppo.objective import BATCH_SCALED, CENTRED
from dppo.pruning import DESIGNS, PIVOTAL, Auto, tokens
from dppo.trl import DPPOTrainer
from dppo.verification import checks
from dppo.verification.checks import Check, above, at_most
from dppo.verification.parity import tiny_script
from dppo.verification.verify import described, verify

CPPO, DAPO_LOSS, DPPO = METHODS["cppo"], METHODS["dapo_loss"], METHODS["dppo"]
QUICK, FEW = 200, 8
"""Draws of each check."""
TWO_LOSSES = {name: checks.LOSSES[name] for name in ("grpo", "dr_grpo")}
"""Each of the others is compared with TRL in ``tests/trl/test_trl_contract.py``."""


def failed(found):
    return [check.name for check in found if not check.passed]


def test_the_real_code_passes_every_check(subject, monkeypatch):
    told = []
    monkeypatch.setattr(checks, "LOSSES", TWO_LOSSES)
    report = verify(subject, [DPPO], draws=QUICK, progress=told.append)
    assert len(told) == 6 and failed(report) == []
    numbers = [check.name[0] for check in report]
    assert numbers == sorted(numbers) and set(numbers) == set("12345")
    assert {check.what.split(" +-")[0] for check in report} == {*checks.UNITS, "draws"}
    for check in report:
        assert check.passed == (check.figure > check.bound if "control" in check.name else check.figure <= check.bound)


def test_what_is_padded_and_what_was_not_varied_is_named_and_nothing_is_refused(subject, monkeypatch):
    assert "padded" not in described(subject, [DPPO])
    monkeypatch.setattr("dppo.verification.verify.unsupported", lambda model: "it has sinks")
    found = described(subject, [METHODS["dppo_history_sizes"]])
    assert "it has sinks" in found and "dppo_history_sizes" in found
    with refused(ConfigError, "at least 1", "methods=[METHODS['dppo']]"):
        verify(subject, [])


def test_figures_that_are_not_numbers_fail():
    """Only the variants with a KL term have NaN, and the largest figure of the others is near 0."""
    nan = float("nan")
    for check in (at_most("c", nan, 1.0, "x"), above("c", nan, 1.0, "x"), at_most("c", 2.0, 1.0, "x")):
        assert not check.passed
    assert above("c", 2.0, 1.0, "x") == Check(name="c", figure=2.0, bound=1.0, passed=True, what="x")
    method = replace(DPPO, kl=lambda tokens: tokens.logp_BT * nan)
    assert not any(check.passed for check in checks.enumeration_checks([method]))


DOUBLED_LEVELS = {level: replace(getattr(DPPO, level), weighting=DOUBLED) for level in ("completions", "prompts")}
COMPLETIONS = {"1 completions", "2 both levels"}


@pytest.mark.parametrize(
    ("method", "broken"),
    [(replace(DPPO, **DOUBLED_LEVELS), COMPLETIONS | {"2 prompts"}), (CPPO, COMPLETIONS)],
    ids=["weights doubled", "says that it is biased"],
)
def test_a_sabotaged_or_biased_method_fails_where_it_is_broken(subject, method, broken):
    found = [*checks.enumeration_checks([method]), *checks.draw_checks(subject, [method], QUICK)]
    assert {name.split(",")[0] for name in failed(found)} == broken


def test_a_design_that_breaks_its_promise_fails(subject, monkeypatch):
    fewer = replace(PIVOTAL, draw=lambda prob, score, rng: PIVOTAL.draw(prob * 0.8, score, rng))
    monkeypatch.setitem(DESIGNS, "pivotal", fewer)
    found = failed(checks.frequency_checks(subject, DPPO, QUICK, 1))
    assert [name[2:9] for name in found] == ["pivotal", "designs", "pivotal"]


def test_tokens_that_are_not_drawn_as_stated_fail(monkeypatch):
    assert failed(checks.token_frequency_checks(QUICK, 1)) == []
    monkeypatch.setattr(tokens, "draw_cuts", lambda reach_NT, rng: (reach_NT > rng.random() / 2).sum(1))
    found = [name.split(":")[0] for name in failed(checks.token_frequency_checks(QUICK, 1))]
    assert found == ["4 tokens by cuts", "4 tokens by random prefix", "4 tokens by cuts and head sampling"]


@pytest.mark.slow
def test_a_broken_trainer_fails(monkeypatch):
    class Halved(DPPOTrainer):
        def _plan(self, *args):
            plan = super()._plan(*args)
            return replace(plan, advantage_N=plan.advantage_N / 2)

    class Unweighted(DPPOTrainer):
        def _micro_batch_loss(self, model, batch, *others):
            return super()._micro_batch_loss(model, replace(batch, weight=batch.weight.sign()), *others)

    script, known, one_step = tiny_script(prompts=2), {}, checks.one_step

    def trl_once(trainer, config, script, **options):
        if trainer is not GRPOTrainer:
            return one_step(trainer, config, script, **options)
        return known.get(str(options)) or known.setdefault(str(options), one_step(trainer, config, script, **options))

    monkeypatch.setattr(checks, "one_step", trl_once)
    monkeypatch.setattr(checks, "LOSSES", TWO_LOSSES)
    for trainer, expected in ((Halved, "3 nothing"), (Unweighted, "3 half pruned")):
        monkeypatch.setattr(checks, "DPPOTrainer", trainer)
        found = failed(checks.parity_checks(script))
        assert len(found) == 2 and all(name.startswith(expected) for name in found)


@pytest.mark.parametrize(
    "method",
    [DPPO.with_rates(completion=0.05), DAPO_LOSS.with_rates(prompt=0.5, completion=0.5), CPPO],
    ids=["low rate", "token normaliser", "biased itself"],
)
def test_controls_are_found_out_whatever_the_method(subject, method):
    assert failed(checks.control_checks(subject, method, QUICK, 1)) == []


def test_a_blind_verification_fails_its_controls(subject, monkeypatch):
    monkeypatch.setattr(checks, "wrong_methods", lambda right, *others: {"not wrong at all": right})
    assert len(failed(checks.control_checks(subject, DPPO, QUICK, 1))) == 2
    monkeypatch.setattr(checks, "exact_bias", lambda method: 0.0)
    assert len(failed(checks.round_checks([METHODS["dapo"]]))) == 1


def test_levels_keep_a_methods_own_rates_and_fill_in_the_usual_one():
    def rates(method, level):
        found = checks.at_level(method, level)
        assert found.prompts.auto is None and found.completions.auto is None
        return found.prompts.rate, found.completions.rate

    own = DPPO.with_rates(prompt=0.3, completion=0.7)
    assert rates(own, "completions") == (0, 0.7) and rates(own, "prompts") == (0.3, 0)
    chosen = replace(own, prompts=replace(own.prompts, auto=Auto()), completions=replace(own.completions, auto=Auto()))
    assert rates(own, "both levels") == rates(chosen, "both levels") == (0.3, 0.7), "auto's largest"
    nothing = METHODS["dppo_threshold"].with_rates(prompt=0.0, completion=0.0)
    assert rates(nothing, "both levels") == (0.5, 0.5)


def test_what_is_exact_without_prompt_pruning_only_is_replaced_only_there_and_named(subject):
    """Advantages scaled over the batch are biased under prompt pruning: others are checked in their place."""
    by_batch = replace(METHODS["grpo"], name="by_batch", advantages=BATCH_SCALED)
    names = [check.name for check in checks.enumeration_checks([by_batch, DAPO_LOSS])]
    names += [check.name for check in checks.draw_checks(subject, [by_batch], FEW)]
    replaced = f"by_batch with {CENTRED.name} advantages"
    assert all((replaced in name) == name.startswith("2") for name in names if "by_batch" in name)
    found = list(checks.enumeration_checks([by_batch.with_rates(prompt=0.5)]))
    assert [(check.name.split(":")[0], check.passed) for check in found][1] == ("2 prompts, by_batch", False)


@pytest.mark.parametrize("name", ["dapo", "greso"])
def test_a_method_with_rounds_is_checked_for_what_it_is(subject, name):
    method = METHODS[name].with_rates(completion=0.5)
    exact, rounds = checks.enumeration_checks([method]), checks.round_checks([method, DPPO])
    found = [*exact, *rounds, *checks.draw_checks(subject, [method], QUICK)]
    claims = [check.name.split(":")[0].split(",")[0] for check in found]
    assert claims == ["1 completions", "5 control", "1 completions"] and found[1].figure > 0.1
    assert failed([*found, *checks.control_checks(subject, method, QUICK, 1)]) == []
    assert not any(checks.round_checks([replace(method, rounds=None)]))


@pytest.mark.slow
def test_checks_of_several_methods_have_different_names():
    names = [check.name for check in checks.token_checks([DPPO, METHODS["dppo_threshold"]])]
    assert len(names) == len(set(names))


def test_a_baseline_from_history_passes_and_sizes_that_are_left_out_are_named(subject):
    method = METHODS["dppo_history_sizes"]
    found = [*checks.enumeration_checks([method]), *checks.draw_checks(subject, [method], FEW)]
    assert len(found) == 6 and all(check.passed and "with groups of one size" in check.name for check in found)


def test_the_failure_rate_is_shared_out():
    assert checks.failure_share(2) == pytest.approx(1e-4 / 13)
