"""The checks of ``dppo verify``: each function yields the ``Check`` records of one kind of proof.

A name starts with the number of its claim: 1 completions, 2 prompts and both levels, 3 equality with TRL and of dense
rows with padding, 4 frequencies, 5 controls.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from dppo.methods import ALL_TOKENS, Method
from dppo.objective import CENTRED, DAPO_TOKENS, DR_GRPO, GRPO_MEAN
from dppo.packing.attention import unsupported, unwrapped
from dppo.pruning import DESIGNS, DETERMINISTIC, Pruning, TokenPruning, random_prefix, uniform
from dppo.rng import Purpose, generator
from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.types import Completions
from dppo.verification import parity
from dppo.verification.controls import wrong_cuts, wrong_kernels, wrong_methods
from dppo.verification.draws import deviance, deviance_bound, draw_errors, estimate_bias, full_batch
from dppo.verification.enumerate import outcomes
from dppo.verification.parity import LOSSES, Script, one_step, relative_difference
from dppo.verification.subject import Subject
from dppo.verification.tiny import exact_bias
from dppo.verification.tiny_model import build_model

EXACT = 1e-12
"""Relative error of a sum in float64 over a few hundred outcomes."""
SINGLE = 1e-4
"""Relative difference of two float32 gradients with the same terms in different orders. It is 9e-7 to 4e-6 on the
embedded policy, and more on larger models."""
USUAL_RATE = 0.5
"""Rate at which a level is checked if a run prunes nothing there."""
RANDOM_DESIGNS = [name for name, design in DESIGNS.items() if design.unbiased]
"""Names of the designs that promise their probabilities."""
CLAIMS = {"completions": 1, "prompts": 2, "both levels": 2}
"""Levels of pruning, and the number of their claim."""
TOKEN_LEVELS = {
    "cuts": TokenPruning(rate=USUAL_RATE),
    "random prefix": TokenPruning(rate=USUAL_RATE, cut_rule=random_prefix),
    "head sampling": TokenPruning(head_rate=USUAL_RATE),
    "cuts and head sampling": TokenPruning(rate=0.3, head_rate=0.3),
}
"""Rules of token pruning, checked for every loss that is a sum over single tokens."""
FAILURE_RATE = 1e-4
"""Chance that a build without faults fails any of the checks that draw."""

BIAS, SQUARED, DIFFERENCE = "relative bias", "squared bias", "difference"
NATS, LAYERS, DEVIATION = "nats", "layers", "deviation"
UNITS = (BIAS, SQUARED, DIFFERENCE, NATS, LAYERS, DEVIATION)
"""Units of the numbers; ``dppo verify`` prints the meaning of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A number against a bound."""

    name: str
    figure: float
    bound: float
    passed: bool
    what: str
    """Unit and meaning of the number."""


def at_most(name: str, figure: float, bound: float, what: str) -> Check:
    """A check that passes if ``figure <= bound``; NaN fails."""
    return Check(name=name, figure=figure, bound=bound, passed=bool(figure <= bound), what=what)


def above(name: str, figure: float, bound: float, what: str) -> Check:
    """A control, known to be wrong: it passes if it is found wrong, ``figure > bound``; NaN fails."""
    return Check(name=name, figure=figure, bound=bound, passed=bool(figure > bound), what=what)


def at_level(method: Method, level: str) -> Method:
    """The method as it is checked at one level, the other level unpruned.

    It keeps its own rates, or the largest that ``auto`` may choose; without one it has ``USUAL_RATE``. If the method
    prunes no prompts, a normaliser or advantage that is exact only then is replaced, and groups of different sizes
    become groups of one size; the name has each replacement. Rounds and tokens have their own checks.
    """
    name = method.name + (" with groups of one size" if method.sizes is not None else "")
    method = replace(method.fixed(), name=name, rounds=None, sizes=None, tokens=ALL_TOKENS)
    prompt, completion = method.prompts.rate or USUAL_RATE, method.completions.rate or USUAL_RATE
    if level == "completions":
        return method.with_rates(prompt=0.0, completion=completion)
    if method.prompts.rate == 0:
        exact = {"normaliser": DR_GRPO, "advantages": CENTRED}
        others = {part: rule for part, rule in exact.items() if not getattr(method, part).prompt_exact}
        words = " and ".join(f"{rule.name} {part}" for part, rule in others.items())
        method = replace(method, name=name + f" with {words}" * bool(words), **others)
    return method.with_rates(prompt=prompt, completion=completion if level == "both levels" else 0.0)


def claims_of(methods: Sequence[Method]) -> Iterator[tuple[str, Method]]:
    """First words and checked method of each claim; methods with rounds have one about completions only."""
    for level, number in CLAIMS.items():
        for method in methods:
            if method.rounds is None or level == "completions":
                checked = at_level(method, level)
                yield f"{number} {level}, {checked.name}", checked


def enumeration_checks(methods: Sequence[Method]) -> Iterator[Check]:
    """Expectations over every outcome of both draws, on a policy of a few parameters, in float64."""
    for name, checked in claims_of(methods):
        yield _exact(f"{name}: every outcome", checked)


def _exact(name: str, method: Method) -> Check:
    """A check that the largest exact bias of a method, of its own loss and of others, is rounding; NaN stays NaN."""
    # A mean over tokens is left out where prompts are pruned: it is exact if history expects the true tokens.
    normalisers = (GRPO_MEAN, DR_GRPO) if method.prompts.rate else (GRPO_MEAN, DR_GRPO, DAPO_TOKENS)
    others = [replace(method, normaliser=each, beta=beta) for each in normalisers for beta in (0.0, 0.2)]
    return at_most(name, float(np.max([exact_bias(each) for each in (method, *others)])), EXACT, BIAS)


def token_checks(methods: Sequence[Method]) -> Iterator[Check]:
    """Expectations over every cut, on the policy of a few parameters, and cuts that are known to be biased."""
    for method in methods:
        alone = at_level(method, "completions").with_rates(completion=0.0)
        if method.rounds is not None or alone.needs_all_tokens:  # no run prunes tokens that its loss mixes
            continue
        for name, level in TOKEN_LEVELS.items():
            yield _exact(f"1 tokens, {method.name}, {name}: every outcome", replace(alone, tokens=level))
        for name, level in wrong_cuts(USUAL_RATE).items():
            bias = exact_bias(replace(alone, tokens=level))
            yield above(f"5 control: {name}, {method.name}: every outcome", bias, EXACT, BIAS)


def round_checks(methods: Sequence[Method]) -> Iterator[Check]:
    """The declared bias of rounds, over every outcome, with all completions that have a gradient."""
    for method in (method for method in methods if method.rounds is not None):
        bias = exact_bias(method.with_rates(completion=0.0))
        yield above(f"5 control: declared bias of rounds, {method.name}: every outcome", bias, EXACT, BIAS)


def failure_share(methods: int) -> float:
    """The failure rate of one check: ``FAILURE_RATE`` over the number of checks that draw at random."""
    return FAILURE_RATE / (methods * len(CLAIMS) + len(RANDOM_DESIGNS) + len(TOKEN_LEVELS))


def _measured(subject: Subject, method: Method, draws: int, methods: int) -> tuple[float, float, str]:
    """Squared bias of a method by draws, its bound, and what it is."""
    error_MN = draw_errors(subject, method, draws, 0)
    bias = estimate_bias(error_MN, subject.gram_NN, full_batch(subject, method))
    return bias.squared, bias.bound(failure_share(methods)), f"{SQUARED} +- {bias.standard_error:.1e}"


def draw_checks(subject: Subject, methods: Sequence[Method], draws: int) -> Iterator[Check]:
    """Expectations estimated from many draws, on the subject's own model and completions."""
    for name, checked in claims_of(methods):
        title = f"{name}, {checked.normaliser.name}: {draws} draws on the model"
        yield at_most(title, *_measured(subject, checked, draws, len(methods)))


def parity_checks(script: Script) -> Iterator[Check]:
    """Our trainer with nothing pruned against TRL, and with half pruned against the weighted sum of completions."""
    theirs, ours = {}, {}
    for name, options in LOSSES.items():
        their = theirs[name] = one_step(GRPOTrainer, GRPOConfig, script, **options)
        our = ours[name] = one_step(DPPOTrainer, DPPOConfig, script, completion_prune_rate=0.0, **options)
        losses = abs(our.loss - their.loss) / max(abs(their.loss), 1.0)
        figure = float(np.max([relative_difference(our.gradient, their.gradient), losses]))  # NaN stays
        yield at_most(f"3 nothing pruned, equal to TRL: {name}, on {script.title}", figure, SINGLE, DIFFERENCE)
    for name in ("grpo", "dr_grpo"):
        pruned = one_step(DPPOTrainer, DPPOConfig, script, completion_prune_rate=USUAL_RATE, **LOSSES[name])
        figure = relative_difference(pruned.gradient, parity.weighted_sum_of_completions(pruned))
        title = f"3 half pruned, equal to the weighted sum: {name}, on {script.title}"
        yield at_most(title, figure, SINGLE, DIFFERENCE)
    figure = relative_difference(ours["dr_grpo"].gradient, theirs["grpo"].gradient)
    yield above("5 control: another loss is not equal to TRL's", figure, SINGLE, DIFFERENCE)


def row_checks(subject: Subject) -> Iterator[Check]:
    """Dense rows, and wrong ones as controls, against padding on the subject's own model, in float32."""
    padded = unsupported(unwrapped(subject.model))
    title, model = ("a tiny Qwen3", build_model(0)) if padded else ("the model", subject.model)
    found = parity.rows_against_padding(model, temperature=subject.temperature)
    gradient = math.nan if found.gradient_difference is None else found.gradient_difference
    name = "3 dense rows, equal to padding"
    yield at_most(f"{name}: log-probabilities, on {title}", found.logp_difference, found.logp_tolerance, NATS)
    yield at_most(f"{name}: gradient, on {title}", gradient, found.gradient_tolerance, DIFFERENCE)
    yield at_most(f"3 dense rows, windows that they lack, on {title}", float(found.windows_missing), 0.0, LAYERS)
    for mistake, kernel in wrong_kernels().items():
        found = parity.rows_against_padding(model, temperature=subject.temperature, kernel=kernel)
        yield above(f"5 control: {mistake}, on {title}", found.logp_difference, found.logp_tolerance, NATS)


def frequency_checks(subject: Subject, method: Method, draws: int, methods: int) -> Iterator[Check]:
    """Frequencies of each design's completions of the subject, against the stated probabilities."""
    pruning = at_level(method, "completions").completions
    if not isinstance(pruning, Pruning):  # draws no random numbers, so the designs are checked on their own
        pruning = Pruning(rate=USUAL_RATE, score=method.score)
    completions = subject.completions(method)
    rows = int(completions.live_N.sum())
    bound = deviance_bound(rows, failure_share(methods))
    off_size = 0
    for name in RANDOM_DESIGNS:
        keep_MN, prob_N = _kept(completions, replace(pruning, design=DESIGNS[name]), draws)
        title = f"4 {name}: inclusion of {rows} completions in {draws} draws"
        yield at_most(title, deviance(keep_MN, prob_N), bound, DEVIATION)
        if DESIGNS[name].fixed_size:  # the sum of the probabilities, rounded down or up
            off_size += int(((keep_MN.sum(1) - prob_N.sum()).abs() > 1 - 1e-9).sum())
    yield at_most("4 designs of fixed size: draws of another size", float(off_size), 0.0, "draws")
    few_N = torch.tensor([0.2, 0.5, 0.9, 0.65, 0.75], dtype=torch.float64)
    every = {name: outcomes(DESIGNS[name], few_N) for name in RANDOM_DESIGNS}
    off = [sum((chance * keep_N.double() for keep_N, chance in found), -few_N) / few_N for found in every.values()]
    largest = float(torch.stack(off).abs().max())
    yield at_most(f"4 {', '.join(every)}: every outcome for 5 rows", largest, EXACT, BIAS)
    # With equal probabilities, so that each completion has a probability below 1.
    keep_MN, prob_N = _kept(completions, replace(pruning, rule=uniform, design=DETERMINISTIC), draws)
    yield above("5 control: frequencies of a draw without chance", deviance(keep_MN, prob_N), bound, DEVIATION)


def token_frequency_checks(draws: int, methods: int) -> Iterator[Check]:
    """Frequencies of tokens, drawn by random moments, against the stated probabilities; and a wrong draw."""
    rng = generator(0, Purpose.CHECK)
    count, longest = 8, 12  # completions, and tokens of the longest
    moment_NT = torch.from_numpy(rng.exponential(size=(count, longest)))
    span_NT = torch.arange(longest) < torch.from_numpy(rng.integers(1, longest + 1, count))[:, None]
    bound = deviance_bound(int(span_NT.sum()), failure_share(methods))
    for name, level in TOKEN_LEVELS.items():
        drawn = [level.draw(moment_NT, span_NT, generator(0, Purpose.CHECK, index)) for index in range(draws)]
        keep_MN = torch.stack([draw.weight_NT[span_NT] > 0 for draw in drawn])
        title = f"4 tokens by {name}: {keep_MN.shape[1]} of them in {draws} draws"
        yield at_most(title, deviance(keep_MN, drawn[0].prob_NT[span_NT]), bound, DEVIATION)
    reach_NT, head_NT = TOKEN_LEVELS["cuts and head sampling"].probabilities(moment_NT, span_NT)
    assert head_NT is not None
    least_N, prob_N = torch.minimum(reach_NT, head_NT)[span_NT], (reach_NT * head_NT)[span_NT]
    keep_MN = torch.from_numpy(rng.random((draws, len(prob_N)))) < least_N
    yield above("5 control: cuts and the head drawn by one number", deviance(keep_MN, prob_N), bound, DEVIATION)


def _kept(completions: Completions, pruning: Pruning, draws: int) -> tuple[Tensor, Tensor]:
    """(M, N) bool, kept in each draw, and (N,) their probabilities."""
    drawn = [pruning.draw(completions, generator(0, Purpose.CHECK, index)) for index in range(draws)]
    return torch.stack([draw.keep_N for draw in drawn]), drawn[0].prob_N


def control_checks(subject: Subject, method: Method, draws: int, methods: int) -> Iterator[Check]:
    """Methods that are known to be biased, by a quarter of the draws on the model and by enumeration."""
    prompts = at_level(method.with_rates(prompt=0.0), "prompts")
    for name, control in wrong_methods(at_level(method, "completions"), prompts, USUAL_RATE).items():
        found = _measured(subject, control, draws // 4, methods)
        yield above(f"5 control: {name}: {draws // 4} draws on the model", *found)
        yield above(f"5 control: {name}: every outcome", exact_bias(control), EXACT, BIAS)
