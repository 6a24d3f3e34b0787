"""Which prompts a generation rolls out: our own stream and history, read from the dataset by index.

TRL's sampler cannot prune for us: it decides a block too early and loses its place on resume. So the loader only
ticks, and the block of candidates, the draw and the examples come from here, the same on every rank.
"""

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from dppo.errors import CheckpointError, ConfigError, DataError
from dppo.methods import Method
from dppo.problems import identities
from dppo.pruning import (
    Exploration,
    PromptHistory,
    PromptStream,
    Pruning,
    Skipping,
    fill_block,
    learn,
    take_round,
    thin_block,
)
from dppo.rng import Purpose, generator

if TYPE_CHECKING:
    from dppo.trl.config import DPPOConfig

EPOCHS_REMEMBERED = 3
"""Default half-life of the prompt history."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The prompts of one generation: what was a candidate, what is rolled out, and at which weight."""

    row_Q: Tensor
    """(Q,) dataset rows rolled out, in block order; for rounds in the order in which ranks are gathered."""
    weight_Q: Tensor
    """(Q,) float64, one over the probability of being rolled out; for rounds 1 or, for groups not used, 0."""
    candidates: int
    """Prompts that a denominator counts: those of the block before the draw; for rounds the groups used."""
    seen_share: float
    """Share of the block with a history, in [0, 1]: prompts without one are always rolled out."""
    estimate_Q: Tensor | None = None
    """(Q,) float64, what prompts weigh in figures about all candidates; None where that is ``weight_Q``."""
    candidate_P: Tensor | None = None
    """(P,) dataset rows of the block, of all rounds; None where that is not known."""
    prob_P: Tensor | None = None
    """(P,) float64, the probability with which each was rolled out."""
    keep_P: Tensor | None = None
    """(P,) bool, which of them were rolled out."""

    @property
    def kept_share(self) -> float:
        """Share of the candidates that were rolled out, in [0, 1]."""
        return len(self.row_Q) / (self.candidates if self.candidate_P is None else len(self.candidate_P))


class PromptSelector:
    """Draws the prompts of each generation and remembers what they gave.

    Args:
        dataset: map-style rows with a ``prompt`` column.
        identities: (len(dataset),) uint64 content hashes, what history is kept under in checkpoints.
        pruning: the prompt level of the method.
        skipping: how rounds of the method skip prompts; None where they do not.
        prompts: P, prompts per generation when nothing is pruned.
        fill: whether blocks grow so that about P prompts are rolled out (``prompt_mode: fill``).
        seed: the run's seed.
        shuffle: whether each epoch has its own order.
        half_life: generations after which half of a prompt's signal has faded.

    Raises:
        DataError: if there are fewer prompts than a block.
    """

    def __init__(
        self,
        dataset: Sequence[dict[str, Any]],
        identities: np.ndarray,
        *,
        pruning: Pruning,
        skipping: Skipping | None = None,
        prompts: int,
        fill: bool,
        seed: int,
        shuffle: bool,
        half_life: float,
    ) -> None:
        if len(dataset) < prompts:
            raise DataError(
                f"the dataset has {len(dataset)} prompts, fewer than the {prompts} of one generation. "
                f"Set generation_batch_size to at most {len(dataset)} * num_generations."
            )
        self.dataset = dataset
        self.pruning = pruning
        self.skipping = skipping
        self.exploration = None if skipping is None else Exploration.at_start(skipping)
        self.prompts = prompts
        self.fill = fill
        self.seed = seed
        self.history = PromptHistory(identities, half_life=half_life)
        self.stream = PromptStream(len(dataset), seed=seed, shuffle=shuffle)

    def select(self, window: int, *, generations: int, processes: int, done: float = 0.0) -> Selection:
        """The prompts of generation ``window``: one draw, equal on every rank.

        Args:
            window: counts generations since the run began, also the clock of the history.
            generations: G. The number of prompts is made such that ``Q * G`` divides over the processes.
            processes: ranks.
            done: share of training done, in [0, 1], for schedules.
        """
        pruning = self.pruning.at(done)
        if self.fill:
            row_P, pruning = fill_block(self.stream, self.history, pruning, self.prompts, window)
        else:
            row_P = thin_block(self.stream, self.prompts)
        candidates = self.history.candidates(row_P, window)
        draw = pruning.draw_prompts(
            candidates,
            generator(self.seed, window, Purpose.PROMPT_DRAW),
            rows_multiple=processes // math.gcd(generations, processes),
        )
        return Selection(
            row_Q=candidates.row_P[draw.keep_N],
            weight_Q=draw.weight_N[draw.keep_N],
            candidates=len(row_P),
            seen_share=candidates.seen_P.double().mean().item(),
            candidate_P=candidates.row_P,
            prob_P=draw.prob_N,
            keep_P=draw.keep_N,
        )

    def select_round(self, window: int, number: int, prompts: int, *, processes: int) -> Selection:
        """The prompts of one round of generation ``window``, equal on every rank.

        Args:
            window: counts generations since the run began.
            number: counts its rounds, from 0.
            prompts: how many to roll out, >= 1; raised to a multiple of ``processes``.
            processes: ranks.
        """
        whole = math.ceil(prompts / processes) * processes
        rng = generator(self.seed, window, Purpose.PROMPT_SKIP, number)
        block = take_round(self.stream, self.history, whole, self.skipping, self.exploration, rng)
        row_Q = block.row_P[block.keep_P]
        return Selection(
            row_Q=row_Q,
            weight_Q=torch.ones(len(row_Q), dtype=torch.float64),
            candidates=len(block.row_P),
            seen_share=self.history.candidates(block.row_P, window).seen_P.double().mean().item(),
            estimate_Q=1 / block.prob_P[block.keep_P],
            candidate_P=block.row_P,
            prob_P=block.prob_P,
            keep_P=block.keep_P,
        )

    def examples(self, selection: Selection, *, generations: int, rank: int, processes: int) -> list[dict[str, Any]]:
        """This rank's equal, contiguous slice of the selected prompts, each repeated ``generations`` times."""
        rows = np.repeat(selection.row_Q.numpy(), generations)
        size = len(rows) // processes
        here = rows[rank * size : (rank + 1) * size].tolist()
        read = {row: self.dataset[row] for row in set(here)}  # reading a row costs more than copying it
        return [copy.deepcopy(read[row]) for row in here]

    def observe(
        self, selection: Selection, reward_QG: Tensor, signal_Q: Tensor, tokens_QG: Tensor, window: int
    ) -> None:
        """Remember what the selected prompts gave in generation ``window``."""
        outcome_Q = None
        if self.skipping is not None and self.exploration is not None:
            epochs = self.stream.epochs
            outcome_Q, self.exploration = learn(self.skipping, self.exploration, reward_QG, epochs=epochs)
        self.history.update(selection.row_Q, reward_QG, signal_Q, tokens_QG, window, outcome_P=outcome_Q)

    @property
    def figures(self) -> dict[str, float]:
        """Metrics of where the run stands among its prompts."""
        found = {"candidates/epoch": self.stream.epochs}
        if self.exploration is not None:
            found |= {"prune/explore_easy": self.exploration.easy, "prune/explore_hard": self.exploration.hard}
        return found

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the history into ``folder`` and return the place among the prompts as JSON values."""
        self.history.save(folder / "dppo_history.npz")
        explored = {} if self.exploration is None else {"exploration": asdict(self.exploration)}
        return self.stream.state_dict() | explored

    def load(self, folder: Path, position: dict[str, Any]) -> None:
        """Read back what ``save`` wrote.

        Raises:
            CheckpointError: if the history is missing, damaged, or of another dataset, or the exploration is damaged.
        """
        found = self.history.load(folder / "dppo_history.npz")
        if found < len(self.history):
            warnings.warn(
                f"{len(self.history) - found} of {len(self.history)} prompts are not in the checkpoint's dataset: they "
                "start without a history.",
                stacklevel=2,
            )
        self.stream.load_state_dict(position)
        if self.exploration is not None and "exploration" in position:
            try:
                self.exploration = Exploration(**position["exploration"])
            except TypeError as error:
                raise CheckpointError(
                    f"the exploration in {folder} is damaged ({error}). Resume from an earlier checkpoint folder."
                ) from error


def build_selector(
    dataset: Any, args: "DPPOConfig", method: Method, *, group: int, shuffle: bool
) -> PromptSelector | None:
    """The selector of a run; None for a streamed dataset.

    Args:
        dataset: the training set.
        args: the run's arguments.
        method: built from them.
        group: G, completions per prompt.
        shuffle: whether each epoch has its own order.

    Raises:
        ConfigError: the dataset is streamed, and the method chooses prompts.
    """
    if isinstance(dataset, Dataset):
        prompts = int(args.generation_batch_size or 0) // group
        return PromptSelector(
            cast(Any, dataset),
            identities(dataset["prompt"]),
            pruning=method.prompts,
            skipping=None if method.rounds is None else method.rounds.skipping,
            prompts=prompts,
            fill=args.prompt_mode == "fill",
            seed=args.seed,
            shuffle=shuffle,
            half_life=args.history_half_life or EPOCHS_REMEMBERED * len(dataset) / prompts,
        )
    if method.prompts.rate:
        raise ConfigError(
            f"prompt_prune_rate={method.prompts.rate:g} needs a map-style dataset; a streamed one has no rows to come "
            "back to. Set prompt_prune_rate: 0, or load the dataset without streaming."
        )
    if method.rounds is not None:
        raise ConfigError(
            f"method={args.method!r} takes as many prompts as it needs, which needs a map-style dataset. Set method: "
            "grpo, or load the dataset without streaming."
        )
    return None
