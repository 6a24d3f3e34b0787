"""TRL's rollout worker for prompts that are requested: whole groups come back, in any order."""

import asyncio
import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

from trl.experimental.async_grpo.async_grpo_trainer import RolloutWorkerProtocol
from trl.experimental.async_grpo.async_rollout_worker import (
    AsyncRolloutWorker,
    RolloutGroup,
    RolloutSample,
    _AsyncRolloutLoop,
)
from trl.trainer.utils import print_prompt_completions_sample


@dataclass(slots=True)
class RolledGroup:
    """All completions of one requested prompt, as the worker puts them into ``rollout_buffer``."""

    group_id: int
    """Number of the request."""
    completions: list[list[RolloutSample]]
    """The training rows of each of the G completions: several if a conversation forked, none without trained tokens."""
    model_version: int
    """Version of the policy when its generation began."""
    enqueued_at: float | None = None
    """Seconds since the epoch; None for a worker that does not tell."""

    @property
    def samples(self) -> list[RolloutSample]:
        """The training rows of all completions."""
        return [sample for rows in self.completions for sample in rows]


@runtime_checkable
class RequestedWorker(RolloutWorkerProtocol, Protocol):
    """A rollout worker for ``DPPOAsyncTrainer``: TRL's ``RolloutWorkerProtocol`` with requests.

    Beside ``request`` it has ``start``, ``stop``, ``update_model_version``, ``check_health``, ``metrics_queue``, and a
    ``rollout_buffer`` of one ``RolledGroup`` for each request, in any order. A request that it does not answer is made
    again under another number. Requests may come before ``start``.
    """

    def request(self, group_id: int, row: int) -> None:
        """Roll out ``num_generations`` completions of a row of the training set."""


class RequestedRolloutLoop(_AsyncRolloutLoop):
    """TRL's loop in the child process, over requested rows of the dataset in place of the dataset in order."""

    def __init__(self, *, requests: Any, **kwargs: Any) -> None:
        # Without a limit: TRL's loop drops a finished group where scoring is full and it was told to stop.
        super().__init__(**{**kwargs, "score_queue_maxsize": 0})
        self.requests = requests
        self._left = 0  # completions of the current group that have not been started
        self._prints, self.log_completions = self.log_completions, False  # here: TRL prints samples, not groups

    @property
    def requested(self) -> bool:
        """True if a completion can be started."""
        return self._left > 0 or not self.requests.empty()

    def _repeat_iterator(self) -> Iterator[tuple[int, dict[str, Any]]]:
        while True:
            group_id, row = self.requests.get()  # TRL's loop asks only while ``requested``
            example = self.dataset[row]
            for number in range(self.num_generations):
                self._left = self.num_generations - 1 - number
                yield group_id, example

    async def _generate_loop(self, stop_event: Any) -> None:
        # TRL's loop starts no prompt while its event is set, and here while nothing is requested.
        starts_none: Any = SimpleNamespace(is_set=lambda: stop_event.is_set() or not self.requested)
        while not stop_event.is_set():
            if self.requested:  # until all that was requested is generated
                await super()._generate_loop(starts_none)
            self._heartbeat_value.value = time.time()
            await asyncio.sleep(0.05)

    async def _score_loop(self, stop_event: asyncio.Event) -> None:
        while not stop_event.is_set():  # TRL's ends with each end of generation
            await super()._score_loop(stop_event)

    async def _score_group(self, group: RolloutGroup) -> Any:
        """The group as one item of the buffer, which TRL's loop fills with what this returns."""
        samples = iter(rows := await super()._score_group(group))
        if self._prints and rows:
            print_prompt_completions_sample(
                prompts=[sample.prompt for sample in rows],
                completions=[sample.completion for sample in rows],
                rewards={"reward": [sample.metrics["reward"] for sample in rows]},
                advantages=[sample.advantage for sample in rows],
                step=self._total_groups_scored,
                num_samples=self.num_completions_to_print,  # pyright: ignore[reportArgumentType]
            )
        completions = [[next(samples) for _ in sequences] for sequences in group.completions_sequences]
        return [RolledGroup(group_id=group.group_id, completions=completions, model_version=group.model_version)]


class RequestedRolloutWorker(AsyncRolloutWorker):
    """TRL's worker, whose child process rolls out requested rows."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._requests = self._mp_ctx.Queue()
        self._requests.cancel_join_thread()  # requests that nobody reads any more must not hold the end of the program
        # Not among the arguments of the loop, which TRL pickles to check them: a queue can be inherited alone.
        self._loop_cls = functools.partial(RequestedRolloutLoop, requests=self._requests)  # pyright: ignore[reportAttributeAccessIssue]

    def request(self, group_id: int, row: int) -> None:
        """Roll out ``num_generations`` completions of a row of the training set."""
        self._requests.put((group_id, row))
