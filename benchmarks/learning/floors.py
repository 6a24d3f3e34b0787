"""What dropping completions adds to the variance under terms that ignore the advantage, by true gradients of each.

python -m benchmarks.learning.floors REFERENCE NAME=POLICY... [--experts] [--problems 48] [--output FILE.json]

REFERENCE and each POLICY are folders of models of the embedded task, such as ``start`` and ``checkpoint-60`` of a run
with ``beta: 0.04``. Groups of 4, ``loss_type: dapo``, variance as of independent draws; the KL term is k3 with a ratio
and without (``use_bias_correction_kl``). With ``--experts`` REFERENCE is made first, a mixture warmed up on the task,
to be trained without ``rollout_func``; its term is the router loss, with each expert's share of the tokens held at that
of the full batch: then it is a sum over tokens. A gradient is linear in advantage and coefficients, so one backward
pass of each term serves them all. Rows of other names stay in FILE.
"""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from benchmarks.shared import Record, beside, options, write
from dppo.context import NOTHING_KNOWN
from dppo.environment import environment, one_thread
from dppo.methods import METHODS, Method
from dppo.moment_samples import OtherTerms
from dppo.objective import DAPO_TOKENS, GROUP_SCALED, Tokens, k3, token_ratio
from dppo.pruning import Budget, proportional, uncertainty
from dppo.step import StepSizes, micro_batch_loss, other_terms
from dppo.types import Rewards
from dppo.verification.tiny_model import model_config
from dppo.verification.tiny_tokenizer import build_tokenizer, encode_questions
from dppo_lab.demo.decode import Rollout, sample
from dppo_lab.demo.evaluate import MAX_NEW_TOKENS, rewards_of
from dppo_lab.demo.task import FULL, make_split
from dppo_lab.demo.warmup import warm_up
from dppo_lab.runs.embedded import TASKS

GROUP, SEED = 4, 7
TERMS = ("beta", "entropy_coef", "router_coef")
OBJECTIVES = ((0.0, 0.0, 0.0), (0.04, 0.0, 0.0), (0.4, 0.0, 0.0), (2.0, 0.0, 0.0))
OBJECTIVES += ((0.0, 0.01, 0.0), (0.0, 0.1, 0.0), (0.04, 0.05, 0.0))
"""Values of ``TERMS`` for a dense policy."""
OF_EXPERTS = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.001), (0.0, 0.0, 0.01), (0.0, 0.0, 0.1))
"""The same for a mixture; 0.001 is what its configuration has."""
RATES = (0.5, 0.7, 0.8, 0.9)
FLOOR = 0.1
"""As where a rate is chosen; half of what is kept where that is smaller."""
FLOORS = {"one_floor": (False, None), "blind_0.02": (False, 0.02)}
FLOORS |= {f"learned_{least:g}": (True, least) for least in (0.05, 0.02, 0.01)}
"""By name: whether scores have what was learned, and the floor of a score of 0."""
UNIT = replace(METHODS["dppo"], normaliser=DAPO_TOKENS)
UNITS = (UNIT, replace(UNIT, beta=1.0, kl=k3), replace(UNIT, beta=1.0, kl=partial(k3, ratio=token_ratio)))
UNITS += (replace(UNIT, entropy_coef=1.0), replace(UNIT, router_coef=1.0))
"""The terms at a coefficient of 1: the policy's at an advantage of 1, the others at 0."""

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 192, "norm_topk_prob": True}
"""Of a mixture, whose other sizes are those of the task's dense policy."""


def prepare_experts(folder: Path) -> None:
    """Make a folder with a mixture of experts and its tokenizer, warmed up as the dense policy is."""
    dense = {
        name: value for name, value in model_config().to_dict().items() if name not in ("model_type", "layer_types")
    }
    torch.manual_seed(SEED)
    model: Any = Qwen3MoeForCausalLM(Qwen3MoeConfig(**dense | EXPERTS))
    tokenizer = build_tokenizer()
    warm_up(model, tokenizer, FULL, seed=SEED, steps=FULL.warm_up_steps)
    model.model.norm.weight.data.mul_(FULL.sureness)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def measured(policy: Path, reference: Path, problems: int) -> dict[str, np.ndarray]:
    """Completions of a policy: (N, 5, 5) inner products of the gradients of its terms, and what scores see."""
    model, other = (AutoModelForCausalLM.from_pretrained(folder) for folder in (policy, reference))
    split = make_split(SEED, train=192, held_out=8, task=TASKS["embedded"])
    chosen, tokenizer = split.train[:problems], build_tokenizer()
    prompts = encode_questions(tokenizer, [problem.question for problem in chosen])
    made = _sampled(model, prompts)
    reward_PG = rewards_of(made, tokenizer, [each for each in chosen for _ in range(GROUP)]).view(-1, GROUP)
    advantage_N = GROUP_SCALED(Rewards.of_groups(reward_PG), NOTHING_KNOWN)
    rows = [torch.tensor([*prompts[row // GROUP], *own]) for row, own in enumerate(made.token_lists)]
    share_E, attended = expert_shares(model, rows), sum(map(len, rows)) / sum(map(len, made.token_lists))
    logp_NT, ref_NT, entropy_NT = torch.zeros(3, *made.token_NT.shape)
    gram = []
    for row, (ids, length) in enumerate(zip(rows, made.length_N.tolist(), strict=True)):
        logp, entropy, router = scored(model, ids, length, share_E)
        with torch.no_grad():
            ref, *_ = scored(other, ids, length, None)
        logp_NT[row, :length], ref_NT[row, :length], entropy_NT[row, :length] = logp.detach(), ref, entropy.detach()
        flat = torch.stack([_gradient(term, model) for term in _terms(logp, ref, entropy, router, attended)])
        gram.append((flat @ flat.T).double().numpy())
    found = {"advantage": advantage_N, "logp": logp_NT, "ref": ref_NT, "entropy": entropy_NT, "mask": made.mask_NT}
    return {"gram": np.stack(gram)} | {name: value.numpy() for name, value in found.items()}


def _terms(logp: Tensor, ref: Tensor, entropy: Tensor, router: Tensor, attended: float) -> list[Tensor]:
    """The loss of a completion by each of ``UNITS``, in tokens of the full batch; ``attended`` is all over trained."""
    losses = []
    for number, method in enumerate(UNITS):
        tokens = Tokens(
            logp_BT=logp[None],
            old_logp_BT=logp.detach()[None],
            advantage_B=torch.full((1,), float(number == 0)),
            mask_BT=torch.ones(1, len(logp)),
            ref_logp_BT=ref[None],
        )
        loss = micro_batch_loss(
            method,
            tokens,
            torch.ones(1),
            StepSizes(denominator=1.0, tokens=1.0, attended=attended),
            entropy_BT=entropy[None],
            router_loss=router,
        )
        losses.append(loss)
    return losses


def _sampled(model: Any, prompts: list[list[int]]) -> Rollout:
    """Groups of completions of each prompt, by transformers where the decoder of the task does not know the model."""
    if not _experts(model):
        return sample(model, prompts, torch.Generator().manual_seed(1), samples=GROUP, max_new_tokens=MAX_NEW_TOKENS)
    torch.manual_seed(1)
    width, pad, end = max(map(len, prompts)), model.config.pad_token_id, model.config.eos_token_id
    ids = torch.tensor([[pad] * (width - len(each)) + each for each in prompts]).repeat_interleave(GROUP, 0)
    asked = {"max_new_tokens": MAX_NEW_TOKENS, "do_sample": True, "top_k": 0}
    token_NT = model.generate(ids, attention_mask=(ids != pad).long(), **asked)[:, width:]
    length_N = ((token_NT == end).cumsum(1) == 0).sum(1).add(1).clamp_max(token_NT.shape[1])
    return Rollout(token_NT=token_NT, length_N=length_N, logp_NT=torch.zeros(token_NT.shape))


def _experts(model: Any) -> int:
    return int(getattr(model.config, "num_experts", 0))


def expert_shares(model: Any, rows: list[Tensor]) -> Tensor | None:
    """(E,) tokens that each expert gets, over all tokens and layers; None of a dense model."""
    if not _experts(model):
        return None
    with torch.no_grad():
        logits = [torch.cat(model(ids[None], output_router_logits=True).router_logits) for ids in rows]
    chosen = torch.cat(logits).topk(model.config.num_experts_per_tok, -1).indices
    return F.one_hot(chosen, _experts(model)).sum(1).double().mean(0).float()


def scored(model: Any, ids: Tensor, length: int, share_E: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(T,) log-probabilities of the last tokens, entropies at them, and () the router loss, summed over all tokens."""
    router = {} if share_E is None else {"output_router_logits": True}
    output = model(input_ids=ids[None], use_cache=False, **router)
    every_TV = output.logits[0, -length - 1 : -1].float().log_softmax(-1)
    logp_T, entropy_T = every_TV.gather(-1, ids[-length:, None])[:, 0], -(every_TV.exp() * every_TV).sum(-1)
    if share_E is None:
        return logp_T, entropy_T, logp_T.new_zeros(())
    prob_LTE = torch.stack(output.router_logits).softmax(-1)
    return logp_T, entropy_T, len(share_E) * (prob_LTE.mean(0) @ share_E).sum()


def _gradient(term: Tensor, model: Any) -> Tensor:
    parameters = list(model.parameters())
    if not term.requires_grad:
        return torch.zeros(sum(each.numel() for each in parameters))
    parts = torch.autograd.grad(term, parameters, retain_graph=True, materialize_grads=True, allow_unused=True)
    return torch.cat([part.flatten() for part in parts])


def rows_of(policy: str, found: dict[str, np.ndarray]) -> list[Record]:
    """A record for each objective and rate: variance that each way of pruning adds, over the squared gradients."""
    logp, ref, entropy, mask = (torch.from_numpy(found[name]).float() for name in ("logp", "ref", "entropy", "mask"))
    advantage = found["advantage"].astype(np.float64)
    doubt, rows = uncertainty(logp, mask).numpy(), []
    tokens = Tokens(
        logp_BT=logp, old_logp_BT=logp, advantage_B=torch.from_numpy(advantage).float(), mask_BT=mask, ref_logp_BT=ref
    )
    objectives = OF_EXPERTS if found["gram"][:, 4, 4].any() else OBJECTIVES
    for values, ratio in [(each, ratio) for each in objectives for ratio in (False, True) if each[0] or not ratio]:
        beta, *others = values
        kl = partial(k3, ratio=token_ratio) if ratio else k3
        method = replace(UNIT, kl=kl, **dict(zip(TERMS, values, strict=True)))
        slopes = (beta * (not ratio), beta * ratio, *others)
        slope_N5 = np.column_stack([advantage, *(np.full_like(advantage, slope) for slope in slopes)])
        square_N = np.einsum("ni,nij,nj->n", slope_N5, found["gram"], slope_N5)
        live_N = (advantage != 0) | any(values)
        other = _learned(method, tokens, entropy)
        flat_share = float(square_N[advantage == 0].sum() / square_N.sum())
        for rate in RATES:
            row: Record = {"policy": policy, **dict(zip(TERMS, values, strict=True)), "rate": rate}
            row |= {"use_bias_correction_kl": ratio}
            row |= {"flat": float((advantage == 0).mean()), "flat_share": flat_share, "other_terms": other}
            for name, (learned, least) in FLOORS.items():
                if learned and other is None:
                    continue
                floor = min(FLOOR, (1 - rate) / 2)
                score = np.sqrt(advantage**2 + ((other if learned else None) or 0.0) ** 2) * doubt
                row[name] = _added(score, square_N, live_N, rate, floor, least)
            row["true_norms"] = _added(np.sqrt(square_N), square_N, live_N, rate, 0.005, None)
            rows.append(row)
    return rows


def _learned(method: Method, tokens: Tokens, entropy: Tensor) -> float | None:
    """What scores get of other terms, as if all completions were of an earlier step; None where nothing tells."""
    if method.router_coef:
        return None
    sums = other_terms(method, tokens, torch.ones(len(entropy)), entropy).tolist()
    return OtherTerms().after(*sums).advantage or 0.0


def _added(
    score_N: np.ndarray, square_N: np.ndarray, live_N: np.ndarray, rate: float, floor: float, least: float | None
) -> float:
    least = None if least is None else min(least, floor)
    prob_R = proportional(torch.from_numpy(score_N[live_N]), Budget(rate=rate, floor=floor, least=least)).numpy()
    return float((square_N[live_N] * (1 / prob_R - 1)).sum() / square_N[live_N].sum())


def main() -> int:
    """Measure and print."""
    parser = options(__doc__)
    parser.add_argument("reference", type=Path)
    parser.add_argument("policies", nargs="+", metavar="NAME=POLICY")
    parser.add_argument("--experts", action="store_true", help="first make REFERENCE, a mixture of experts")
    parser.add_argument("--problems", type=int, default=48)
    given = parser.parse_args()
    rows = []
    with one_thread():
        if given.experts:
            prepare_experts(given.reference)
        for name, _, policy in (word.partition("=") for word in given.policies):
            rows += rows_of(name, measured(Path(policy), given.reference, given.problems))
    commit = environment()["commit"]
    for row in rows:
        row["commit"] = commit
        print(*(f"{name} {value:.3f}" if isinstance(value, float) else value for name, value in row.items()))
    write(given.output, beside(given.output, rows, "policy"), [SEED])
    return 0


if __name__ == "__main__":
    sys.exit(main())
