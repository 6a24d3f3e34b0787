"""Forward passes, CPU seconds and what was saved, true and printed, at every gradient accumulation.

python -m benchmarks.speed.accumulation [--quick] [--output FILE.json]

One optimizer step has 64 completions (GRPO), rows (SFT) or pairs (DPO), as 64 x 1, 32 x 2, ... 1 x 64 of batch and
accumulation. For each, a trainer that prunes and one that drops nothing take turns, step by step, over the same
completions. In the GRPO trainer that prunes, 81% of the groups have equal rewards; in the other one all rewards differ,
so every completion is forwarded. SFT and DPO drop half of the rows. The learning rate is 0.

``passes`` are counted by a hook on the model, ``needed`` are rows that hold something at the budget of the run.
``pass_seconds`` are those of forward and backward alone. The others are of TRL's loop, which takes some for each call.
``saved_true`` is 1 less the CPU seconds of the steps over those of the unpruned trainer. ``saved_printed`` is the share
in the run's line "saved"; trainers on rows print none.
"""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import numpy as np
import torch
from transformers import PrinterCallback, Qwen3Config, Qwen3ForCausalLM, TrainerCallback

from benchmarks.shared import Record, options, spread, write
from benchmarks.speed.step import quiet
from benchmarks.speed.turns import Baton
from dppo.rng import Purpose, generator
from dppo.trl import DPPOConfig, DPPODPOConfig, DPPODPOTrainer, DPPOSFTConfig, DPPOSFTTrainer, DPPOTrainer
from dppo.verification.tiny_model import build_model, model_config
from dppo.verification.tiny_tokenizer import EOS, TOKENS, build_tokenizer

RESULT = Path(__file__).parents[1] / "results" / "accumulation.json"
SEED, GROUP = 0, 4
SHORTEST, LONGEST = 8, 40
"""Tokens of a completion."""
SILENT = 0.81
"""Share of the groups whose rewards are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Sizes of a run."""

    layers: int = 8
    completions: int = 64
    """Completions of an optimizer step; rows or pairs for the trainers on rows."""
    accumulations: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    steps: int = 24
    budget: int = 1024
    """``max_tokens_per_row`` of the runs that share one."""


QUICK = Setting(layers=1, completions=16, accumulations=(1, 4), steps=10, budget=256)


def model_of(setting: Setting) -> Qwen3ForCausalLM:
    """A random policy of width 128."""
    layers = {"num_hidden_layers": setting.layers, "layer_types": ["full_attention"] * setting.layers}
    return build_model(SEED, Qwen3Config(**model_config().to_dict() | layers))


def text_of(key: int, tokens: int) -> str:
    """Digits that begin with the number of a prompt; each is a token."""
    rng = generator(SEED, Purpose.ROLLOUT, key)
    return f"{key:05d}" + "".join(map(str, rng.integers(0, 10, tokens)))


def completion_of(prompt: str, ordinal: int) -> list[int]:
    """Token ids of one completion of a prompt, the same in every run."""
    rng = generator(SEED, Purpose.ROLLOUT, int(prompt[:5]), ordinal)
    length = int(rng.integers(SHORTEST, LONGEST))
    first = TOKENS.index("0")
    return [*rng.integers(first, first + 10, length).tolist(), TOKENS.index(EOS)]


def scripted(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
    """Completions of each prompt, a function of the prompt and of the place in its group."""
    tokenizer = build_tokenizer()
    ids = [completion_of(prompt, place % GROUP) for place, prompt in enumerate(prompts)]
    return {
        "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
        "completion_ids": ids,
        "logprobs": [[-1.0] * len(each) for each in ids],
    }


def reward(completions: list[str], alive: list[bool], **_: Any) -> list[float]:
    """Rewards that differ within the groups that are alive."""
    return [float(place % GROUP) if each else 0.0 for place, each in enumerate(alive)]


def different(completions: list[str], **_: Any) -> list[float]:
    """Rewards that differ within every group: nothing is without a gradient."""
    return [float(place % GROUP) for place in range(len(completions))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A trainer at one accumulation."""

    setting: Setting
    trainer: str
    accumulation: int
    own_budget: bool
    """True for the budget by default, which is that of TRL's micro-batch; else all accumulations share one."""

    def settings(self, folder: str) -> dict[str, Any]:
        """Fields that the trainer that prunes and the one that does not have in common."""
        return {
            "output_dir": folder,
            "per_device_train_batch_size": self.setting.completions // self.accumulation,
            "gradient_accumulation_steps": self.accumulation,
            "max_tokens_per_row": None if self.own_budget else self.setting.budget,
            "max_steps": self.setting.steps,
            "learning_rate": 0.0,
            "seed": SEED,
            "report_to": [],
            "save_strategy": "no",
            "logging_strategy": "no",
            "disable_tqdm": True,
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
        }

    def trainers(self, folder: str) -> tuple[Any, Any]:
        """One that prunes, and one that drops nothing."""
        return TRAINERS[self.trainer](self, self.settings(folder))


def grpo(case: Case, settings: dict[str, Any]) -> tuple[Any, Any]:
    """Groups without variance are skipped, and nothing is drawn; or all groups differ."""
    setting = case.setting
    prompts = 8 * setting.completions // GROUP
    silent = generator(SEED, Purpose.CHECK).permutation(prompts) < round(SILENT * prompts)
    rows = [{"prompt": text_of(key, 8 + key % 9), "alive": not each} for key, each in enumerate(silent.tolist())]
    fields = {"num_generations": GROUP, "max_completion_length": LONGEST + 1, "method": "grpo", "beta": 0.0}
    config = DPPOConfig(**settings, **fields, completion_prune_rate=0.0, prompt_prune_rate=0.0)
    common: dict[str, Any] = {"train_dataset": datasets.Dataset.from_list(rows), "processing_class": build_tokenizer()}
    pruned, whole = (
        DPPOTrainer(model_of(setting), rewards, config, rollout_func=scripted, **common)
        for rewards in (reward, different)
    )
    return pruned, whole


def sft(case: Case, settings: dict[str, Any]) -> tuple[Any, Any]:
    """Half of the tokens of as many rows as a step has: all of an epoch are in each step."""
    tokenizer, rows = build_tokenizer(), []
    for key in range(case.setting.completions):
        prompt = tokenizer(text_of(key, 8 + key % 9))["input_ids"]
        answer = completion_of(f"{key:05d}", 0)
        rows.append({"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer})
    return of_rows(DPPOSFTTrainer, DPPOSFTConfig, case, settings, rows)


def dpo(case: Case, settings: dict[str, Any]) -> tuple[Any, Any]:
    """The same of pairs."""
    tokenizer, rows = build_tokenizer(), []
    for key in range(case.setting.completions):
        answers = [tokenizer.decode(completion_of(f"{key:05d}", place)[:-1]) for place in range(2)]
        rows.append({"prompt": text_of(key, 8 + key % 9), "chosen": answers[0], "rejected": answers[1]})
    return of_rows(DPPODPOTrainer, DPPODPOConfig, case, settings, rows)


def of_rows(kind: Any, config: Any, case: Case, settings: dict[str, Any], rows: list[Any]) -> tuple[Any, Any]:
    """A trainer on rows that drops half of their tokens, and one that drops none."""
    pruned, whole = (
        kind(
            model_of(case.setting),
            args=config(**settings, max_length=None, row_prune_rate=rate),
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=build_tokenizer(),
            **({"ref_model": model_of(case.setting)} if kind is DPPODPOTrainer else {}),
        )
        for rate in (0.5, 0.0)
    )
    return pruned, whole


TRAINERS: dict[str, Callable[[Case, dict[str, Any]], tuple[Any, Any]]] = {"grpo": grpo, "sft": sft, "dpo": dpo}


@dataclass
class Turn(TrainerCallback):
    """Ends a turn with every optimizer step, and keeps what the step took."""

    trainer: Any
    baton: Baton
    player: int
    seconds: list[float] = field(default_factory=list)
    """CPU seconds of each step."""
    passes: list[int] = field(default_factory=list)
    """Forward passes of each step with a gradient."""
    needed: list[int] = field(default_factory=list)
    """Rows of each step that hold something."""
    pass_seconds: list[float] = field(default_factory=list)
    """CPU seconds of the passes of each step, from the start of the forward to the end of the backward."""

    def __post_init__(self) -> None:
        trainer = self.trainer
        trainer.clock.now = time.process_time
        trainer.model.register_forward_pre_hook(self._count)
        self._passes, self._began, self._spent = 0, 0.0, 0.0
        calls, backward = trainer.forwards.calls, trainer.accelerator.backward

        def timed(loss: Any, **kwargs: Any) -> None:
            backward(loss, **kwargs)
            if self._began:
                self._spent, self._began = self._spent + time.process_time() - self._began, 0.0

        trainer.accelerator.backward = timed

        def counted(rank_batch: Any, weight_B: Any, *args: Any, **kwargs: Any) -> Any:
            forwards = trainer.forwards
            kept = weight_B.nonzero().flatten().tolist()
            self.needed.append(len(forwards.layout.places(rank_batch, kept, forwards.budget(rank_batch))))
            return calls(rank_batch, weight_B, *args, **kwargs)

        trainer.forwards.calls = counted
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(self)

    def _count(self, *_: Any) -> None:
        if torch.is_grad_enabled():
            self._passes += 1
            self._began = time.process_time()

    def begin(self) -> None:
        """Wait for the next turn and start its clock."""
        self.baton.wait(self.player)
        self._passes, self._spent, self._start = 0, 0.0, time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by ``Trainer`` after every optimizer step."""
        self.seconds.append(time.process_time() - self._start)
        self.passes.append(self._passes)
        self.pass_seconds.append(self._spent)
        if state.global_step < state.max_steps:
            self.baton.pass_on()
            self.begin()


def in_turns(trainers: Sequence[Any]) -> list[Turn]:
    """Train all to their end, one step of each after the other; which comes first changes from round to round."""
    count, steps = len(trainers), trainers[0].args.max_steps
    baton = Baton([(first + turn) % count for first in range(steps) for turn in range(count)])
    turns = [Turn(trainer, baton, player) for player, trainer in enumerate(trainers)]

    def play(turn: Turn) -> None:
        torch.set_num_threads(1)  # a thread starts with the machine's number
        with baton.stops_all_on_failure():
            turn.begin()
            turn.trainer.train()
            baton.pass_on()

    with ThreadPoolExecutor(count) as pool:
        for played in [pool.submit(play, turn) for turn in turns]:
            played.result()
    return turns


def measured(case: Case) -> Record:
    """The row of a case."""
    with TemporaryDirectory() as folder, quiet():
        trainers = case.trainers(folder)
        pruned, whole = in_turns(trainers)
    gc.collect()
    row: Record = {
        "trainer": case.trainer,
        "accumulation": case.accumulation,
        "budget": "default" if case.own_budget else case.setting.budget,
        # The first step has the start of the trainer and the self-check, and of rows no score to prune by.
        "passes": float(np.mean(pruned.passes[1:])),
        "needed": float(np.mean(pruned.needed[1:])),
        "passes_unpruned": float(np.mean(whole.passes[1:])),
        "seconds": float(np.median(pruned.seconds[1:])),
        **spread(pruned.seconds[1:], "seconds_"),
        **spread(pruned.pass_seconds[1:], "pass_seconds_"),
        **spread(whole.seconds[1:], "seconds_unpruned_"),
        "saved_true": 1 - sum(pruned.seconds[1:]) / sum(whole.seconds[1:]),
        "saved_printed": None,
        "rollout_cost": None,
    }
    if case.trainer == "grpo":
        costs = pruned.trainer.session.costs
        row["saved_printed"] = pruned.trainer.savings.metrics(costs)["saved/share"]
        row["rollout_cost"] = costs.rollout_cost
    return row


def equal_passes(setting: Setting) -> Record:
    """CPU seconds of passes at the largest accumulation over those at 1, step by step in turns, at one budget."""
    accumulations = setting.accumulations[0], setting.accumulations[-1]
    with TemporaryDirectory() as folder, quiet():
        own = [
            Case(setting=setting, trainer="grpo", accumulation=each, own_budget=False).trainers(folder)[0]
            for each in accumulations
        ]
        few, many = in_turns(own)
    # A step without a pass takes no seconds at either.
    ratios = [many_s / few_s for many_s, few_s in zip(many.pass_seconds, few.pass_seconds, strict=True) if few_s][1:]
    return {"accumulations": list(accumulations), **spread(ratios, "ratio_")}


def cases(setting: Setting) -> Iterator[Case]:
    """Three trainers at one budget, and the first one at the budget by default."""
    for trainer, own_budget in (("grpo", False), ("sft", False), ("dpo", False), ("grpo", True)):
        for accumulation in setting.accumulations:
            yield Case(setting=setting, trainer=trainer, accumulation=accumulation, own_budget=own_budget)


HEADER = " trainer  budget  accum.  passes  needed   CPU s  of them passes  unpruned    true    said"


def line(row: Record) -> str:
    """A row as printed."""
    said = "" if row["saved_printed"] is None else f"{row['saved_printed']:.1%}"
    return (
        f"{row['trainer']:>8}{row['budget']:>8}{row['accumulation']:>8}{row['passes']:>8.1f}{row['needed']:>8.1f}"
        f"{row['seconds']:>8.3f}{row['pass_seconds_median']:>16.3f}{row['seconds_unpruned_median']:>10.3f}{row['saved_true']:>8.1%}{said:>8}"
    )


def main() -> None:
    """Measure, print, and write the JSON file."""
    parser = options(__doc__, quick="a model of one layer, 16 completions and two accumulations")
    arguments = parser.parse_args()
    setting = QUICK if arguments.quick else Setting()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    print(HEADER)
    rows = []
    with contextlib.ExitStack() as stack:
        stack.callback(partial(torch.set_num_threads, threads))
        stack.callback(datasets.enable_progress_bars)
        for case in cases(setting):
            rows.append(measured(case))
            print(line(rows[-1]), flush=True)
        equal = equal_passes(setting)
    low, high = equal["ratio_quartile_low"], equal["ratio_quartile_high"]
    first, last = equal["accumulations"]
    print(f"passes at {last} over {first}: {equal['ratio_median']:.3f} ({low:.3f} to {high:.3f}) of the CPU seconds")
    write(arguments.output or (None if arguments.quick else RESULT), rows, [SEED], equal_passes=equal)


if __name__ == "__main__":
    main()
