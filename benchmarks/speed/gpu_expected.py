"""Forward passes and tokens that a step needs, computed from lengths alone, to compare with those counted."""

from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.speed.gpu_watch import Work
from dppo.packing import plan_rows, row_tokens
from dppo_lab.runs.generation import Generation
from dppo_lab.runs.watch import Recorder

Lengths = Sequence[tuple[int, Sequence[int]]]
"""Tokens of each prompt, and of each of its completions."""


class KeptRows(Recorder):
    """Keeps which completions each generation trains on."""

    def __init__(self) -> None:
        self.kept: list[tuple[list[int], list[bool]]] = []
        """Dataset row (N,) of each completion of a generation, and True (N,) if it is trained on."""

    def generation(self, generation: Generation) -> None:
        """Called by the trainer after the draws of a generation."""
        rows = generation.row_Q.repeat_interleave(generation.size_Q).tolist()
        self.kept.append((rows, (generation.weight_N > 0).tolist()))


def work_of_rows(
    lengths: Lengths, rows: Sequence[int], kept: Sequence[bool], *, row_tokens_most: int, reference: bool
) -> Work:
    """Passes and tokens of the kept completions in rows of at most ``row_tokens_most`` tokens: no row is empty."""
    place: dict[int, int] = {}
    chosen: list[tuple[int, int, int]] = []
    for row, keep in zip(rows, kept, strict=True):
        prompt, completions = lengths[row]
        nth = place[row] = place.get(row, -1) + 1
        if keep:
            chosen.append((row, prompt, completions[nth]))
    group, prompts, completions = ([each[part] for each in chosen] for part in range(3))
    planned = plan_rows(group, prompts, completions, row_tokens_most)
    passes, tokens = len(planned), row_tokens(group, prompts, completions, planned)
    return _work(passes, tokens, reference)


def work_of_padding(lengths: Lengths, batch_size: int, *, reference: bool) -> Work:
    """Passes and tokens of TRL's step over these prompts: every completion, as wide as the widest."""
    count = sum(len(completions) for _, completions in lengths)
    width = max(prompt for prompt, _ in lengths) + max(max(completions) for _, completions in lengths)
    return _work(count // batch_size, count * width, reference)


def _work(passes: int, tokens: int, reference: bool) -> Work:
    again = {"passes_no_grad": passes, "tokens_no_grad": tokens} if reference else {}
    return Work(passes=passes, tokens=tokens, **again)


def differences(counted: Sequence[Work], needed: Sequence[Work]) -> list[str]:
    """Differences in words between counted work and needed work, step by step; empty if they are equal."""
    found = []
    for step, (one, other) in enumerate(zip(counted, needed, strict=True)):
        for name, value in asdict(one).items():
            if value != (wanted := asdict(other)[name]):
                found.append(f"timed step {step}: {name} {value:,}, needed {wanted:,}")
    return found
