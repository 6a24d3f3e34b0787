"""A softmax policy small enough to go through every selection of its completions, in float64 and off-policy.

Expected values are in numpy, by the formulas of the papers and complex steps. Checked are ``plan_step`` for every
selection, by ``every_way``, and autograd through ``micro_batch_loss``. The first prompt's last completion has
advantage 0. There are three prompts, because with two the threshold rule keeps both.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from arrays import candidates_of

from dppo.context import StepContext
from dppo.methods import Method
from dppo.objective import Tokens
from dppo.pruning import SampledTokens, uncertainty
from dppo.step import RolledOut, StepPlan, StepSizes, drawn_block, micro_batch_loss, plan_step
from dppo.types import Block, Rewards
from dppo.verification.enumerate import enumerated, every_way

GROUP_N = np.array([0, 0, 0, 1, 1, 2, 2])
P, N, T, V = 3, len(GROUP_N), 4, 5
REWARD_NF = np.array([[1, 0], [0, 0], [0, 1], [0, 0.6], [1, 0], [0.1, 1], [0.9, 1.2]])
WEIGHT_F = np.array([1.0, 0.5])
LENGTH_N = np.array([4, 2, 3, 1, 4, 3, 2])
MASK_NT = np.arange(T) < LENGTH_N[:, None]
_RNG = np.random.default_rng(4)
TOKEN_NT = _RNG.integers(V, size=(N, T))
BEFORE_NT = np.concatenate([np.full((N, 1), V), TOKEN_NT[:, :-1]], 1)
PARAMETERS = (V + 1) * V + P * V
THETA, _OLD_STEP, _REF_STEP = _RNG.normal(size=(3, PARAMETERS))
CANDIDATES = candidates_of([0.6, 0.3, 0.35], tokens=[3.0, 2.5, 2.5])


def logits(theta):
    """(..., N, T, V) from the token before, plus a bias per prompt; of arrays and tensors (..., PARAMETERS)."""
    rows = theta.reshape(*theta.shape[:-1], V + 1 + P, V)
    return rows[..., BEFORE_NT, :] + rows[..., V + 1 + GROUP_N, :][..., None, :]


def distribution(theta):
    """(..., N, T, V) log-probabilities of all tokens, in numpy."""
    found = logits(theta)
    return found - np.log(np.exp(found).sum(-1, keepdims=True))


def log_probs(theta):
    """(..., N, T) log-probabilities of the sampled tokens, in numpy."""
    return np.einsum("...ntv,ntv->...nt", distribution(theta), np.eye(V)[TOKEN_NT])


OLD_NT, REF_NT = log_probs(THETA + 0.3 * _OLD_STEP), log_probs(THETA + 0.5 * _REF_STEP)

# What is expected: numpy and complex steps.


def larger(a, b):
    """The larger of two complex numbers by their real parts, elementwise: its derivative goes along."""
    return np.where(np.real(a) >= np.real(b), a, b)


def clip(value, low, high):
    return larger(-larger(-value, np.full_like(value, -high)), np.full_like(value, low))


def z_scores(total_N):
    """Less the group's mean, over its deviation with n - 1 and 1e-4."""
    return by_group(total_N, lambda x: (x - x.mean()) / (x.std(ddof=1) + 1e-4))


def centred(total_N):
    return by_group(total_N, lambda x: x - x.mean())


def by_group(value_N, function):
    return np.concatenate([function(value_N[group == GROUP_N]) for group in range(P)])


TOTAL_N = REWARD_NF @ WEIGHT_F
VALUE_P = np.array([0.5, 0.7, 1.1])
"""What a reference gave on each prompt, for methods that go by it."""


def surrogate(low, high, whole=False):
    """The clipped loss of each token, by ratios of tokens or of whole completions."""

    def loss(logp, advantage_N1):
        ratio = np.exp(sequence_log_ratio(logp) if whole else logp - OLD_NT)
        return larger(-ratio * advantage_N1, -clip(ratio, 1 - low, 1 + high) * advantage_N1)

    return loss


def sequence_log_ratio(logp):
    """(..., N, T) mean log-ratio of each completion, at each of its tokens."""
    mean = ((logp - OLD_NT) * MASK_NT).sum(-1, keepdims=True) / LENGTH_N[:, None]
    return np.broadcast_to(mean, logp.shape)


CLIPPED = surrogate(0.2, 0.2)
DIVIDED = {
    "grpo": lambda sum_N: sum_N / LENGTH_N / N,
    "dr_grpo": lambda sum_N: sum_N / (N * T),
    "dapo": lambda sum_N: sum_N / LENGTH_N.sum(),
    "bnpo": lambda sum_N: sum_N / LENGTH_N.sum(),
    "luspo": lambda sum_N: sum_N / N,
}
"""What becomes of the token sums of all completions, by normaliser."""


def k3(logp):
    return np.exp(REF_NT - logp) - (REF_NT - logp) - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Objective:
    """A loss written out by hand."""

    advantage_N: np.ndarray
    loss: Callable = CLIPPED
    """From (..., N, T) log-probabilities and (N, 1) advantages to (..., N, T)."""
    divided: str = "grpo"
    beta: float = 0.0
    kl: Callable = k3
    entropy_coef: float = 0.0

    def __call__(self, theta):
        """(...) the loss of the full batch at ``theta`` (..., PARAMETERS), which may be complex."""
        everything, logp = distribution(theta), log_probs(theta)
        token = self.loss(logp, self.advantage_N[:, None]) + self.beta * self.kl(logp)
        entropy = -(np.exp(everything) * everything).sum(-1)
        bonus = (entropy * MASK_NT).sum((-1, -2)) / LENGTH_N.sum()
        return DIVIDED[self.divided]((token * MASK_NT).sum(-1)).sum(-1) - self.entropy_coef * bonus

    def gradient(self, theta=THETA):
        """(PARAMETERS,) by complex steps, exact to rounding: no autograd, no cancellation."""
        return torch.from_numpy(self(theta + 1e-30j * np.eye(PARAMETERS)).imag / 1e-30)


GRPO_BY_HAND = Objective(advantage_N=z_scores(TOTAL_N))
DAPO_BY_HAND = replace(GRPO_BY_HAND, loss=surrogate(0.2, 0.28), divided="dapo")
GSPO_BY_HAND = replace(GRPO_BY_HAND, loss=surrogate(3e-4, 4e-4, whole=True))


# What is checked: the library, for every selection.


def parts(method: Method, advantage_N, sizes: StepSizes, theta=THETA):
    """(N, PARAMETERS) gradient of each completion at weight 1, as a trainer computes it."""
    return weighted_gradients(method, torch.eye(N, dtype=torch.float64), advantage_N, sizes, theta)


def weighted_gradients(method, weights, advantage_N, sizes, theta=THETA, counted=True):
    """(S, PARAMETERS) gradient at each of S weightings of completions, (S, N), or of their tokens, (S, N, T)."""
    leaf = torch.tensor(theta).requires_grad_()
    everything = logits(leaf).log_softmax(-1)
    logp_NT = everything.gather(-1, torch.from_numpy(TOKEN_NT)[..., None])[..., 0]
    entropy_NT = -(everything.exp() * everything).sum(-1)
    old, ref, mask = map(torch.from_numpy, (OLD_NT, REF_NT, MASK_NT))
    sampled = Tokens(logp_BT=logp_NT, old_logp_BT=old, ref_logp_BT=ref, advantage_B=advantage_N, mask_BT=mask)

    def loss(weight):
        seen = sampled
        if weight.dim() == 2:  # a trainer forwards what was drawn, and knows how many tokens there were
            length_N = torch.from_numpy(LENGTH_N) if counted else None
            seen = replace(sampled, mask_BT=sampled.mask_BT & (weight > 0), counted_B=length_N)
        return micro_batch_loss(method, seen, weight, sizes, entropy_BT=entropy_NT)

    one_SS = torch.eye(len(weights), dtype=torch.float64)
    return torch.autograd.grad(torch.stack([*map(loss, weights)]), leaf, one_SS, is_grads_batched=True)[0]


def among_all(value, keep_N):
    """(..., N) values of the completions rolled out, among those of all candidates; 0 elsewhere."""
    found = torch.zeros(*value.shape[:-1], N, dtype=torch.float64)
    found[..., keep_N] = value.double()
    return found


@dataclass(frozen=True)
class Planned:
    """A step after one outcome of the prompt draw, for every outcome of its draws of completions and tokens."""

    method: Method
    prompt_chance: float
    chance_U: torch.Tensor
    keep_P: torch.Tensor
    prompt_weight_P: torch.Tensor
    plans: tuple[StepPlan, ...]
    """One for each outcome. They differ in their weights alone."""

    @property
    def plan(self):
        return self.plans[0]

    @cached_property
    def weight_UN(self):
        return among_all(torch.cat([plan.weight_UN for plan in self.plans]), self.keep_P[GROUP_N])

    @cached_property
    def advantage_N(self):
        return among_all(self.plan.advantage_N, self.keep_P[GROUP_N])

    @property
    def weight_UNT(self):
        """Factor of the loss of each token, if tokens are drawn too."""
        of_tokens = [plan.weight_UN[0][:, None] * plan.token_draws[0].weight_NT for plan in self.plans]
        return among_all(torch.stack(of_tokens).mT, self.keep_P[GROUP_N]).mT

    def gradients(self, weight_UN=None, *, advantage_N=None, theta=THETA, sizes=None):
        """(S, PARAMETERS) gradient of each outcome; arguments that are not given are the plan's."""
        advantage_N = self.advantage_N if advantage_N is None else advantage_N
        sizes = self.plan.sizes if sizes is None else sizes
        if weight_UN is None and self.plan.token_draws:
            one_SNT = torch.eye(N * T, dtype=torch.float64).view(N * T, N, T)
            part_SK = weighted_gradients(self.method, one_SNT, advantage_N, sizes, theta)
            return self.weight_UNT.flatten(1) @ part_SK
        weight_UN = self.weight_UN if weight_UN is None else weight_UN
        return weight_UN @ parts(self.method, advantage_N, sizes, theta)

    def at_advantages(self, weight_UN, advantages):
        """(S, PARAMETERS) gradient of each outcome at advantages of its own."""
        pairs = zip(weight_UN, advantages, strict=True)
        return torch.cat([self.gradients(w_N[None], advantage_N=a_N) for w_N, a_N in pairs])


CONTEXT = StepContext(value_Q=torch.from_numpy(VALUE_P))
EVERY_ROW = torch.ones(N, dtype=torch.bool)


def rewards(keep_N=EVERY_ROW) -> Rewards:
    reward_NF, group_N, weight_F = map(torch.from_numpy, (REWARD_NF, GROUP_N, WEIGHT_F))
    return Rewards(reward_NF=reward_NF, group_N=group_N, weight_F=weight_F).take(keep_N)


def planned(method: Method) -> Iterator[Planned]:
    """Every outcome of the draw of prompts, but the one that keeps none: it has no gradient."""
    level = enumerated(method.prompts)
    for draw, chance in every_way(lambda tape: level.draw(CANDIDATES, tape)):
        if draw.keep_N.any():
            plans, chances = zip(*after(method, draw), strict=True)
            chance_U = torch.tensor(chances, dtype=torch.float64)
            yield Planned(method, chance, chance_U, draw.keep_N, draw.weight_N, plans)


def rolled_out(keep_N=EVERY_ROW) -> RolledOut:
    """What was rolled out of the prompts that were kept."""
    length_N, old_NT, mask_NT = (torch.from_numpy(value)[keep_N] for value in (LENGTH_N, OLD_NT, MASK_NT))
    return RolledOut(
        rewards=rewards(keep_N),
        tokens_N=length_N,
        uncertainty_N=uncertainty(old_NT, mask_NT),
        sampled=SampledTokens(logp_NT=old_NT, mask_NT=mask_NT),
    )


def after(method: Method, draw) -> Iterator[tuple[StepPlan, float]]:
    """Plans of a step in which ``draw`` chose the prompts, and their chances."""
    given = rolled_out(draw.keep_N[GROUP_N])
    prompts = drawn_block(Block(candidates=CANDIDATES, draw=draw), 1)
    expected = None if prompts.expected_tokens is None else float(LENGTH_N.sum())  # what a wrong one means is a test
    prompts = replace(prompts, sequences=N, context=CONTEXT.take(draw.keep_N), expected_tokens=expected)
    drawn = replace(method, completions=enumerated(method.completions), tokens=enumerated(method.tokens))
    return every_way(lambda tape: plan_step(drawn, given, prompts, streams=lambda *_: tape, max_tokens=T))


def expectation(method: Method, of_planned=Planned.gradients):
    """Exact mean over all outcomes of ``of_planned``, (S, ...), by default of the pruned gradient."""
    return sum(each.prompt_chance * torch.tensordot(each.chance_U, of_planned(each), 1) for each in planned(method))


def full_gradient(method: Method, theta=THETA):
    """(PARAMETERS,) gradient of the full batch as the library computes it, with nothing drawn."""
    (everything,) = planned(at_rates(method, 0.0, 0.0))
    one_1N = torch.ones(1, N, dtype=torch.float64)
    return everything.gradients(one_1N, theta=theta)[0]


def relative_error(got, expected) -> float:
    return ((got - expected).norm() / expected.norm()).item()


def at_rates(method: Method, prompt: float, completion: float, **changes) -> Method:
    return replace(method, **changes).with_rates(prompt=prompt, completion=completion)
