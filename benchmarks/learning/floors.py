"""What dropping completions adds to the variance under a KL term or an entropy bonus, by true gradients of each.

python -m benchmarks.learning.floors REFERENCE POLICY... [--problems 48] [--output FILE.json]

REFERENCE and each POLICY are folders of models of the embedded task, such as ``start`` and ``checkpoint-60`` of a run.
Groups of 4; the KL term is k3 without a ratio (``use_bias_correction_kl: false``). A gradient is linear in advantage,
beta and coefficient, so one backward pass of each term serves them all.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from benchmarks.shared import Record, options, write
from dppo.environment import one_thread
from dppo.evidence import OtherTerms
from dppo.methods import METHODS
from dppo.objective import DR_GRPO, Tokens
from dppo.pruning import Budget, confidence, proportional
from dppo.step import other_terms
from dppo.verification.tiny_tokenizer import build_tokenizer, encode_questions
from dppo_lab.demo.decode import sample
from dppo_lab.demo.evaluate import MAX_NEW_TOKENS, rewards_of
from dppo_lab.demo.task import make_split
from dppo_lab.runs.embedded import TASKS

GROUP, SEED = 4, 7
OBJECTIVES = ((0.0, 0.0), (0.04, 0.0), (0.4, 0.0), (2.0, 0.0), (0.0, 0.01), (0.0, 0.1), (0.04, 0.05))
"""Beta and coefficient of the entropy bonus."""
RATES = (0.5, 0.7, 0.8, 0.9)
FLOORS = {"one_0.2": (False, 0.2, None), "blind_0.02": (False, 0.2, 0.02)}
FLOORS |= {f"learned_{least:g}": (True, 0.2, least) for least in (0.05, 0.02, 0.01)}
"""By name: whether scores have what was learned, the floor and the least."""


def measured(policy: Path, reference: Path, problems: int) -> dict[str, np.ndarray]:
    """Completions of a policy: (N, 3, 3) inner products of the gradients of its three terms, and what scores see."""
    model, other = Qwen3ForCausalLM.from_pretrained(policy), Qwen3ForCausalLM.from_pretrained(reference)
    tokenizer, split = build_tokenizer(), make_split(SEED, train=192, held_out=8, task=TASKS["embedded"])
    chosen = split.train[:problems]
    prompts = encode_questions(tokenizer, [problem.question for problem in chosen])
    rng = torch.Generator().manual_seed(1)
    made = sample(model, prompts, rng, samples=GROUP, max_new_tokens=MAX_NEW_TOKENS)
    reward_PG = rewards_of(made, tokenizer, [each for each in chosen for _ in range(GROUP)]).view(-1, GROUP)
    centred_PG = reward_PG - reward_PG.mean(1, keepdim=True)
    advantage_N = (centred_PG / (reward_PG.std(1, keepdim=True) + 1e-4)).flatten()
    lengths = made.length_N.tolist()
    logp_NT, ref_NT, entropy_NT = torch.zeros(3, *made.token_NT.shape)
    gram = []
    for row, length in enumerate(lengths):
        ids = torch.tensor([*prompts[row // GROUP], *made.token_NT[row, :length].tolist()])
        logp, entropy = _scored(model, ids, length)
        with torch.no_grad():
            ref, _ = _scored(other, ids, length)
        logp_NT[row, :length], ref_NT[row, :length], entropy_NT[row, :length] = logp.detach(), ref, entropy.detach()
        terms = (logp.sum(), ((1 - (ref - logp.detach()).exp()) * logp).sum(), -entropy.sum())
        parts = [torch.autograd.grad(term, list(model.parameters()), retain_graph=True) for term in terms]
        flat = torch.stack([torch.cat([part.flatten() for part in each]) for each in parts])
        gram.append((flat @ flat.T).double().numpy())
    found = {"advantage": advantage_N, "logp": logp_NT, "ref": ref_NT, "entropy": entropy_NT, "mask": made.mask_NT}
    return {"gram": np.stack(gram)} | {name: value.numpy() for name, value in found.items()}


def _scored(model: Qwen3ForCausalLM, ids: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """(T,) log-probabilities of the last tokens and entropies at them."""
    every_TV = model(input_ids=ids[None], use_cache=False).logits[0, -length - 1 : -1].float().log_softmax(-1)
    return every_TV.gather(-1, ids[-length:, None])[:, 0], -(every_TV.exp() * every_TV).sum(-1)


def rows_of(policy: str, found: dict[str, np.ndarray]) -> list[Record]:
    """A record for each objective and rate: variance that each way of pruning adds, over the squared gradients."""
    logp, ref, entropy, mask = (torch.from_numpy(found[name]).float() for name in ("logp", "ref", "entropy", "mask"))
    advantage = found["advantage"].astype(np.float64)
    doubt, rows = confidence(logp, mask).numpy(), []
    tokens = Tokens(
        logp_BT=logp, old_logp_BT=logp, advantage_B=torch.from_numpy(advantage).float(), mask_BT=mask, ref_logp_BT=ref
    )
    for beta, coefficient in OBJECTIVES:
        method = replace(METHODS["dppo"], normaliser=DR_GRPO, beta=beta, entropy_coef=coefficient)
        slopes = np.stack([-advantage, np.full_like(advantage, beta), np.full_like(advantage, coefficient)], 1)
        square_N = np.einsum("ni,nij,nj->n", slopes, found["gram"], slopes)
        live_N = (advantage != 0) | bool(beta or coefficient)
        sums = other_terms(method, tokens, torch.ones(len(advantage)), entropy).tolist()
        other = OtherTerms().after(*sums).advantage or 0.0
        flat_share = float(square_N[advantage == 0].sum() / square_N.sum())
        for rate in RATES:
            row: Record = {"policy": policy, "beta": beta, "entropy_coef": coefficient, "rate": rate}
            row |= {"flat": float((advantage == 0).mean()), "flat_share": flat_share, "other_terms": other}
            for name, (learned, floor, least) in FLOORS.items():
                floor = min(floor, (1 - rate) / 2)
                score = np.sqrt(advantage**2 + (other if learned else 0.0) ** 2) * doubt
                row[name] = _added(score, square_N, live_N, rate, floor, least)
            row["true_norms"] = _added(np.sqrt(square_N), square_N, live_N, rate, 0.005, None)
            rows.append(row)
    return rows


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
    parser.add_argument("policies", type=Path, nargs="+")
    parser.add_argument("--problems", type=int, default=48)
    given = parser.parse_args()
    rows = []
    with one_thread():
        for policy in given.policies:
            rows += rows_of(policy.name, measured(policy, given.reference, given.problems))
    for row in rows:
        print(" ".join(f"{name} {value:.3f}" if isinstance(value, float) else value for name, value in row.items()))
    write(given.output, rows, [SEED])
    return 0


if __name__ == "__main__":
    sys.exit(main())
