"""Draws of tokens on frozen rollouts: every token's gradient is taken once, and a draw is a weighted sum.

There are many gradients, so they are folded to few numbers: norms are right to about 3%. Folding is linear, so it
hides no bias.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dppo.environment import one_thread
from dppo.lab.frozen.sample import Sample, once
from dppo.methods import METHODS, Method
from dppo.pruning import SampledTokens, stated
from dppo.rng import Purpose, generator, torch_generator
from dppo.step import ONCE, drawn
from dppo.verification.draws import full_batch, session_of, step_prompts
from dppo.verification.gradients import log_probs, trained_parameters
from dppo.verification.subject import Subject

COORDINATES = 2**11
"""Numbers that the gradient of a token is folded to."""
AT_ONCE = 2**24
"""Numbers of unfolded gradients in memory at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGradients:
    """The tokens of some of a subject's completions, and the gradient of each log-probability."""

    sampled: SampledTokens
    """(N, T) all completions; those without gradients here have log-probabilities of 0."""
    known_NT: Tensor
    """(N, T) bool, the S tokens with a gradient here."""
    gradient_SK: Tensor
    """(S, K) float64, folded."""


def token_gradients(subject: Subject, needed_N: Tensor) -> TokenGradients:
    """Gradients of the tokens of some completions, (N,) bool."""
    mask_NT = torch.arange(max(map(len, subject.completion_tokens))) < subject.tokens_N[:, None]
    logp_NT, parts = torch.zeros(mask_NT.shape), []
    parameters = trained_parameters(subject.model)
    rng = torch_generator(0, Purpose.CHECK, 4)
    folds = [Fold.made(parameter.numel(), rng) for parameter in parameters]
    with one_thread(subject.model):
        for row in needed_N.nonzero()[:, 0].tolist():
            prompt, tokens = subject.prompt_tokens[row // subject.generations], subject.completion_tokens[row]
            logp_T, gradient_TK = _of_tokens(subject.model, prompt, tokens, subject.temperature, folds)
            logp_NT[row, : len(tokens)] = logp_T
            parts.append(gradient_TK)
    return TokenGradients(
        sampled=SampledTokens(logp_NT=logp_NT, mask_NT=mask_NT),
        known_NT=mask_NT & needed_N[:, None],
        gradient_SK=torch.cat(parts).double(),
    )


@dataclass(frozen=True, slots=True)
class Fold:
    """Cuts a parameter's gradient into pieces and adds them up, every number with a random sign.

    Source: Charikar, Chen, Farach-Colton, Finding frequent items in data streams (2002).
    """

    sign_P: Tensor
    """(P,) int8, 1 or -1."""
    shift: int
    """Shift of the sum: without it, all short parameters would add up at its beginning."""

    @classmethod
    def made(cls, length: int, rng: torch.Generator) -> "Fold":
        """A random fold of gradients of this length."""
        sign_P = torch.randint(2, (length,), generator=rng, dtype=torch.int8).mul(2).sub(1)
        return cls(sign_P, int(torch.randint(COORDINATES, (), generator=rng)))

    def __call__(self, gradient_CP: Tensor) -> Tensor:
        """(C, ``COORDINATES``) of (C, P)."""
        signed_CP = gradient_CP.float().cpu() * self.sign_P
        signed_CP = torch.nn.functional.pad(signed_CP, (0, -signed_CP.shape[1] % COORDINATES))
        return signed_CP.view(len(signed_CP), -1, COORDINATES).sum(1).roll(self.shift, 1)


def _of_tokens(
    model: PreTrainedModel, prompt: list[int], completion: list[int], temperature: float, folds: list[Fold]
) -> tuple[Tensor, Tensor]:
    """(T,) log-probabilities of a completion's tokens, and (T, K) folded gradients of each."""
    parameters = trained_parameters(model)
    logp_T = log_probs(model, prompt, completion, temperature)
    at_once = max(1, AT_ONCE // sum(parameter.numel() for parameter in parameters))
    found = []
    for one_CT in torch.eye(len(logp_T), device=logp_T.device).split(at_once):
        grads = torch.autograd.grad(
            logp_T, parameters, one_CT, retain_graph=True, allow_unused=True, is_grads_batched=True
        )
        folded = (fold(grad.flatten(1)) for fold, grad in zip(folds, grads, strict=True) if grad is not None)
        found.append(torch.stack(list(folded)).sum(0))
    return logp_T.detach().float().cpu(), torch.cat(found)


def at_token_rates(method: Method, rate: float, head_rate: float) -> Method | None:
    """The method with cuts and head at these rates and no other pruning; None if its rule has no such rate."""
    level = method.tokens
    if rate > stated(level.cut_rule).largest_rate:
        return None
    return replace(method.with_rates(completion=0.0), tokens=level.at_rate(rate, head_rate))


def takes_tokens(method: Method) -> tuple[bool, bool]:
    """True if a method cuts completions, and if it withholds tokens from the head: by its own rules, or DPPO's."""
    own = METHODS.get(method.name, method)
    if own.tokens.active:
        return own.tokens.rate > 0, own.tokens.head_rate > 0
    able = own.completions == METHODS["dppo"].completions and method.can_leave_tokens_out
    return able, able


def sample_tokens(subject: Subject, tokens: TokenGradients, method: Method, draws: int, seed: int) -> Sample:
    """Independent draws of the tokens of every completion; the units of the sample are the S tokens."""
    level, known_NT = method.tokens, tokens.known_NT
    method = replace(method, tokens=replace(level, cut_rule=once(level.cut_rule), head_rule=once(level.head_rule)))
    # Every prompt is rolled out, so all draws share one draft. It is planned once, because moments of all tokens take
    # most of the time of a plan.
    prompts = step_prompts(subject, method, lambda purpose, *key: generator(0, purpose))
    draft = session_of(subject, method).plan(prompts, replace(subject.rolled_out(), sampled=tokens.sampled))
    streams = {purpose: generator(seed, purpose) for purpose in (Purpose.COMPLETION_DRAW, Purpose.TOKEN_DRAW)}
    plans = (drawn(draft, ONCE, lambda purpose, *key: streams[purpose]) for _ in range(draws))
    weight_MS = torch.stack([(plan.weight_UN[0][:, None] * plan.token_draws[0].weight_NT)[known_NT] for plan in plans])
    factor_S = full_batch(subject, method)[:, None].expand(known_NT.shape)[known_NT]
    return Sample(
        gradient_MN=weight_MS * factor_S,
        weight_MN=weight_MS,
        full_N=factor_S,
        prompts_kept_M=torch.ones(draws, dtype=torch.float64),
        live=int((factor_S != 0).sum()),
        exact=False,
    )
