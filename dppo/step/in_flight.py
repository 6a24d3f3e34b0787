"""Prompts that are requested ahead of the update that trains on them.

Groups come back in any order, and an update may train on groups of several blocks. So each prompt carries the
probability of its draw and the size of its block, both fixed when it was requested.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dppo.errors import CheckpointError, ShapeError
from dppo.step.records import StepPrompts
from dppo.types import Block, Candidates, Draw

OPTIONS = {
    "prompts": "data.train_batch_size",
    "generations": "actor_rollout_ref.rollout.n",
    "updates": "parameter_sync_step",
}
"""verl's options that fix the weights of prompts in flight."""


@dataclass(frozen=True, kw_only=True)
class Requested:
    """Prompts of a step that are on their way to the samplers."""

    prompts: StepPrompts
    uid_Q: list[str]
    """Engine's name of each prompt, by which its completions come back."""
    size_Q: list[int]
    """Completions requested of each prompt."""

    def largest_share(self, shares: int) -> int:
        """Completions of the largest of ``shares`` shares of a pass."""
        if (part_Q := self.prompts.part_Q) is None:  # dealt completion by completion
            return -(-sum(self.size_Q) // shares)
        return int(torch.bincount(part_Q, torch.tensor(self.size_Q), minlength=shares).max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A prompt of a block as it was drawn, in flight or left out. ``row`` to ``seen`` as in Draw and Candidates."""

    row: int
    prob: float
    weight: float
    signal: float
    tokens: float
    seen: bool
    uid: str = ""
    """Engine's name of the prompt; empty if it was left out."""
    size: int = 0
    """Completions requested; 0 if it was left out."""
    block: int
    """Prompts of its block before the draw: its share of a sum is one over this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A block with updates that have not been made."""

    kept: int
    """Prompts of it that were requested."""
    left_out: tuple[Flight, ...]
    updates_made: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """Prompts that a run has requested and not yet trained on. Each method returns a changed copy."""

    prompts: int
    """P, prompts of a step without pruning."""
    generations: int
    """G, completions of each."""
    updates: int = 1
    """S, updates that a block is split over; each is a mean over P / S prompts."""
    asked: int = 0
    """Blocks requested since the run began."""
    flights: tuple[Flight, ...] = ()
    """In the order of the requests."""
    due: tuple[Due, ...] = ()
    """Blocks in the order of the requests. An update takes as many groups as its part of the oldest block has."""

    @property
    def groups(self) -> int:
        """Groups that the next update waits for, fixed when their block was requested."""
        if not self.due:
            raise ShapeError(
                "an update has no block to take groups of. Add one: in_flight = in_flight.after_block(prompts, uids)."
            )
        return len(self._part(range(self.due[0].kept)))

    @property
    def uids(self) -> list[str]:
        """Engine's names of all prompts in flight."""
        return [flight.uid for flight in self.flights]

    def _part(self, items: Sequence[Any]) -> Sequence[Any]:
        """Items of the oldest block for its next update: they are spread evenly over its updates."""
        made = self.due[0].updates_made
        return items[len(items) * made // self.updates : len(items) * (made + 1) // self.updates]

    def after_block(self, prompts: StepPrompts, uid_Q: Sequence[str]) -> "InFlight":
        """Add a block whose kept prompts, at least one for each update, were requested under the names ``uid_Q``."""
        draw = prompts.draw
        records = _records(prompts.candidates, prob=draw.prob_N, weight=draw.weight_N)
        drawn = [Flight(**record, block=len(records)) for record in records]
        kept, left_out = ([drawn[index] for index in side.nonzero()[:, 0]] for side in (draw.keep_N, ~draw.keep_N))
        if len(kept) < self.updates:
            few = f"{len(kept)} prompts of a block that is split over {self.updates} updates: each needs one"
            raise ShapeError(f"{few}. Draw a multiple: session.prompts(multiple={self.updates}).")
        sizes = [self.generations] * len(kept) if prompts.size_Q is None else prompts.size_Q.tolist()
        named = zip(kept, uid_Q, sizes, strict=True)
        flights = (*self.flights, *(replace(flight, uid=uid, size=size) for flight, uid, size in named))
        due = (*self.due, Due(kept=len(kept), left_out=tuple(left_out)))
        return replace(self, asked=self.asked + 1, flights=flights, due=due)

    def after_replacing(self, gone: Sequence[str], others: Candidates, uid_Q: Sequence[str]) -> "InFlight":
        """Put ``others``, named ``uid_Q``, in place of the prompts named ``gone``, which the engine has dropped."""
        # A replacement is requested only if the first prompt was: it takes over its probability, size and block.
        news = zip(gone, uid_Q, _records(others), strict=True)
        new = {old: record | {"uid": uid} for old, uid, record in news}
        return replace(self, flights=tuple(replace(each, **new.get(each.uid, {})) for each in self.flights))

    def after_update(self, uids: Collection[str]) -> tuple[Requested, "InFlight"]:
        """Take out the groups that an update waits for, by the engine's names; return their prompts and the rest."""
        taken = self.taken(uids)  # in the order of the requests: draws do not depend on which came back first
        if len(taken) != self.groups:
            raise ShapeError(f"{len(taken)} groups came back for an update that is made of {self.groups}.")
        block, names = self.due[0], set(uids)
        requested = Requested(
            prompts=self._step(taken, self._part(block.left_out)),
            uid_Q=[flight.uid for flight in taken],
            size_Q=[flight.size for flight in taken],
        )
        made = block.updates_made + 1
        rest = self.due[1:] if made == self.updates else (replace(block, updates_made=made), *self.due[1:])
        return requested, replace(self, flights=tuple(f for f in self.flights if f.uid not in names), due=rest)

    def taken(self, uids: Collection[str]) -> list[Flight]:
        """Prompts of some groups in the order of the requests; ``ShapeError`` if one is not in flight."""
        names = set(uids)
        if unknown := sorted(names - set(self.uids)):
            raise ShapeError(f"groups {unknown[:3]} came back, and no such prompt is in flight.")
        return [flight for flight in self.flights if flight.uid in names]

    def _step(self, taken: Sequence[Flight], left_out: Sequence[Flight]) -> StepPrompts:
        """Prompts of an update. Its sum is over P / S prompts; a group's share of it is that of its own block."""

        def column(name: str, of: Sequence[Flight] = (*taken, *left_out)) -> Tensor:
            return torch.from_numpy(np.array([getattr(flight, name) for flight in of]))

        found = {f"{name}_P": column(name) for name in ("row", "signal", "tokens", "seen")}
        keep_P = torch.arange(len(taken) + len(left_out)) < len(taken)
        draw = Draw(keep_N=keep_P, prob_N=column("prob"), weight_N=column("weight"))
        size_Q, share_Q = column("size", taken), self.prompts / column("block", taken).double()
        weight_Q = draw.weight_N[keep_P] * share_Q * self.generations / size_Q
        block, prompts = Block(candidates=Candidates(**found), draw=draw), self.prompts // self.updates
        return StepPrompts.of(block, weight_Q, prompts * self.generations, size_Q=size_Q)

    def saved(self, identities: np.ndarray) -> dict[str, Any]:
        """All fields as JSON values, with the hash of each prompt in ``identities`` (rows,), -1 for a row beyond it."""
        hashes = [int(identities[each.row]) if each.row < len(identities) else -1 for each in self.flights]
        return asdict(self) | {"identities": hashes}

    def resumed(self, saved: Mapping[str, Any], identities: np.ndarray) -> "InFlight":
        """State of ``saved()`` for a run with the same numbers, whose dataset has the prompts in the same rows."""
        flights = _flights(saved["flights"])
        blocks = tuple(Due(**each | {"left_out": _flights(each["left_out"])}) for each in saved["due"])
        found = replace(self, asked=saved["asked"], flights=flights, due=blocks)
        changed = [
            f"{option}={getattr(self, name)} where it has {saved[name]}"
            for name, option in OPTIONS.items()
            if flights and getattr(self, name) != saved[name]
        ]
        have = f"the checkpoint has {len(flights)} prompts in flight, whose"
        if changed:
            fixed = f"{have} weights were fixed when they were requested, and this run has {', '.join(changed)}"
            raise CheckpointError(f"{fixed}. Resume with the numbers of the checkpoint.")
        if saved["identities"] != found.saved(identities)["identities"]:
            others = f"{have} rows are other prompts in this dataset: these would be requested in their place"
            raise CheckpointError(f"{others}. Resume with the dataset of the checkpoint, in its order.")
        return found


def _records(found: Candidates, **more: Tensor) -> list[dict[str, Any]]:
    """Fields of ``Flight`` of each prompt, those of ``more`` included."""
    columns = {"row": found.row_P, "signal": found.signal_P, "tokens": found.tokens_P, "seen": found.seen_P} | more
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _flights(saved: Sequence[Mapping[str, Any]]) -> tuple[Flight, ...]:
    return tuple(Flight(**each) for each in saved)
