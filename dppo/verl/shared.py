"""Micro-batches whose rows share prompts. Tensors and lists, without verl.

A micro-batch is one row of segments (``dppo.packing.rows``): it has each prompt once. All ranks have equally many,
because each forward pass of FSDP is a collective operation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from dppo.packing import Row, build_row, plan_rows, row_tokens


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """B rows of a rank in the host's memory, as an engine gets them."""

    prompts: Sequence[Tensor]
    """B tensors (P_k,) of token ids, P_k >= 1."""
    completions: Sequence[Tensor]
    """B tensors (C_k,) of token ids, C_k >= 1."""
    group_B: Sequence[int]
    """Numbers that are equal for equal prompts."""

    @classmethod
    def of(cls, prompts: Sequence[Tensor], completions: Sequence[Tensor]) -> "Sequences":
        """Rows are of one group if their prompts have the same tokens."""
        numbers: dict[tuple[int, ...], int] = {}
        group_B = [numbers.setdefault(tuple(prompt.tolist()), len(numbers)) for prompt in prompts]
        return cls(prompts=prompts, completions=completions, group_B=group_B)

    @property
    def sizes(self) -> tuple[Sequence[int], list[int], list[int]]:
        """Group, prompt tokens and completion tokens of each row."""
        return self.group_B, [*map(len, self.prompts)], [*map(len, self.completions)]

    def tokens(self, place: Sequence[int]) -> int:
        """Tokens of a forward pass over the rows of a micro-batch: each prompt once."""
        return row_tokens(*self.sizes, [place])

    def row(self, place: Sequence[int]) -> Row:
        """The rows of a micro-batch as one row of segments, which scores every completion token."""
        prompts, completions = ([values[k] for k in place] for values in (self.prompts, self.completions))
        return build_row(prompts, completions, [self.group_B[k] for k in place])

    def micro_batches(self, max_tokens: int, largest: Callable[[int], int] = int) -> list[list[int]]:
        """Rows of each micro-batch of at most ``max_tokens``, the longest first; rows of a group are neighbours.

        A group is split if it does not fit, or if other ranks need more micro-batches than this one. ``largest`` is the
        largest number of any rank, whose ranks all call it once and have equally many rows.
        """
        places = plan_rows(*self.sizes, max_tokens)
        for _ in range(largest(len(places)) - len(places)):
            place = max((place for place in places if len(place) > 1), key=self.tokens)
            cut = self._middle(place)
            places.remove(place)
            places += [place[:cut], place[cut:]]
        return sorted(places, key=self.tokens, reverse=True)

    def _middle(self, place: Sequence[int]) -> int:
        """The cut nearest to half of the tokens: between two groups if there are several."""
        cuts = range(1, len(place))
        between = [cut for cut in cuts if self.group_B[place[cut - 1]] != self.group_B[place[cut]]]
        return min(between or cuts, key=lambda cut: abs(self.tokens(place[:cut]) - self.tokens(place[cut:])))
