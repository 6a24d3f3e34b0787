"""What leaving out tokens costs in variance and saves in time: true gradients, and the passes before a step.

python -m benchmarks.speed.tokens [--quick] [--output FILE.json]

``added_variance`` is ``E|g_drawn - g|^2`` over the sum of the completions' squared gradients, by the draws and the
gradients of tokens of ``dppo compare --frozen``: on the embedded task with groups of 4, at the start, after 60 and
after 120 steps; the later two also under a KL term to the start (k3, beta 0.04), which gives every completion one.
``passes`` are the old and the reference pass, up to a cut and over all tokens.
``left_off`` is a step in which ``auto`` cuts nothing, and one without it.
"""

import argparse
import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen3ForCausalLM

from benchmarks.shared import earlier, options
from benchmarks.speed.tokens_in_trl import left_off, passes
from dppo.environment import environment
from dppo.files import write_json
from dppo.methods import METHODS, Method
from dppo.moment_samples import OtherTerms
from dppo.objective import DR_GRPO, Tokens
from dppo.pruning import Pruning, TokenPruning, advantage_with_uncertainty, random_prefix
from dppo.step import other_terms
from dppo.verification.gradients import log_probs
from dppo.verification.subject import Subject
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer
from dppo_lab.demo.evaluate import MAX_NEW_TOKENS
from dppo_lab.demo.subject import subject_of
from dppo_lab.demo.task import FULL, QUICK, ArithmeticProblem, make_split
from dppo_lab.demo.warmup import warm_up
from dppo_lab.frozen.sample import sample
from dppo_lab.frozen.tokens import TokenGradients, sample_tokens, token_gradients
from dppo_lab.subject import SubjectSampling
from examples.engine import Loop

SEED, GROUPS, GENERATIONS = 1, 96, 4
KEPT = (0.7, 0.5, 0.3)
STAGES = ("start", "later", "last")
BETA = 0.04
WAYS: dict[str, Pruning | TokenPruning] = {
    **{
        f"completions {kept:g}": Pruning(rate=1 - kept, score=advantage_with_uncertainty, budget="tokens", floor=0.05)
        for kept in KEPT
    },
    **{f"cuts {kept:g}": TokenPruning(rate=1 - kept) for kept in KEPT},
    "random prefix 0.5": TokenPruning(rate=0.5, cut_rule=random_prefix),
    "head 0.15": TokenPruning(head_rate=0.85),
    "cuts 0.5, head 0.15": TokenPruning(rate=0.5, head_rate=0.85),
}
"""Ways to leave tokens out, by name and by the share that they keep."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Rollouts of a policy that stands still, and the gradient of each of their S tokens."""

    subject: Subject
    method: Method
    tokens: TokenGradients
    slope_S: Tensor
    """(S,) float64 what multiplies the gradient of each token's log-probability, in the unit of the advantage."""

    @classmethod
    def of(
        cls, policy: Qwen3ForCausalLM, problems: Sequence[ArithmeticProblem], reference: Qwen3ForCausalLM | None = None
    ) -> "Stage":
        """Of groups of the embedded task; with a reference under a KL term to it, which every completion has."""
        sampling = SubjectSampling(
            generations=GENERATIONS, max_new_tokens=MAX_NEW_TOKENS, seed=SEED, limit_seconds=float("inf")
        )
        subject = subject_of(policy, problems, sampling)
        method = replace(METHODS["grpo"], normaliser=DR_GRPO, beta=0.0 if reference is None else BETA)
        advantage_N = method.advantages(subject.rewards, subject.context)
        tokens = token_gradients(subject, method.live(advantage_N))
        slope_NT = -advantage_N[:, None].expand(tokens.known_NT.shape)
        if reference is not None:
            ref_NT = _log_probs(reference, subject)
            slope_NT = slope_NT + BETA * (1 - (ref_NT - tokens.sampled.logp_NT).exp())
            seen = Tokens(
                logp_BT=tokens.sampled.logp_NT,
                old_logp_BT=tokens.sampled.logp_NT,
                advantage_B=advantage_N.float(),
                mask_BT=tokens.sampled.mask_NT.float(),
                ref_logp_BT=ref_NT,
            )
            others = OtherTerms().after(*other_terms(method, seen, torch.ones(len(advantage_N))).tolist())
            subject = replace(subject, context=replace(subject.context, others=others))
        return cls(subject=subject, method=method, tokens=tokens, slope_S=slope_NT[tokens.known_NT].double())

    def weights(self, way: Pruning | TokenPruning, draws: int) -> Tensor:
        """(M, S) weights of the tokens in independent draws."""
        if isinstance(way, TokenPruning):
            return sample_tokens(self.subject, self.tokens, replace(self.method, tokens=way), draws, SEED).weight_MN
        drawn = sample(self.subject, replace(self.method, completions=way), draws, SEED)
        return drawn.weight_MN[:, self.tokens.known_NT.nonzero()[:, 0]]

    def added_variance(self, weight_MS: Tensor) -> dict[str, float]:
        """Over the sum of the completions' squared gradients, with its error; and the share of tokens with loss.

        ``alone`` is what it would be if gradients of tokens were at right angles: the sum over tokens one by one.
        """
        owner_S, slope_S1 = self.tokens.known_NT.nonzero()[:, 0], self.slope_S[:, None]
        whole_NK = torch.zeros(len(self.tokens.known_NT), self.tokens.gradient_SK.shape[1], dtype=torch.float64)
        whole_NK.index_add_(0, owner_S, slope_S1 * self.tokens.gradient_SK)
        off_MK = ((weight_MS - 1) * self.slope_S) @ self.tokens.gradient_SK
        off_M = off_MK.square().sum(1) / whole_NK.square().sum()
        squared_S = (slope_S1 * self.tokens.gradient_SK).square().sum(1)
        alone = (weight_MS - 1).square().mean(0) @ squared_S / whole_NK.square().sum()
        return {
            "value": float(off_M.mean()),
            "error": float(off_M.std()) / len(off_M) ** 0.5,
            "alone": float(alone),
            "kept": float((weight_MS > 0).double().mean()),
        }


def _log_probs(model: Qwen3ForCausalLM, subject: Subject) -> Tensor:
    """(N, T) log-probabilities of a subject's tokens under another policy, 0 where there is none."""
    with torch.no_grad():
        found = [
            log_probs(model, subject.prompt_tokens[row // GENERATIONS], tokens)
            for row, tokens in enumerate(subject.completion_tokens)
        ]
    return pad_sequence(found, batch_first=True)


def variances(quick: bool) -> dict[str, Any]:
    """``added_variance`` at three stages, and under a KL term where the policy has left the start."""
    task, each, groups, draws = (QUICK, 4, 12, 50) if quick else (FULL, 60, GROUPS, 300)
    model, tokenizer = build_model(SEED), build_tokenizer()
    warm_up(model, tokenizer, task, seed=SEED, steps=120 if quick else task.warm_up_steps)
    problems = make_split(SEED, train=192, held_out=0, task=task).train
    trained = copy.deepcopy(model)
    loop = Loop(trained, tokenizer, problems, METHODS["grpo"], seed=SEED, prompts=16, generations=GENERATIONS)
    found: dict[str, Any] = {}
    for stage in STAGES:
        for _ in range(each if found else 0):
            loop.step(4e-4)
        policy = Qwen3ForCausalLM(model.config)
        policy.load_state_dict({name: trained.state_dict()[name] for name in policy.state_dict()})
        found[stage] = at_stage(stage, Stage.of(policy, problems[:groups]), draws)
        if stage != STAGES[0]:
            found[f"{stage}_kl"] = at_stage(f"{stage}, KL", Stage.of(policy, problems[:groups], model), draws)
    return found


def at_stage(name: str, stage: Stage, draws: int) -> dict[str, Any]:
    """Added variance of every way to leave out tokens, by the share that it keeps."""
    live, tokens = int(stage.tokens.known_NT.any(1).sum()), len(stage.slope_S)
    print(f"{name}: {live} completions with a gradient, {tokens} tokens", flush=True)
    rows = {}
    for way, pruning in WAYS.items():
        row = rows[way] = stage.added_variance(stage.weights(pruning, draws))
        told = f"{row['value']:8.4f} +- {row['error']:.4f}, tokens alone {row['alone']:.4f}"
        print(f"  {way:24} {told}  kept {row['kept']:.2f}", flush=True)
    return {f"{kept:g}": rows[f"cuts {kept:g}"]["value"] for kept in KEPT} | {"draws": rows}


PARTS = {
    "added_variance": variances,
    "passes": partial(passes, beta=BETA),
    "left_off": left_off,
}


def main() -> None:
    """Measure, print, and write the JSON file if one is named."""
    parser = options(__doc__, quick="small sizes, in two minutes")
    parser.add_argument(
        "--part", choices=PARTS, action="append", help="only this part, may be repeated; a file keeps its others"
    )
    arguments: argparse.Namespace = parser.parse_args()
    torch.set_num_threads(1)
    found = earlier(arguments.output)
    for name in arguments.part or PARTS:
        print(name)
        found[name] = PARTS[name](arguments.quick) | {"environment": environment(seeds=[SEED])}
        if arguments.output is not None:
            write_json(arguments.output, found)


if __name__ == "__main__":
    main()
