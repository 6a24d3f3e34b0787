"""Groups of the next optimizer step, out of what was requested ahead: late, in any order, more than once or never."""

import queue
import time
import warnings
from contextlib import suppress
from typing import Any

import torch

from dppo.errors import EngineError
from dppo.session import Session
from dppo.step.in_flight import Requested
from dppo.trl.async_grpo.worker import RequestedWorker, RolledGroup

POLL_SECONDS = 5.0
"""Of a wait for groups, after which the worker's health is checked."""


class GroupStream:
    """Requests prompts of a session ahead and takes the groups that came back. On the main process alone.

    Stale and oversized groups are left out whole, before any draw: a stale one is requested again, in place of an
    oversized one the next prompt of the dataset is.

    Args:
        session: its ``in_flight`` has what is requested.
        worker: gets the requests.
        max_staleness: most updates between the policy that generated a group and the one that trains on it, >= 0.
        longest: most tokens of a training row, those of its prompt included; None for no limit.
        stale_after_s: seconds as for the worker's ``check_health``.
    """

    def __init__(
        self,
        session: Session,
        worker: RequestedWorker,
        *,
        max_staleness: int,
        longest: int | None,
        stale_after_s: float,
    ) -> None:
        self.session, self.worker = session, worker
        self.max_staleness, self.longest = max_staleness, longest
        self.ahead = max_staleness + 1
        """Blocks of prompts that are requested while a step waits for its groups: the last of them is not stale."""
        self.stale_after_s = stale_after_s
        self.next_id = 0
        """Number of the next request."""
        self.version_of: dict[int, int] = {}
        """Version of the policy when each prompt in flight was requested."""
        self.wait_s = 0.0
        """Seconds spent waiting for groups since a trainer has set it to 0."""
        self._waiting: dict[int, RolledGroup] = {}
        self._metrics: dict[str, list[float]] = {}

    def resume(self, version: int) -> None:
        """Request again everything in flight, under its numbers: a new worker has nothing of it."""
        self._waiting.clear()
        self.version_of.clear()
        with suppress(queue.Empty):  # what an earlier run of the same worker has left behind
            while True:
                self.worker.rollout_buffer.get_nowait()
        self.next_id = max([self.next_id, *(int(flight.uid) + 1 for flight in self.in_flight.flights)])
        for flight in self.in_flight.flights:
            self._request(int(flight.uid), flight.row, version)

    def next_groups(self, version: int, number: int, done: float) -> tuple[Requested, list[RolledGroup]]:
        """Prompts and groups of the next step, in the order of the requests.

        Args:
            version: of the policy that trains on them.
            number: of the step, from 0: the clock of the history.
            done: share of training done, in [0, 1].
        """
        while len(self.in_flight.due) < self.ahead:
            self._request_block(version, done)
        self._renew_overdue(version, self.max_staleness + self.ahead)
        taken = self._wait_for(self.in_flight.groups, version)
        requested = self.session.returned([str(uid) for uid in taken], number)
        for uid in taken:
            del self.version_of[uid]
        return requested, [taken[int(uid)] for uid in requested.uid_Q]

    def flush_metrics(self) -> dict[str, list[float]]:
        """Values of the metrics of groups since the last call, by TRL's names."""
        found, self._metrics = self._metrics, {}
        return found

    @property
    def in_flight(self) -> Any:
        """Prompts that were requested and not trained on."""
        assert self.session.in_flight is not None
        return self.session.in_flight

    # -- requests -----------------------------------------------------------------------------------------------

    def _request_block(self, version: int, done: float) -> None:
        prompts = self.session.prompts(number=self.in_flight.asked, done=done)
        ids = [self._new_id() for _ in prompts.row_Q]
        self.session.request_ahead(prompts, [str(uid) for uid in ids])
        for uid, row in zip(ids, prompts.row_Q.tolist(), strict=True):
            self._request(uid, row, version)

    def _request(self, uid: int, row: int, version: int) -> None:
        self.version_of[uid] = version
        self.worker.request(uid, row)

    def _request_instead(self, gone: int, row: int, version: int) -> None:
        """Request a row under a new number in place of a prompt in flight, with the probability of that one."""
        uid = self._new_id()
        del self.version_of[gone]
        self._waiting.pop(gone, None)
        self.session.request_instead([str(gone)], torch.tensor([row]), [str(uid)])
        self._request(uid, row, version)

    def _new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def _row_of(self, uid: int) -> int:
        return self.in_flight.taken([str(uid)])[0].row

    def _renew_overdue(self, version: int, patience: int) -> None:
        """Request again what was requested more than ``patience`` updates ago and has not come back: it may be lost."""
        for uid, asked in list(self.version_of.items()):
            if uid not in self._waiting and version - asked > patience:
                self._count("sample/requested_again_total")
                self._request_instead(uid, self._row_of(uid), version)

    # -- groups -------------------------------------------------------------------------------------------------

    def _wait_for(self, count: int, version: int) -> dict[int, RolledGroup]:
        """``count`` groups that can be trained on, by number: of those that are back the oldest policy's first.

        So a group that took long is not overtaken until it is stale. Others wait for later steps.
        """
        for uid in [uid for uid, group in self._waiting.items() if self._is_stale(group, version)]:
            self._drop_stale(uid, version)
        left_out = 0
        while len(self._waiting) < count or not self.worker.rollout_buffer.empty():
            group = self._next_group(version)
            if group.group_id not in self.version_of or group.group_id in self._waiting:
                self._count("sample/unrequested_total")  # requested again since, or sent twice
            elif problem := self._problem(group, version):
                left_out += 1
                if left_out > 4 * self.ahead * self.in_flight.prompts:
                    raise EngineError(f"no group of {left_out} could be trained on. {problem}")
                self._leave_out(group, version, problem)
            else:
                self._waiting[group.group_id] = group
        first = sorted(self._waiting, key=lambda uid: self._waiting[uid].model_version)[:count]
        taken = {uid: self._waiting.pop(uid) for uid in first}
        for group in taken.values():
            self._note_freshness(group, version)
        return taken

    def _is_stale(self, group: RolledGroup, version: int) -> bool:
        return version - group.model_version > self.max_staleness

    def _problem(self, group: RolledGroup, version: int) -> str:
        """The reason why a group cannot be trained on, with advice; empty if it can."""
        if self._is_stale(group, version):
            return (
                f"The last one is of policy {group.model_version}, and this is {version}: raise max_staleness="
                f"{self.max_staleness}, or let the worker heed update_model_version."
            )
        if self.longest is not None and group.longest > self.longest:
            return f"The last one has a row of {group.longest} tokens: raise token_budget={self.longest}."
        return ""

    def _leave_out(self, group: RolledGroup, version: int, problem: str) -> None:
        if self._is_stale(group, version):
            self._drop_stale(group.group_id, version)
            return
        warnings.warn(f"a group is left out. {problem}", stacklevel=2)
        self._count("batch/dropped_oversize_total")
        assert self.session.source is not None
        self._request_instead(group.group_id, int(self.session.source.stream.take(1)), version)

    def _drop_stale(self, uid: int, version: int) -> None:
        self._count("sample/dropped_stale_total")
        self._request_instead(uid, self._row_of(uid), version)

    def _next_group(self, version: int) -> RolledGroup:
        """The next item of the buffer; waits for it, and asks again for what is missing if nothing comes.

        Raises:
            EngineError: it is no ``RolledGroup``.
            RuntimeError: the worker has crashed or hangs (``check_health``).
        """
        begun = asked = time.perf_counter()
        while True:
            try:
                group = self.worker.rollout_buffer.get(timeout=POLL_SECONDS)
                break
            except queue.Empty:
                self.worker.check_health(self.stale_after_s)
                if time.perf_counter() - asked > self.stale_after_s:
                    asked = time.perf_counter()
                    self._renew_overdue(version, -1)
        self.wait_s += time.perf_counter() - begun
        if not isinstance(group, RolledGroup):
            raise EngineError(
                f"rollout_worker put {type(group).__name__} into its rollout_buffer, and groups are drawn whole. Put "
                "RolledGroup(group_id=..., completions=[[sample], ...], model_version=...) there."
            )
        return group

    def _note_freshness(self, group: RolledGroup, version: int) -> None:
        staleness = float(version - group.model_version)
        for name in ("sample/staleness_mean", "sample/staleness_max"):
            self._metrics.setdefault(name, []).append(staleness)
        if group.enqueued_at is not None:
            self._metrics.setdefault("sample/time_in_queue_s", []).append(time.time() - group.enqueued_at)

    def _count(self, name: str) -> None:
        self._metrics.setdefault(name, []).append(1.0)
