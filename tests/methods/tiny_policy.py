"""A softmax policy small enough to enumerate every selection of its completions, and its exact expected gradients.

Three prompts with three completions each, real autograd in float64, off-policy so that clipping bites. The second
prompt's middle completion has advantage 0. Three prompts, since with two the threshold rule rounds to keeping both.
"""

from dataclasses import dataclass, replace
from itertools import product

import torch

from dppo.objective import weighted_sum
from dppo.rng import Purpose, generator, torch_generator
from dppo.types import Candidates, Completions

P, G, T, V = 3, 3, 4, 5
N = P * G
REWARD_PG = torch.tensor([[1.0, 0.0, 0.3], [0.0, 0.5, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
PARAMETERS = (V + 1) * V + P * V


def normal(key, *shape):
    return torch.randn(*shape, generator=torch_generator(0, Purpose.CHECK, key), dtype=torch.float64)


TOKENS_NT = torch.randint(V, (N, T), generator=torch_generator(0, Purpose.CHECK, 1))
MASK_NT = torch.arange(T)[None] < torch.tensor([4, 2, 3, 1, 4, 3, 2, 4, 3])[:, None]
LENGTH_N = MASK_NT.sum(1)
GROUP_N = torch.arange(N) // G
THETA = normal(2, PARAMETERS)
OLD_THETA = THETA + 0.3 * normal(3, PARAMETERS)
REF_THETA = THETA + 0.5 * normal(4, PARAMETERS)
ONES = torch.ones(N, dtype=torch.float64)


def log_probs(theta, rows):
    """(B, T) log-probabilities of the sampled tokens: logits from the token before, plus a bias per prompt."""
    before_V, prompt = theta[: (V + 1) * V].view(V + 1, V), theta[(V + 1) * V :].view(P, V)
    token_BT = TOKENS_NT[rows]
    previous_BT = torch.cat([torch.full((len(rows), 1), V), token_BT[:, :-1]], 1)
    logits_BTV = before_V[previous_BT] + prompt[GROUP_N[rows]][:, None]
    return logits_BTV.log_softmax(-1).gather(-1, token_BT[..., None]).squeeze(-1)


def advantages(method, keep_P=None):
    """(N,) advantages over the prompts that were rolled out; 0, and never used, for the others."""
    keep_P = torch.ones(P, dtype=torch.bool) if keep_P is None else keep_P
    advantage_PG = torch.zeros_like(REWARD_PG)
    if keep_P.any():
        advantage_PG[keep_P] = method.advantages(REWARD_PG[keep_P])
    return advantage_PG.flatten()


OLD_LOGP_NT, REF_LOGP_NT = (log_probs(theta, torch.arange(N)) for theta in (OLD_THETA, REF_THETA))


def gradient(method, weight_N, *, theta=THETA, advantage_N=None, tokens=None, sequences=N):
    """Gradient of the complete loss over rows of positive weight only, as a trainer would compute it: (PARAMETERS,).

    ``tokens`` and ``sequences`` go into the denominator and default to the counts before anything was pruned.
    """
    advantage_N = advantages(method) if advantage_N is None else advantage_N
    rows = weight_N.nonzero().squeeze(1)
    if not len(rows):
        return torch.zeros(PARAMETERS, dtype=torch.float64)
    leaf = theta.clone().requires_grad_()
    loss_BT = method.loss(log_probs(leaf, rows), OLD_LOGP_NT[rows], advantage_N[rows], MASK_NT[rows], REF_LOGP_NT[rows])
    total = weighted_sum(loss_BT, MASK_NT[rows], weight_N[rows], per_sequence=method.normaliser.per_sequence)
    tokens = float(LENGTH_N.sum()) if tokens is None else tokens
    return torch.autograd.grad(total / method.normaliser.denominator(sequences, tokens, T), leaf)[0]


@dataclass(frozen=True)
class Selection:
    """One possible outcome of both draws, with how likely it is."""

    chance: float
    keep_P: torch.Tensor
    keep_N: torch.Tensor
    prompt_weight_P: torch.Tensor
    completion_weight_N: torch.Tensor
    advantage_N: torch.Tensor

    @property
    def weight_N(self):
        return self.completion_weight_N * self.prompt_weight_P[GROUP_N]


def selections(method):
    """Every outcome of pruning prompts and then completions, as the method would, with independent draws.

    Probabilities and weights come from the method; a random design is replaced by independent draws, which have the
    same probabilities and can be enumerated. A design without chance has one outcome: its own.
    """
    seen_P = torch.ones(P, dtype=torch.bool)
    candidates = Candidates(
        row_P=torch.arange(P),
        signal_P=torch.tensor([0.9, 0.3, 0.4]),
        tokens_P=torch.tensor([9.0, 8.0, 7.0]),
        seen_P=seen_P,
    )
    draw = method.prompts.draw_prompts(candidates, generator(0, Purpose.PROMPT_DRAW))
    for prompt_chance, keep_P, weight_P in outcomes(method.prompts, draw, seen_P):
        advantage_N = advantages(method, keep_P)
        live_N = keep_P[GROUP_N] & method.live(advantage_N)
        completions = Completions(advantage_N=advantage_N, tokens_N=LENGTH_N, group_N=GROUP_N, live_N=live_N)
        inner = method.completions.draw_completions(completions, generator(0, Purpose.COMPLETION_DRAW))
        for chance, keep_N, weight_N in outcomes(method.completions, inner, live_N):
            shape = (P, G)
            trained_PG = method.trained_advantages(REWARD_PG, advantage_N.view(shape), keep_N.view(shape))
            yield Selection(prompt_chance * chance, keep_P, keep_N, weight_P, weight_N, trained_PG.flatten())


def outcomes(pruning, draw, live):
    """Pairs of (chance, keep, weight) of every outcome with a chance, over rows that are live."""
    if not pruning.design.unbiased:
        yield 1.0, draw.keep_N, draw.weight_N
        return
    rows, prob = live.nonzero().squeeze(1), draw.prob_N[live]
    for bits in product([False, True], repeat=len(rows)):
        kept = torch.tensor(bits, dtype=torch.bool)
        chance = torch.where(kept, prob, 1 - prob).prod().item()
        if chance > 0:
            keep, weight = torch.zeros_like(live), torch.zeros(len(live), dtype=torch.float64)
            keep[rows], weight[rows] = kept, pruning.weighting(kept, prob)
            yield chance, keep, weight


def estimate(method, selection, **changes):
    """The gradient that one outcome gives, with the token count estimated where prompts were not rolled out."""
    tokens_P = LENGTH_N.view(P, G).sum(1).double()
    arguments = {
        "advantage_N": selection.advantage_N,
        "tokens": (tokens_P * selection.prompt_weight_P).sum().item(),
    }
    return gradient(method, selection.weight_N, **(arguments | changes))


def expectation(method, of_selection=None):
    """Exact mean over all outcomes of ``of_selection``, by default of the pruned gradient."""
    of_selection = of_selection or (lambda selection: estimate(method, selection))
    total = 0.0
    for selection in selections(method):
        total = total + selection.chance * of_selection(selection)
    return total


def relative_error(got, expected):
    return ((got - expected).norm() / expected.norm()).item()


def at_rates(method, prompt, completion, **changes):
    return replace(method, **changes).with_rates(prompt=prompt, completion=completion)
