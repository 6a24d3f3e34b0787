"""A generation in rounds: TRL rolls out one round after another, and this puts them together as if it were one.

Groups that a step is not made of stay in the window at weight 0, so that arrays stay rectangular on every rank. All
decisions come from the rewards of all ranks, so they are the same everywhere.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from dppo.errors import RoundsError
from dppo.pruning import Filled, Rounds, fill
from dppo.trl.prompts import PromptSelector, Selection

if TYPE_CHECKING:
    from dppo.trl.trainer import DPPOTrainer

LEFT_PADDED = ("prompt_ids", "prompt_mask")


@dataclass(frozen=True, kw_only=True)
class RolledOut:
    """All rounds of a generation as one."""

    output: dict[str, Any]
    """What TRL returned for this rank, the rows of one round below those of the round before."""
    reward_N: Tensor
    """(N,) rewards of all ranks in the order in which their rows are gathered."""
    selection: Selection
    """Its prompts, in that order too."""
    figures: dict[str, float]


def generate_in_rounds(
    trainer: "DPPOTrainer", rounds: Rounds, selector: PromptSelector, generate: Callable[[Any], Any]
) -> dict[str, Any]:
    """What TRL would have returned for one generation, rolled out in rounds. The trainer is left as after that one.

    Args:
        trainer: about to generate.
        rounds: what counts, and when to stop.
        selector: gives the prompts.
        generate: TRL's rollout of this rank's examples.

    Raises:
        RoundsError: the limit of rounds is reached; the run up to here is saved.
    """

    def with_rewards(inputs: list[dict[str, Any]]) -> tuple[dict[str, Any], Tensor]:
        return generate(inputs), trainer._reward_N

    with saved_at_the_limit(trainer):
        done = roll_out(
            rounds,
            selector,
            with_rewards,
            window=trainer._generation,
            generations=trainer.completions.group,
            rank=trainer.accelerator.process_index,
            processes=trainer.accelerator.num_processes,
            pad_token=cast(int, trainer._tokenizer.pad_token_id),
        )
    trainer._selection, trainer._reward_N = done.selection, done.reward_N
    trainer._log(done.figures)
    return done.output


def roll_out(
    rounds: Rounds,
    selector: PromptSelector,
    generate: Callable[[list[dict[str, Any]]], tuple[dict[str, Any], Tensor]],
    *,
    window: int,
    generations: int,
    rank: int,
    processes: int,
    pad_token: int,
) -> RolledOut:
    """Roll prompts out in rounds until enough groups count.

    Args:
        rounds: what counts, and when to stop.
        selector: gives the prompts.
        generate: TRL's rollout of this rank's examples: its output, and the rewards of all ranks in rank order.
        window: counts generations since the run began.
        generations: G, completions per prompt.
        rank: of this process.
        processes: ranks; a round has a multiple of as many prompts, so that each holds whole groups.
        pad_token: id that pads prompts and completions.

    Raises:
        RoundsError: the limit of rounds is reached.
    """
    asked: list[Selection] = []
    outputs: list[dict[str, Any]] = []
    rewards: list[Tensor] = []

    def one_round(number: int, prompts: int) -> Tensor:
        asked.append(selector.select_round(window, number, prompts, processes=processes))
        examples = selector.examples(asked[-1], generations=generations, rank=rank, processes=processes)
        output, reward_N = generate(examples)
        outputs.append(output)
        rewards.append(reward_N.view(-1, generations))
        return rewards[-1]

    filled = fill(rounds, selector.prompts, one_round)
    order_Q = gathered_order([len(part.row_Q) for part in asked], processes)
    return RolledOut(
        output=joined(outputs, pad_token),
        reward_N=torch.cat(rewards)[order_Q].flatten(),
        selection=_selection(asked, filled, order_Q),
        figures=figures(filled),
    )


def gathered_order(groups: Sequence[int], processes: int) -> Tensor:
    """(Q,) numbers of groups, counted round after round, in the order in which the rows of all ranks are gathered.

    Args:
        groups: of each round, a multiple of ``processes``; every rank holds an equal, contiguous part of each.
        processes: ranks.
    """
    numbers = torch.arange(sum(groups)).split(list(groups))
    return torch.cat([part.view(processes, -1) for part in numbers], 1).flatten()


def joined(outputs: Sequence[dict[str, Any]], pad_token: int) -> dict[str, Any]:
    """TRL's outputs of several rounds as one, padded to the widest: prompts on the left, completions on the right.

    Args:
        outputs: one per round, of this rank.
        pad_token: id that pads prompts and completions.
    """
    if any("tool_mask" in output for output in outputs):  # a round without tools has none
        outputs = [{"tool_mask": torch.ones_like(output["completion_mask"])} | output for output in outputs]
    together: dict[str, Any] = {}
    for name in outputs[0]:
        parts = [output[name] for output in outputs]
        if name == "num_items_in_batch":
            together[name] = sum(parts)
            continue
        if parts[0].dim() > 1:
            width = max(part.shape[1] for part in parts)
            fills = pad_token if name.endswith("_ids") else 0
            parts = [_padded(part, width - part.shape[1], fills, left=name in LEFT_PADDED) for part in parts]
        together[name] = torch.cat(parts)
    return together


def _padded(tensor_BT: Tensor, missing: int, value: int, *, left: bool) -> Tensor:
    return F.pad(tensor_BT, (missing, 0) if left else (0, missing), value=value)


def _selection(asked: Sequence[Selection], filled: Filled, order_Q: Tensor) -> Selection:
    """All rounds' prompts as one selection: those that the step is made of weigh 1, all others 0."""
    names = ("row_Q", "estimate_Q", "candidate_P", "prob_P", "keep_P")
    parts = {name: torch.cat([getattr(part, name) for part in asked]) for name in names}
    return Selection(
        row_Q=parts["row_Q"][order_Q],
        weight_Q=filled.keep_P[order_Q].double(),
        candidates=int(filled.keep_P.sum()),
        seen_share=sum(part.seen_share * part.candidates for part in asked) / len(parts["candidate_P"]),
        estimate_Q=parts["estimate_Q"][order_Q],
        candidate_P=parts["candidate_P"],
        prob_P=parts["prob_P"],
        keep_P=parts["keep_P"],
    )


def figures(filled: Filled) -> dict[str, float]:
    """Metrics of the rounds of one generation.

    Args:
        filled: what they gave.
    """
    collected, used = filled.collected, int(filled.keep_P.sum())
    return {
        "rollout/rounds": float(collected.rounds),
        "rollout/groups": float(collected.rolled_out),
        "rollout/groups_unused": 1 - used / collected.rolled_out,
        "rollout/groups_surplus": (collected.counted - used) / collected.rolled_out,
    }


@contextmanager
def saved_at_the_limit(trainer: "DPPOTrainer") -> Iterator[None]:
    """Where rounds end in an error, save the run as it was before them and say where.

    Args:
        trainer: between two optimizer steps; its place among the prompts is put back.

    Raises:
        RoundsError: the one from inside, with what was saved.
    """
    selector, step = trainer.selector, trainer.state.global_step
    before = None if selector is None else selector.stream.state_dict()
    try:
        yield
    except RoundsError as error:
        saved = "No step had been taken."
        if selector is not None and before is not None:
            selector.stream.load_state_dict(before)
        if step and trainer.args.save_strategy == "no":
            saved = "Nothing was saved, since save_strategy is no."
        elif step:
            folder = Path(trainer._get_output_dir(trial=None)) / f"checkpoint-{step}"
            if not (folder / "trainer_state.json").exists():
                trainer._save_checkpoint(trainer.model, None)
            saved = f"The run up to here is in {folder}: go on from it with resume: true."
        raise RoundsError(f"step {step}: {error} {saved}") from error
