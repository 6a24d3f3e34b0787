"""Generations as the lines of ``prompts.jsonl`` and ``completions.jsonl``."""

from typing import Any

from torch import Tensor

from dppo.runs.folder import CompletionLine, PromptLine
from dppo.trl.records import WHY, Generation


def prompt_line(generation: Generation) -> PromptLine:
    """What became of each candidate prompt; empty lists where candidates are not known."""
    if generation.candidate_P is None or generation.prob_P is None or generation.keep_P is None:
        candidates, probability, kept = [], [], []
    else:
        candidates = generation.candidate_P.tolist()
        probability, kept = generation.prob_P.tolist(), generation.keep_P.tolist()
    means = _mean_rewards(generation)
    return PromptLine(
        step=generation.step,
        generation=generation.number,
        epoch=generation.epoch,
        rows=[_row(row) for row in candidates],
        probability=probability,
        rolled_out=kept,
        mean_reward=[means[row].pop(0) if keep else None for row, keep in zip(candidates, kept, strict=True)],
    )


def _mean_rewards(generation: Generation) -> dict[int, list[float]]:
    """Mean reward of every group of a row, in order: a row may be rolled out twice where rounds cross an epoch."""
    means: dict[int, list[float]] = {}
    reward_Q = generation.reward_N.view(-1, generation.group).nanmean(1)
    if generation.row_Q is not None:
        for row, reward in zip(generation.row_Q.tolist(), reward_Q.tolist(), strict=True):
            means.setdefault(row, []).append(reward)
    return means


def completion_lines(generation: Generation, most: int, tokenizer: Any) -> list[CompletionLine]:
    """The first whole groups of this process, at most ``most`` completions, but one group where that is not 0.

    The tokenizer turns ids into text; the prompt is shown as the model saw it, special tokens included.
    """
    size, first = generation.group, generation.first_row
    skip = -first % size  # ranks may share a group
    groups = min(max(most // size, min(most, 1)), (len(generation.prompt_ids) - skip) // size)
    lines = []
    for row in range(skip, skip + groups * size):
        place = first + row
        prompt = _text(tokenizer, generation.prompt_ids[row], generation.prompt_mask[row], special=True)
        made = _text(tokenizer, generation.completion_ids[row], generation.completion_mask[row], special=False)
        lines.append(
            CompletionLine(
                step=generation.step,
                row=None if generation.row_Q is None else _row(int(generation.row_Q[place // size])),
                group=place // size,
                prompt=prompt,
                completion=made,
                reward=float(generation.reward_N[place]),
                advantage=float(generation.advantage_N[place]),
                probability=float(generation.prob_N[place]),
                weight=float(generation.weight_N[place]),
                kept=bool(generation.weight_N[place] > 0),
                why=WHY[int(generation.why_N[place])],
                tokens=int(generation.tokens_N[place]),
            )
        )
    return lines


def _row(row: int) -> int | None:
    return row if row >= 0 else None


def _text(tokenizer: Any, ids_T: Tensor, mask_T: Tensor, *, special: bool) -> str:
    return tokenizer.decode(ids_T[mask_T.bool()], skip_special_tokens=not special)
