"""What leaving out tokens costs in variance and saves in time: true gradients, a training step, a head of real size.

python -m benchmarks.speed.tokens [--quick] [--output FILE.json]

``added_variance`` is ``E|g_drawn - g|^2`` over the sum of the completions' squared gradients, on the embedded task with
groups of 4, at the start, after 60 and after 120 steps; the later two also under a KL term to the start (k3, beta
0.04), which gives every completion a gradient. ``step`` compares a training step on the same completions, in turns.
``head`` is one forward and backward of a model with a vocabulary of 152k: all labels by a plain head, all by the fused
one, and 15% of them.
"""

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from answer_judge.files import write_json
from benchmarks.shared import in_turns, options, spread
from benchmarks.speed.cases import highest_resident_mib, in_own_process, qwen3
from benchmarks.speed.step import QUICK_SETTING, Setting, build_bench, ours, run_backend
from dppo.environment import environment
from dppo.evidence import OtherTerms
from dppo.methods import METHODS
from dppo.objective import DR_GRPO, Tokens
from dppo.packing.head import add_scored_head
from dppo.packing.rows import UNSCORED
from dppo.pruning import SampledTokens, TokenPruning, advantage_with_confidence, confidence, random_prefix
from dppo.pruning.prune import Pruning
from dppo.rng import Purpose, generator, torch_generator
from dppo.step import other_terms
from dppo.types import Completions
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer, encode_questions
from dppo_lab.demo.decode import Rollout, sample
from dppo_lab.demo.evaluate import MAX_NEW_TOKENS, rewards_of
from dppo_lab.demo.task import FULL, QUICK, make_split
from dppo_lab.demo.warmup import warm_up
from examples.engine import Loop

SEED, GROUPS, GENERATIONS, CHUNK = 1, 96, 4, 48
VOCABULARY = 151_936
"""Words of Qwen3."""
KEPT = (0.7, 0.5, 0.3)
STAGES = ("start", "later", "last")
BETA = 0.04
Draw = Callable[[np.random.Generator], tuple[Tensor, float]]
"""(N, T) weights of tokens, and the share of the tokens that is trained on."""


class Sampled:
    """Completions with a gradient of some groups of the embedded task, under a policy; with a reference a KL term."""

    def __init__(self, model: Qwen3ForCausalLM, problems: Any, reference: Qwen3ForCausalLM | None = None) -> None:
        self.model, tokenizer = model, build_tokenizer()
        prompts = encode_questions(tokenizer, [problem.question for problem in problems])
        rng = torch_generator(SEED, Purpose.ROLLOUT)
        made: Rollout = sample(model, prompts, rng, samples=GENERATIONS, max_new_tokens=MAX_NEW_TOKENS)
        reward_PG = rewards_of(made, tokenizer, [p for p in problems for _ in range(GENERATIONS)]).view(-1, GENERATIONS)
        scaled_PG = (reward_PG - reward_PG.mean(1, keepdim=True)) / (reward_PG.std(1, keepdim=True) + 1e-4)
        live = (torch.ones_like(scaled_PG) if reference else scaled_PG).flatten().nonzero()[:, 0]
        self.advantage_N = scaled_PG.flatten()[live].double()
        self.prompts = [prompts[int(row) // GENERATIONS] for row in live]
        self.group_N, self.length_N, self.token_NT = live // GENERATIONS, made.length_N[live], made.token_NT[live]
        self.tokens = SampledTokens(logp_NT=made.logp_NT[live], mask_NT=made.mask_NT[live].bool())
        self.slope_NT, self.scale_N = self.advantage_N[:, None] * self.tokens.mask_NT, self.advantage_N
        if reference is not None:
            self._add_kl(reference)
        self.moment_NT = self.tokens.moments(self.scale_N)

    def _add_kl(self, reference: Qwen3ForCausalLM) -> None:
        """Each token's slope with its k3 term, and the size of that term as scores learn it."""
        ref_NT = torch.zeros_like(self.tokens.logp_NT)
        with torch.no_grad():
            for rows in self._chunks(torch.ones(len(self.length_N))):
                for row, logp_T in zip(rows, self._log_probs(reference, rows), strict=True):
                    ref_NT[row, : len(logp_T)] = logp_T
        logp_NT, mask_NT = self.tokens.logp_NT, self.tokens.mask_NT
        self.slope_NT = self.slope_NT - BETA * (1 - (ref_NT - logp_NT).exp()) * mask_NT
        seen = Tokens(
            logp_BT=logp_NT,
            old_logp_BT=logp_NT,
            advantage_B=self.advantage_N.float(),
            mask_BT=mask_NT.float(),
            ref_logp_BT=ref_NT,
        )
        method = replace(METHODS["dppo"], normaliser=DR_GRPO, beta=BETA)
        other = OtherTerms().after(*other_terms(method, seen, torch.ones(len(logp_NT))).tolist()).advantage
        self.scale_N = (self.advantage_N.square() + (other or 0.0) ** 2).sqrt()

    def _chunks(self, chosen_N: Tensor) -> list[list[int]]:
        """Numbers of some completions, those of about one length together."""
        rows = sorted(chosen_N.nonzero()[:, 0].tolist(), key=lambda row: int(self.length_N[row]))
        return [rows[at : at + CHUNK] for at in range(0, len(rows), CHUNK)]

    def _log_probs(self, model: Qwen3ForCausalLM, rows: list[int]) -> list[Tensor]:
        """Of the tokens of some completions, (T,) each."""
        ids = [self.prompts[row] + self.token_NT[row, : self.length_N[row]].tolist() for row in rows]
        input_BT = torch.zeros(len(rows), max(map(len, ids)), dtype=torch.long)
        for place, sequence in enumerate(ids):
            input_BT[place, : len(sequence)] = torch.tensor(sequence)
        logp_BTV = model(input_ids=input_BT, use_cache=False).logits[:, :-1].log_softmax(-1)
        logp_BT = logp_BTV.gather(-1, input_BT[:, 1:, None])[..., 0]
        ends = [len(sequence) - 1 for sequence in ids]
        return [
            logp_T[end - int(self.length_N[row]) : end] for row, end, logp_T in zip(rows, ends, logp_BT, strict=True)
        ]

    def gradient(self, weight_NT: Tensor) -> Tensor:
        """Of the sum of weighted token losses, float64; completions without a weight are not forwarded."""
        self.model.zero_grad()
        factor_NT = (self.slope_NT * weight_NT).float()
        for rows in self._chunks((weight_NT > 0).any(1)):
            losses = zip(rows, self._log_probs(self.model, rows), strict=True)
            torch.stack([logp_T @ factor_NT[row, : len(logp_T)] for row, logp_T in losses]).sum().backward()
        zero = torch.zeros(1)
        parts = [zero if p.grad is None else p.grad.flatten() for p in self.model.parameters()]
        return torch.cat(parts).double()

    def completions(self, kept: float, rng: np.random.Generator) -> tuple[Tensor, float]:
        """Whole completions by their confidence scores, for a share of the tokens."""
        level = Pruning(rate=1 - kept, score=advantage_with_confidence, budget="tokens", floor=0.05)
        draw = level.draw(
            Completions(
                advantage_N=self.scale_N,
                tokens_N=self.length_N,
                group_N=self.group_N,
                live_N=torch.ones(len(self.length_N), dtype=torch.bool),
                confidence_N=confidence(self.tokens.logp_NT, self.tokens.mask_NT),
            ),
            rng,
        )
        return draw.weight_N[:, None] * self.tokens.mask_NT, float(self.length_N[draw.keep_N].sum())

    def drawn(self, level: TokenPruning, rng: np.random.Generator) -> tuple[Tensor, float]:
        """Tokens by a level of token pruning."""
        draw = level.draw(self.moment_NT, self.tokens.span_NT, rng)
        share = (draw.weight_NT > 0).sum() if not level.rate else draw.length_N.sum()
        return draw.weight_NT, float(share)


def added_variance(found: Sampled, draws: dict[str, Draw], repeats: int) -> dict[str, dict[str, float]]:
    """True added variance over the sum of squared gradients of completions, and the share of tokens kept."""
    full = found.gradient(found.tokens.mask_NT.double())
    one_NN, total = torch.eye(len(found.length_N)), int(found.length_N.sum())
    base = sum(float(found.gradient(row_N[:, None] * found.tokens.mask_NT).square().sum()) for row_N in one_NN)
    made = {}
    for name, draw in draws.items():
        off, kept = [], []
        for repeat in range(repeats):
            weight_NT, tokens = draw(generator(SEED, Purpose.CHECK, repeat))
            off.append(float((found.gradient(weight_NT) - full).square().sum()) / base)
            kept.append(tokens / total)
        error = float(np.std(off, ddof=1) / len(off) ** 0.5)
        made[name] = {"value": float(np.mean(off)), "error": error, "kept": float(np.mean(kept))}
    return made


def variances(quick: bool) -> dict[str, Any]:
    """``added_variance`` at three stages, and under a KL term where the policy has left the start."""
    task, each, repeats = (QUICK, 4, 3) if quick else (FULL, 60, 12)
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
        found[stage] = at_stage(stage, Sampled(policy, problems[:GROUPS]), repeats)
        if stage != STAGES[0]:
            found[f"{stage}_kl"] = at_stage(f"{stage}, KL", Sampled(policy, problems[:GROUPS], model), repeats)
    return found


def at_stage(stage: str, batch: Sampled, repeats: int) -> dict[str, Any]:
    """Added variance of every way to leave out tokens, by the share that it keeps."""
    draws: dict[str, Draw] = {}
    for kept in KEPT:
        draws[f"completions {kept:g}"] = partial(batch.completions, kept)
        draws[f"cuts {kept:g}"] = partial(batch.drawn, TokenPruning(rate=1 - kept))
    draws["random prefix 0.5"] = partial(batch.drawn, TokenPruning(rate=0.5, cut_rule=random_prefix))
    draws["head 0.15"] = partial(batch.drawn, TokenPruning(head_rate=0.85))
    draws["cuts 0.5, head 0.15"] = partial(batch.drawn, TokenPruning(rate=0.5, head_rate=0.85))
    rows = added_variance(batch, draws, repeats)
    print(f"{stage}: {len(batch.length_N)} completions with a gradient, {int(batch.length_N.sum())} tokens", flush=True)
    for name, row in rows.items():
        print(f"  {name:24} {row['value']:8.4f} +- {row['error']:.4f}  kept {row['kept']:.2f}", flush=True)
    return {f"{kept:g}": rows[f"cuts {kept:g}"]["value"] for kept in KEPT} | {"draws": rows}


def steps(quick: bool) -> dict[str, Any]:
    """Seconds of forward and backward of a step, each contestant on the same completions."""
    auto: dict[str, Any] = {"loss_type": "dr_grpo", "scale_rewards": "none"}
    contestants = [
        ours(name="completions auto", options=auto),
        ours(name="cuts 0.5", options={**auto, "token_prune_rate": 0.5}),
        ours(name="cuts 0.7", options={**auto, "token_prune_rate": 0.7}),
        ours(name="cuts auto", options={**auto, "token_prune_rate": "auto"}),
        ours(name="cuts 0.5, head 0.15", options={**auto, "token_prune_rate": 0.5, "head_prune_rate": 0.85}),
    ]
    with tempfile.TemporaryDirectory() as folder:
        setting = QUICK_SETTING if quick else Setting(prompts=16, generations=8, repetitions=12)
        taken = run_backend(build_bench(Path(folder), setting), contestants, "replayed")
    first, found = taken["completions auto"], {}
    for name, own in taken.items():
        pairs = zip(own, first, strict=True)
        ratio = [a.phases["forward_backward"] / b.phases["forward_backward"] for a, b in pairs]
        plan = [step.phases["prune"] / step.seconds for step in own]
        seconds = float(np.median([step.phases["forward_backward"] for step in own]))
        found[name] = {
            **spread(ratio, "ratio_"),
            "forward_backward_s": seconds,
            "tokens": float(np.mean([step.tokens for step in own])),
            "plan_share": float(np.median(plan)),
        }
        print(
            f"  {name:24} forward and backward {seconds:.4f} s, {found[name]['ratio_median']:.2f} of completions auto"
        )
    return {"forward_backward_ratio": found["cuts 0.5"]["ratio_median"], "contestants": found}


HEADS = ("plain", "fused", "sampled")


def head_model(quick: bool) -> Qwen3ForCausalLM:
    """Random weights, a vocabulary of 152k."""
    torch.manual_seed(SEED)
    hidden, layers = (128, 2) if quick else (512, 8)
    return Qwen3ForCausalLM(qwen3(layers, hidden, VOCABULARY))


def head_step(model: Qwen3ForCausalLM, kind: str, tokens: int) -> float:
    """CPU seconds of a forward and backward of one sequence whose labels are all tokens, or 15% of them."""
    rng = torch.Generator().manual_seed(SEED)
    ids = torch.randint(0, VOCABULARY, (1, tokens), generator=rng)
    labels = torch.cat([ids[:, 1:], torch.full((1, 1), UNSCORED)], 1)
    if kind == "sampled":
        labels = labels.masked_fill(torch.rand(labels.shape, generator=rng) > 0.15, UNSCORED)
    start = time.process_time()
    if kind == "plain":
        logits = model(input_ids=ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[0], labels[0], ignore_index=UNSCORED)
    else:
        forward: Any = model
        loss = -forward(input_ids=ids, shift_labels=labels, fused_lm_head=True).log_probs.sum() / tokens
    loss.backward()
    return time.process_time() - start


def head_memory(kind: str, tokens: int, quick: bool) -> float:
    """MiB that the step adds at its peak to a process with model and gradients; to be called in a fresh process."""
    torch.set_num_threads(1)
    model = head_model(quick)
    if kind != "plain":
        add_scored_head(model)
    head_step(model, kind, 16)
    before = highest_resident_mib()
    head_step(model, kind, tokens)
    return highest_resident_mib() - before


def heads(quick: bool) -> dict[str, Any]:
    """Time in turns and peak memory, each over today's fused head."""
    tokens = 256 if quick else 1536
    plain = head_model(quick)
    fused = copy.deepcopy(plain)
    add_scored_head(fused)
    runs = {kind: partial(head_step, plain if kind == "plain" else fused, kind, tokens) for kind in HEADS}
    taken = {kind: values[1:] for kind, values in in_turns(runs, 2 if quick else 6).items()}
    memory = {kind: in_own_process(head_memory, kind, tokens, quick) for kind in HEADS}
    for kind in HEADS:
        print(f"  {kind:8} {np.median(taken[kind]):.2f} CPU s, {memory[kind]:.0f} MiB")
    parameters = sum(p.numel() for p in plain.parameters())
    return {
        "time_ratio": float(np.median(np.divide(taken["sampled"], taken["fused"]))),
        "memory_ratio": memory["sampled"] / memory["fused"],
        "cpu_seconds": {kind: spread(values) for kind, values in taken.items()},
        "memory_mib": memory,
        "parameters": parameters,
        "tokens": tokens,
    }


PARTS = {"added_variance": variances, "step": steps, "head": heads}


def main() -> None:
    """Measure, print, and write the JSON file if one is named."""
    parser = options(__doc__, quick="small sizes, in two minutes")
    parser.add_argument(
        "--part", choices=PARTS, action="append", help="only this part, may be repeated; a file keeps its others"
    )
    arguments: argparse.Namespace = parser.parse_args()
    torch.set_num_threads(1)
    known: Path | None = arguments.output if arguments.output is not None and arguments.output.exists() else None
    found: dict[str, Any] = json.loads(known.read_text(encoding="utf-8")) if known else {}
    for name in arguments.part or PARTS:
        print(name)
        found[name] = PARTS[name](arguments.quick) | {"environment": environment(seeds=[SEED])}
        if arguments.output is not None:
            write_json(arguments.output, found)


if __name__ == "__main__":
    main()
