"""Groups of the next optimizer step, out of what was requested ahead: late, in any order, more than once or never."""

import queue
import time
import warnings
from collections import defaultdict
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

    Stale and oversized groups are left out whole, before any draw. A stale one is requested again. In place of an
    oversized one the next prompt of the dataset is requested.

    Args:
        session: its ``in_flight`` has what is requested.
        worker: gets the requests.
        args: a ``DPPOAsyncConfig``, of which ``max_staleness`` and ``heartbeat_stale_after_s`` are read.
        longest: most tokens of a training row, those of its prompt included; None for no limit.
        metrics: the trainer's values by name, to which those of groups are added.
    """

    def __init__(
        self, session: Session, worker: RequestedWorker, args: Any, longest: int | None, metrics: defaultdict[str, list]
    ) -> None:
        self.session, self.worker, self.longest, self.metrics = session, worker, longest, metrics
        self.max_staleness, self.stale_after_s = args.max_staleness, args.heartbeat_stale_after_s
        self.ahead = self.max_staleness + 1
        """Blocks of prompts that are requested while a step waits for its groups: the last of them is not stale."""
        self.next_id = 0
        """Number of the next request."""
        self.version_of: dict[int, int] = {}
        """Version of the policy when each prompt in flight was requested."""
        self.wait_s = 0.0
        """Seconds spent waiting for groups since a trainer has set it to 0."""
        self._waiting: dict[int, RolledGroup] = {}

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

        ``version`` is that of the policy that trains on them. The ``number`` of the step, from 0, is the clock of the
        history. ``done`` is the share of training done, in [0, 1].
        """
        while len(self.in_flight.due) < self.ahead:
            prompts = self.session.prompts(number=self.in_flight.asked, done=done)
            ids = range(self.next_id, self.next_id + len(prompts.row_Q))
            self.next_id = ids.stop
            self.session.in_flight = self.in_flight.after_block(prompts, [str(uid) for uid in ids])
            for uid, row in zip(ids, prompts.row_Q.tolist(), strict=True):
                self._request(uid, row, version)
        self._renew_overdue(version, self.max_staleness + self.ahead)
        taken = self._wait_for(self.in_flight.groups, version)
        requested = self.session.returned([str(uid) for uid in taken], number)
        for uid in taken:
            del self.version_of[uid]
        return requested, [taken[int(uid)] for uid in requested.uid_Q]

    @property
    def in_flight(self) -> Any:
        """Prompts that were requested and not trained on."""
        assert self.session.in_flight is not None
        return self.session.in_flight

    def _request(self, uid: int, row: int, version: int) -> None:
        self.version_of[uid] = version
        self.worker.request(uid, row)

    def _request_again(self, gone: int, version: int, counted: str, row: int | None = None) -> None:
        """Request a prompt in flight under a new number, or another ``row`` with its probability; count it."""
        self.metrics[counted].append(1.0)
        row = int(self.in_flight.taken([str(gone)])[0].row) if row is None else row
        uid, self.next_id = self.next_id, self.next_id + 1
        del self.version_of[gone]
        self._waiting.pop(gone, None)
        self.session.request_instead([str(gone)], torch.tensor([row]), [str(uid)])
        self._request(uid, row, version)

    def _renew_overdue(self, version: int, patience: int) -> None:
        """Request again what was requested more than ``patience`` updates ago and has not come back: it may be lost."""
        for uid, asked in list(self.version_of.items()):
            if uid not in self._waiting and version - asked > patience:
                self._request_again(uid, version, "sample/requested_again_total")

    def _wait_for(self, count: int, version: int) -> dict[int, RolledGroup]:
        """``count`` groups that can be trained on, by number: of those that are back the oldest policy's first.

        So a group that took long is not overtaken until it is stale. Others wait for later steps.
        """
        for uid in [uid for uid, group in self._waiting.items() if self._is_stale(group, version)]:
            self._request_again(uid, version, "sample/dropped_stale_total")
        left_out = 0
        while len(self._waiting) < count or not self.worker.rollout_buffer.empty():
            group = self._next_group(version)
            if group.group_id not in self.version_of or group.group_id in self._waiting:
                self.metrics["sample/unrequested_total"].append(1.0)  # requested again since, or sent twice
            elif problem := self._problem(group, version):
                left_out += 1
                if left_out > 4 * self.ahead * self.in_flight.prompts:
                    raise EngineError(f"no group of {left_out} could be trained on. {problem}")
                if self._is_stale(group, version):
                    self._request_again(group.group_id, version, "sample/dropped_stale_total")
                    continue
                warnings.warn(f"a group is left out. {problem}", stacklevel=2)
                assert self.session.source is not None
                row = int(self.session.source.stream.take(1))
                self._request_again(group.group_id, version, "batch/dropped_oversize_total", row)
            else:
                self._waiting[group.group_id] = group
        first = sorted(self._waiting, key=lambda uid: self._waiting[uid].model_version)[:count]
        taken = {uid: self._waiting.pop(uid) for uid in first}
        for group in taken.values():
            self.metrics["sample/staleness_mean"].append(float(version - group.model_version))
            self.metrics["sample/staleness_max"].append(float(version - group.model_version))
            if group.enqueued_at is not None:
                self.metrics["sample/time_in_queue_s"].append(time.time() - group.enqueued_at)
        return taken

    def _is_stale(self, group: RolledGroup, version: int) -> bool:
        return version - group.model_version > self.max_staleness

    def _problem(self, group: RolledGroup, version: int) -> str:
        """The reason why a group cannot be trained on, with advice; empty if it can."""
        if self._is_stale(group, version):
            old = f"The last one is of policy {group.model_version}, and this is {version}"
            return f"{old}: raise max_staleness={self.max_staleness}, or let the worker heed update_model_version."
        tokens = max((len(sample.input_ids) for sample in group.samples), default=0)
        if self.longest is not None and tokens > self.longest:
            return f"The last one has a row of {tokens} tokens: raise token_budget={self.longest}."
        return ""

    def _next_group(self, version: int) -> RolledGroup:
        """The next item of the buffer; waits for it, and requests missing groups again if nothing comes."""
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
            put = f"rollout_worker put {type(group).__name__} into its rollout_buffer, and groups are drawn whole"
            wanted = "RolledGroup(group_id=..., completions=[[sample], ...], model_version=...)"
            raise EngineError(f"{put}. Put {wanted} there.")
        return group
