"""``DPPOAsyncTrainer``: TRL's asynchronous GRPO trainer, which trains on drawn completions of whole groups."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from datasets import Dataset
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from trl.experimental.async_grpo import async_grpo_trainer
from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer, DataCollatorForRollout

from dppo.errors import CheckpointError, ConfigError, EngineError, in_one_line
from dppo.files import write_json
from dppo.methods.settings import start_lines
from dppo.session import Session
from dppo.step import PromptSource, StepPlan
from dppo.step.in_flight import InFlight
from dppo.step.prompts import HISTORY_FILE
from dppo.step.resumed import changed, warn_of
from dppo.trl.async_grpo import steps
from dppo.trl.async_grpo.attention import serve_tree_attention
from dppo.trl.async_grpo.config import DPPOAsyncConfig
from dppo.trl.async_grpo.stream import GroupStream
from dppo.trl.async_grpo.worker import RequestedRolloutWorker, RequestedWorker
from dppo.trl.checkpoints.files import OUR_STATE
from dppo.trl.checkpoints.state import read_state, settings_of
from dppo.trl.grpo.prompts import content_of, stream_and_history
from dppo.trl.loop import TrainingLoop
from dppo.trl.metrics import share_done
from dppo.trl.safeguards import end_at_exit
from dppo.trl.served import check_processes
from dppo.typed import check


class DPPOAsyncTrainer(TrainingLoop, AsyncGRPOTrainer):
    """Asynchronous GRPO that skips prompts before rollout and completions before the update, and reweights the rest.

    A script runs with this class and ``DPPOAsyncConfig`` in place of ``AsyncGRPOTrainer`` and ``AsyncGRPOConfig``.
    A step is a fixed number of whole groups. Its loss is divided by their tokens as rolled out, where TRL's is a mean
    over the tokens of each micro-batch: they are equal for steps of one micro-batch.

    Args:
        model: as for ``AsyncGRPOTrainer``, like all arguments that are not listed.
        reward_funcs: as for TRL's; they run in the worker's process.
        args: a ``DPPOAsyncConfig``.
        train_dataset: a ``datasets.Dataset``: its rows are requested by number.
        rollout_worker: a ``RequestedWorker``; None for TRL's, which talks to a vLLM server.

    Raises:
        ConfigError: for an unsupported model, worker or option.
        DataError: the dataset has fewer prompts than a step.
    """

    own_passes = False
    args: DPPOAsyncConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    ref_model = None
    method_in_words: Mapping[str, str] = {}

    def __init__(
        self,
        model: str,
        reward_funcs: Any = None,
        args: DPPOAsyncConfig | None = None,
        train_dataset: Dataset | None = None,
        *,
        rollout_worker: RequestedWorker | None = None,
        **kwargs: Any,
    ) -> None:
        args = DPPOAsyncConfig("dppo-output") if args is None else args
        check("args", args, DPPOAsyncConfig, "DPPOAsyncConfig in place of AsyncGRPOConfig, with the same arguments.")
        if rollout_worker is not None and not isinstance(rollout_worker, RequestedWorker):
            problem = f"rollout_worker={type(rollout_worker).__name__} takes no requests, and prompts are chosen here"
            puts = "request(group_id, row), which puts a RolledGroup into rollout_buffer: dppo.trl.async_grpo.worker"
            raise ConfigError(f"{problem}. Give it {puts}.")
        if train_dataset is not None and not isinstance(train_dataset, Dataset):
            problem = f"train_dataset is {type(train_dataset).__name__}, and prompts are requested by their rows"
            raise ConfigError(f"{problem}. Load it without streaming, or use TRL's AsyncGRPOTrainer.")
        ours = patch.object(async_grpo_trainer, "AsyncRolloutWorker", RequestedRolloutWorker)
        with ours, made_without_gpu():  # TRL has no hooks for them
            super().__init__(model, reward_funcs, args, train_dataset, rollout_worker=rollout_worker, **kwargs)
        check_processes(self)
        if self.aux_loss_enabled:
            mean = "a mean over the forwarded tokens: those kept"
            raise ConfigError(f"the model has a router loss, in TRL {mean}. Write router_aux_loss_coef: 0.0.")
        kernel = serve_tree_attention(self.accelerator.device)
        self.groups = args.groups_per_step(self.accelerator.num_processes)
        """Groups of a step without pruning of prompts."""
        self.session = self._new_session()
        self.stream: GroupStream | None = None
        """Groups of the next steps; None before training and on other processes than the main one."""
        self._trained: list[int] = []
        end_at_exit()
        groups, ahead = f"{self.groups} groups of {args.num_generations}", args.max_staleness + 1
        prompts = f"{groups} a step, requested {ahead} steps ahead"
        lines = [*start_lines(self.session.method, self.biases, prompts), f"attention: {kernel}"]
        for line in [*lines, *(f"biased: {reason}" for reason in self.biases)]:
            self.accelerator.print(f"dppo | {line}")

    def _new_session(self) -> Session:
        args, dataset = self.args, cast(Any, self.train_dataset)
        stream, history = stream_and_history(dataset, args, self.groups, environment=False)
        self.content = content_of(dataset, history.identities)
        """A fingerprint of the training set."""
        session = Session(
            args.build_method(),
            PromptSource(stream, history, prompts=self.groups, fill=args.prompt_mode == "fill"),
            seed=args.seed,
            generations=args.num_generations,
            max_tokens=args.max_completion_length,
            rollout_cost=1.0 if args.rollout_cost is None else args.rollout_cost,
        )
        session.in_flight = InFlight(prompts=self.groups, generations=args.num_generations)
        return session

    @property
    def biases(self) -> tuple[str, ...]:
        """Reasons why the expected gradient is not the full batch's; empty if it is."""
        return self.session.method.biases(2)  # groups of one draw of prompts may be trained on in several steps

    def get_train_dataloader(self) -> DataLoader:
        """Rows of each call of the loss on this process. Nothing is fetched ahead: a step is planned when it begins."""
        if self.accelerator.is_main_process:
            worker, next_id = cast(Any, self.rollout_worker), 0 if self.stream is None else self.stream.next_id
            self.stream = GroupStream(self.session, worker, self.args, self._token_budget(), self._metrics["train"])
            self._rollout_dataset: Any = self.stream  # TRL reads the seconds of waiting there
            self.stream.next_id = next_id  # no number is used twice, in a second call of train neither
        return DataLoader(_Calls(self), batch_size=None, num_workers=0)

    def _token_budget(self) -> int | None:
        """Most tokens of a row, as TRL finds it; None for rows of a number of completions."""
        if self.args.token_budget is None:
            client = cast(Any, self.vllm_client)
            client.wait_for_server_ready()
            self.args.token_budget = client.get_max_model_len()
        budget = cast(int, self.args.token_budget)
        return budget if budget > 0 else None

    def next_passes(self) -> list[list[dict[str, Any]]]:
        """Rows of the next step to forward, by process. Only the main process calls this."""
        assert self.stream is not None
        number, done = self.state.global_step, share_done(self.state)
        if self._epoch_stop_groups is not None:  # TRL's max_steps is then a ceiling
            done = min(self._candidates / self._epoch_stop_groups, 1.0)
        requested, groups = self.stream.next_groups(self.model_version, number, done)
        plan, completions = steps.planned(self.session, requested, groups, number, done)
        in_flight = {"rollout/in_flight": float(len(self.stream.in_flight.flights))}
        self.add_metrics(self.session.metrics | plan.metrics | plan.draw_metrics[0] | in_flight)
        for each in completions:  # of all that were rolled out: the collator gets rows without metrics
            self.add_metrics(each.rows[0].metrics if each.rows else {})
        for line in self.session.messages():
            self.accelerator.print(f"dppo | {line}")
        self._trained = [group.group_id for group in groups]
        return self.passes_of(plan, completions)

    def passes_of(self, plan: StepPlan, completions: Sequence[steps.Completion]) -> list[list[dict[str, Any]]]:
        """Weighted rows of the completions that a plan keeps, by process."""
        ranks = self.accelerator.num_processes
        samples, budget = [*steps.weighted_samples(plan, completions)], self._token_budget()
        rows = steps.rows_of(samples, ranks, budget=budget, per_row=self.args.per_device_train_batch_size)
        pad: Any = cast(Any, self.processing_class).pad_token_id
        collate = DataCollatorForRollout(pad, ranks, metrics=self._metrics["train"], token_budget=budget or 0)
        # Fixed before the draw; it replaces the tokens that the collator counts.
        denominator = torch.full((ranks,), plan.sizes.denominator / self.args.gradient_accumulation_steps)
        of_ranks = [[] for _ in range(ranks)]
        for first in range(0, len(rows), ranks):
            batch = collate([rows[first : first + ranks]])
            batch |= {"trained_tokens": batch["global_n_tokens"], "global_n_tokens": denominator}
            for rank, made in enumerate(of_ranks):
                made.append({name: value[rank : rank + 1].clone() for name, value in batch.items()})
        return of_ranks

    @property
    def _candidates(self) -> int:
        """Prompts of all blocks that have been trained on, those that were not rolled out included."""
        assert self.stream is not None and self.session.source is not None
        taken = round(self.session.source.stream.epochs * self.session.source.stream.size)
        return taken - sum(block.kept + len(block.left_out) for block in self.stream.in_flight.due)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """() the loss of one call by TRL's own, row by row: ``backward_but_last``."""
        return self.backward_but_last(model, inputs["rows"], lambda row: self._row_loss(model, row))

    def _row_loss(self, model: Any, row: dict[str, Tensor]) -> Tensor:
        loss: Any = super().compute_loss(model, row)
        # TRL counts the denominator as trained tokens.
        self._step_trained_tokens += float(row["trained_tokens"][0] - row["global_n_tokens"][0])
        return loss

    def _log_step_metrics(self) -> None:
        """TRL's, which is called at the end of a step; only then its groups count as trained."""
        self._trained_groups.update(self._trained)
        if self.stream is not None:
            # TRL stops after so many groups; here an epoch is one of candidates, of which not all are rolled out.
            self._groups_before_resume = self._candidates - len(self._trained_groups)
        super()._log_step_metrics()

    def card(self) -> str:
        """Sentence about the method for the card of the model."""
        return self.session.method.describe(2)

    def save_extra(self, folder: Path) -> None:
        """Write the session, with what is in flight: a resumed run requests it again."""
        if not self.args.should_save or self.stream is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        state = {"session": self.session.save(folder), "next_id": self.stream.next_id}
        write_json(folder / OUR_STATE, state | {"version": self.model_version, "settings": settings_of(self)})

    def load_extra(self, folder: Path) -> None:
        start = "training goes on from its weights, with an empty prompt history and nothing in flight."

        def made(found: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], int, int]:
            return dict(found["settings"]), dict(found["session"]), int(found["next_id"]), int(found["version"])

        if (state := read_state(folder, made, trainer="DPPOAsyncTrainer", without=start)) is None:
            return
        settings, session, next_id, self.model_version = state
        warn_of(changed(settings, settings_of(self)))
        # Weights of prompts in flight were fixed with these numbers. The error has the names of TRL's fields.
        saved, groups, size = session.get("in_flight") or {}, self.groups, self.args.num_generations
        if saved.get("flights") and (saved["prompts"], saved["generations"]) != (groups, size):
            raise CheckpointError(
                f"{folder} has {len(saved['flights'])} prompts in flight for steps of {saved['prompts']} groups of "
                f"num_generations={saved['generations']}, and this run has {groups} of {size}. Resume with the same "
                "num_generations and product of per_device_train_batch_size, gradient_accumulation_steps and processes."
            )
        self.session.load(folder, session, history=HISTORY_FILE not in self.lacking)
        if self.rollout_worker is not None:
            self.rollout_worker.update_model_version(self.model_version)
        if self.stream is not None:
            self.stream.next_id = max(self.stream.next_id, next_id)


class _Calls(IterableDataset):
    """Rows of each call of the loss for this process, planned on the main one."""

    def __init__(self, trainer: DPPOAsyncTrainer) -> None:
        self.trainer = trainer

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self.trainer.stream is not None:
            self.trainer.stream.resume(self.trainer.model_version)
        while True:
            rows = self._next_step()
            for left in reversed(range(self.trainer.args.gradient_accumulation_steps)):
                yield {"rows": [] if left else rows}  # the last call's last backward pass synchronizes gradients

    def _next_step(self) -> Any:
        """This process's part of the next step, which the main one plans. All raise what it raises."""
        ranks = self.trainer.accelerator.num_processes
        if ranks == 1:
            return self.trainer.next_passes()[0]
        found, parts, problem = list[Any]([None]), None, None
        if self.trainer.stream is not None:
            try:
                parts = self.trainer.next_passes()
            except Exception as error:
                problem, parts = error, [f"the main process: {in_one_line(error)}"] * ranks
        dist.scatter_object_list(found, parts, src=0)
        if isinstance(found[0], str):
            raise problem or EngineError(found[0])
        return found[0]


def made_without_gpu() -> AbstractContextManager[Any]:
    """A context in which TRL's asynchronous trainers can be made on a CPU: they ask CUDA for the device's peak."""
    if torch.cuda.is_available():
        return nullcontext()
    return patch.object(async_grpo_trainer, "get_peak_flops_per_device", lambda accelerator, dtype: None)
