"""Prompts that are asked for ahead of the step that trains on them: what travels with each until it comes back.

A block of prompts is drawn when it is asked for. Its groups come back in any order and may be trained in several
updates, those of other blocks among them. So each prompt takes along the probability with which it was asked and the
size of its block, which is fixed before the draw: with these its weight is the same in whichever update takes it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from dppo.context import StepContext
from dppo.errors import CheckpointError, ShapeError
from dppo.step.records import StepPrompts
from dppo.typed import check_fields
from dppo.types import Candidates, Draw


@dataclass(frozen=True, kw_only=True)
class Requested:
    """The prompts of a step, once they are on their way to the samplers."""

    prompts: StepPrompts
    uid_Q: list[str]
    """The engine's name of each, by which its completions come back."""
    size_Q: list[int]
    """Completions asked of each."""

    @property
    def completions(self) -> int:
        """N, completions of all of them."""
        return sum(self.size_Q)

    def largest_share(self, shares: int) -> int:
        """Completions of the largest of so many shares of a pass: of the prompts drawn for it, or dealt to it."""
        if (part_Q := self.prompts.part_Q) is None:
            return -(-self.completions // shares)
        return int(torch.bincount(part_Q, torch.tensor(self.size_Q), minlength=shares).max())


class Checked:
    """A record of a checkpoint: its fields are of the types that they should have."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self, "the state of another checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Checked):
    """A prompt of a block as it was before the draw, and the probability that it had in it."""

    row: int
    """Of the dataset."""
    prob: float
    """With which it was asked, in (0, 1]."""
    weight: float
    """Of the draw, by which its group is multiplied; 0 where it was left out."""
    signal: float
    """What history expected of its gradient, >= 0, any unit."""
    tokens: float
    """What history expected of the length of its completions, > 0."""
    seen: bool
    """Whether it had a history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight(Checked):
    """A prompt that was asked for and has not been trained on."""

    uid: str
    """the engine's name of it."""
    candidate: Candidate
    size: int
    """Completions asked of it, >= 1."""
    block: int
    """Prompts of the block that it was drawn from, fixed before the draw: what its share in a sum is one over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due(Checked):
    """A block whose updates have not all been made."""

    kept: int
    """Prompts of it that were asked for."""
    left_out: tuple[Candidate, ...]
    updates_made: int = 0
    """Updates that had their part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """What a run has asked for and not yet trained on. Every method gives another one."""

    prompts: int
    """P, of a step where nothing is pruned."""
    generations: int
    """G, completions of each."""
    updates: int = 1
    """S, updates that a block is split over; each is a mean over P / S prompts."""
    asked: int = 0
    """Blocks that were asked for since the run began."""
    flights: tuple[Flight, ...] = ()
    """In the order of the asking."""
    due: tuple[Due, ...] = ()
    """Blocks in the order of the asking: an update takes as many groups as its part of the oldest has."""

    @property
    def groups(self) -> int:
        """Groups that the next update waits for, fixed when their block was asked for.

        Raises:
            ShapeError: no block is due.
        """
        if not self.due:
            raise ShapeError("an update has no block to take groups of: every update needs one that was asked for.")
        return _part(self.due[0].kept, self.due[0].updates_made, self.updates)

    @property
    def _due_groups(self) -> int:
        """Groups that all updates take that are due: as many as are in flight."""
        return sum(
            _part(block.kept, number, self.updates)
            for block in self.due
            for number in range(block.updates_made, self.updates)
        )

    @property
    def uids(self) -> list[str]:
        """the engine's names of all prompts in flight."""
        return [flight.uid for flight in self.flights]

    def after_block(self, prompts: StepPrompts, uid_Q: Sequence[str]) -> "InFlight":
        """With one more block, whose prompts were asked for; ``uid_Q`` are the engine's names of those that were drawn.

        Raises:
            ShapeError: fewer prompts were drawn than the block has updates: one of these would train on nothing.
        """
        draw = prompts.draw
        columns = zip(_records(prompts.candidates), draw.prob_N.tolist(), draw.weight_N.tolist(), strict=True)
        drawn = [Candidate(**record, prob=prob, weight=weight) for record, prob, weight in columns]
        kept, left_out = ([drawn[row] for row in side.nonzero()[:, 0]] for side in (draw.keep_N, ~draw.keep_N))
        if len(kept) < self.updates:
            raise ShapeError(
                f"{len(kept)} prompts of a block that is split over {self.updates} updates: each needs one. Draw a "
                f"multiple: source.block(method, number, generations={self.generations}, multiple={self.updates})."
            )
        sizes = [self.generations] * len(kept) if prompts.size_Q is None else prompts.size_Q.tolist()
        flights = [
            Flight(uid=uid, candidate=candidate, size=size, block=len(drawn))
            for uid, candidate, size in zip(uid_Q, kept, sizes, strict=True)
        ]
        return replace(
            self,
            asked=self.asked + 1,
            flights=(*self.flights, *flights),
            due=(*self.due, Due(kept=len(kept), left_out=tuple(left_out))),
        )

    def after_replacing(self, gone: Sequence[str], others: Candidates, uid_Q: Sequence[str]) -> "InFlight":
        """With other prompts in the place of some that the engine has dropped.

        A replacement is asked for where the first was, and only then: it has the first's probability, size and block.

        Args:
            gone: the engine's names of those dropped.
            others: (Q,) the prompts that take their place, in the same order.
            uid_Q: the engine's names of these.
        """
        new = {old: (uid, record) for old, uid, record in zip(gone, uid_Q, _records(others), strict=True)}
        flights = list(self.flights)
        for place, flight in enumerate(flights):
            if flight.uid in new:
                uid, record = new[flight.uid]
                flights[place] = replace(flight, uid=uid, candidate=replace(flight.candidate, **record))
        return replace(self, flights=tuple(flights))

    def after_update(self, uids: Collection[str], context: StepContext) -> tuple[Requested, "InFlight"]:
        """What an update is made of, and what is then left.

        ``uids`` are the engine's names of the groups that it takes, in any order; ``context`` is in the order of
        ``taken``.

        Raises:
            ShapeError: a group of no prompt in flight, or another number of groups than the update waits for.
        """
        taken = self.taken(uids)
        if len(taken) != self.groups:
            raise ShapeError(f"{len(taken)} groups came back for an update that is made of {self.groups}.")
        block = self.due[0]
        start = sum(_part(len(block.left_out), number, self.updates) for number in range(block.updates_made))
        left_out = block.left_out[start:][: _part(len(block.left_out), block.updates_made, self.updates)]
        asked = Requested(
            prompts=self._step(taken, left_out, context),
            uid_Q=[flight.uid for flight in taken],
            size_Q=[flight.size for flight in taken],
        )
        names, made = set(uids), block.updates_made + 1
        rest = self.due[1:] if made == self.updates else (replace(block, updates_made=made), *self.due[1:])
        return asked, replace(self, flights=tuple(f for f in self.flights if f.uid not in names), due=rest)

    def taken(self, uids: Collection[str]) -> list[Flight]:
        """The prompts of some groups in the order of the asking, so that draws do not depend on who was faster.

        Raises:
            ShapeError: a group is of no prompt in flight.
        """
        names = set(uids)
        if unknown := sorted(names - set(self.uids)):
            raise ShapeError(f"groups {unknown[:3]} came back, and no such prompt is in flight.")
        return [flight for flight in self.flights if flight.uid in names]

    def _step(self, taken: Sequence[Flight], left_out: Sequence[Candidate], context: StepContext) -> StepPrompts:
        """The prompts of an update. Its sum is over P / S prompts, and each group's share in it is that of its block:
        one over the prompts of the block where P of them make a step.
        """
        everyone = [flight.candidate for flight in taken] + list(left_out)
        size_Q = torch.tensor([flight.size for flight in taken])
        share_Q = torch.tensor([self.prompts / flight.block for flight in taken], dtype=torch.float64)
        column = _columns(everyone)
        keep_P = torch.arange(len(everyone)) < len(taken)
        weight_Q = column["weight"][keep_P] * share_Q * self.generations / size_Q
        return StepPrompts(
            candidates=Candidates(
                row_P=column["row"], signal_P=column["signal"], tokens_P=column["tokens"], seen_P=column["seen"]
            ),
            draw=Draw(keep_N=keep_P, prob_N=column["prob"], weight_N=column["weight"]),
            row_Q=column["row"][keep_P],
            prob_Q=column["prob"][keep_P],
            weight_Q=weight_Q,
            sequences=self.prompts // self.updates * self.generations,
            size_Q=size_Q,
            context=context,
        )

    def saved(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return asdict(self)

    def resumed(self, saved: Mapping[str, Any]) -> "InFlight":
        """What a checkpoint held, for a run with the numbers of this one; ``saved`` is empty where that is nothing.

        Raises:
            CheckpointError: it is damaged, or has blocks in flight that were split or counted otherwise.
        """
        if not saved:
            return self
        try:
            found = InFlight(
                prompts=saved["prompts"],
                generations=saved["generations"],
                updates=saved["updates"],
                asked=saved["asked"],
                flights=tuple(
                    Flight(**flight | {"candidate": Candidate(**flight["candidate"])}) for flight in saved["flights"]
                ),
                due=tuple(
                    Due(**block | {"left_out": tuple(Candidate(**each) for each in block["left_out"])})
                    for block in saved["due"]
                ),
            )
            if len(found.flights) != found._due_groups:
                raise ValueError(
                    f"updates that are due take {found._due_groups} groups, {len(found.flights)} in flight"
                )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"what was in flight is damaged in the checkpoint ({error!r}). Resume from an earlier one: "
                "trainer.resume_mode=resume_path trainer.resume_from_path=.../global_step_N."
            ) from error
        changed = [
            f"{option}={getattr(self, name)} where it has {getattr(found, name)}"
            for name, option in OPTIONS.items()
            if found.flights and getattr(self, name) != getattr(found, name)
        ]
        if changed:
            raise CheckpointError(
                f"the checkpoint has {len(found.flights)} prompts in flight, whose weights were fixed when they were "
                f"asked for, and this run has {', '.join(changed)}. Resume with the numbers of the checkpoint."
            )
        return replace(found, prompts=self.prompts, generations=self.generations, updates=self.updates)


OPTIONS = {
    "prompts": "data.train_batch_size",
    "generations": "actor_rollout_ref.rollout.n",
    "updates": "parameter_sync_step",
}
"""The options of verl by which prompts in flight are weighted."""


def _records(found: Candidates) -> list[dict[str, Any]]:
    """The fields of some prompts, one by one."""
    names = {"row": found.row_P, "signal": found.signal_P, "tokens": found.tokens_P, "seen": found.seen_P}
    columns = [column.tolist() for column in names.values()]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _columns(records: Sequence[Candidate]) -> dict[str, Tensor]:
    """Each field of some prompts as a tensor."""
    kinds = {int: torch.int64, float: torch.float64, bool: torch.bool}
    return {
        field.name: torch.tensor([getattr(each, field.name) for each in records], dtype=kinds[field.type])
        for field in fields(Candidate)
    }


def _part(count: int, number: int, parts: int) -> int:
    """How many of ``count`` fall to a part: as many to each as can be."""
    return count * (number + 1) // parts - count * number // parts
