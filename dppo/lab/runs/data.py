"""The problems of a run: found, read, and checked before anything is trained on them."""

import warnings
from collections.abc import Callable, Sequence, Sized
from functools import partial
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset

from dppo.errors import ConfigError, DataError, in_one_line
from dppo.lab.demo import task
from dppo.lab.gym import COLUMN, ReasoningGymTask, is_gym
from dppo.lab.judge import judge
from dppo.lab.runs.embedded import TASKS, embedded_rows
from dppo.lab.runs.models import chat_options, prompt_tokens
from dppo.lab.runs.parsing import AnyRun

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")
PROBLEM_COLUMNS = ("problem", "question", "prompt")
"""Columns in which the problem is looked for, in this order."""
GOLD = {"accuracy", "code_tests"}
"""Rewards that read a gold answer: the judge then reads the problems, and takes the answers out of their column."""
TEMPLATE_TOKENS = 256
"""More than a chat template adds to a prompt. A token is a byte at least, so that most prompts need not be counted."""


def is_local(source: str) -> bool:
    """True if a source is a file or folder on this machine: it exists, or is written as a path."""
    written = source.endswith(SUFFIXES) or source.startswith(("/", "./", "../", "~"))
    return written or Path(source).expanduser().exists()


def at_hand(source: str) -> bool:
    """True if problems come from this machine: an embedded task, a task of reasoning-gym, or a file."""
    return source in TASKS or is_gym(source) or is_local(source)


def load_dataset(run: AnyRun, *, tokenizer: Any = None, room: int | None = None, held_out: bool = False) -> Dataset:
    """The problems of a run, or those to evaluate on, checked: enough for a generation, none empty or too long.

    The ``tokenizer`` measures prompts, which must fit into ``max_prompt_tokens`` and into the ``room`` positions of the
    model.
    """
    data, training = run.data, run.training
    if held_out and not data.eval_dataset_name:
        raise ConfigError(f"eval_strategy={str(training.eval_strategy)!r} needs problems. Set eval_dataset_name")
    name = (data.eval_dataset_name or "") if held_out else data.dataset_name
    path = None if held_out else data.dataset_path
    chat = tokenizer is None or tokenizer.chat_template is not None
    if name in TASKS and path is None:
        split = task.make_split(training.seed, train=data.embedded_problems, task=TASKS[name])
        return embedded_rows(split.held_out if held_out else split.train, name)
    if is_gym(name) and path is None:
        dataset = gym_dataset(run.gym_task(name), held_out=held_out, template=data.prompt_template, chat=chat)
    else:
        dataset = _read(run, name, path, held_out=held_out, chat=chat)
    limits = {"max_prompt_tokens": data.max_prompt_tokens, "positions of the model": room}
    longest = min((limit, of) for of, limit in limits.items() if limit) if any(limits.values()) else None
    return checked(
        dataset,
        count=None if tokenizer is None else partial(prompt_tokens, tokenizer, template=chat_options(run, tokenizer)),
        longest=longest,
        minimum=1 if held_out else (training.generation_batch_size or 1) // (training.num_generations or 1),
        drop=data.on_bad_rows == "drop",
    )


def _read(run: AnyRun, name: str, path: str | None, *, held_out: bool, chat: bool) -> Dataset:
    """The problems of a file, a folder or the hub: by the judge if a reward reads their gold answers."""
    data = run.data
    split = data.dataset_test_split if held_out else data.dataset_train_split
    rewards = {*(data.reward_funcs or ["accuracy"])}
    if gold := sorted(GOLD & rewards):
        return judge("problems", f"reward_funcs: {gold[0]}").load_problems(
            name or str(path),
            path=path,
            split=split,
            prompt_column=data.prompt_column,
            answer_column=data.answer_column,
            template=data.prompt_template,
            extract=data.extract,
            chat=chat,
        )
    rows = read_rows(path or name, split)
    looked = (data.prompt_column,) if data.prompt_column else PROBLEM_COLUMNS
    column = next((each for each in looked if each in rows.column_names), None)
    if column is None:
        raise DataError(
            f"{path or name} has columns {rows.column_names}, and none of {looked}. Write prompt_column: NAME"
        )
    prompts = as_prompts(list(rows[column]), data.prompt_template, chat)
    return rows.remove_columns([each for each in ["prompt"] if each in rows.column_names]).add_column("prompt", prompts)


def as_prompts(problems: Sequence[Any], template: str | None, chat: bool) -> list[Any]:
    """Prompts of problems: messages if ``chat``, else text, with the problem in the template's ``{problem}``.

    Problems that are messages are prompts already.
    """
    if any(isinstance(problem, list) for problem in problems):
        if template is not None or not chat:
            raise DataError(
                "problems that are lists of messages need a model with a chat template, and no prompt_template"
            )
        return [problem or [] for problem in problems]
    texts = ["" if problem is None else str(problem) for problem in problems]
    if template is not None:
        if "{problem}" not in template:
            raise ConfigError(f"prompt_template={template!r} has no place for the problem. Write {{problem}} in it")
        texts = [template.replace("{problem}", text) if text.strip() else "" for text in texts]
    return [[{"role": "user", "content": text}] for text in texts] if chat else texts


def read_rows(source: str, split: str) -> Dataset:
    """The rows of a file, of the files of a folder that are named after the split, or of a dataset on the hub."""
    try:
        if not is_local(source):
            name, _, config = source.partition(":")
            return datasets.load_dataset(name, config or None, split=split)  # pyright: ignore[reportReturnType]
        place = str(Path(source).expanduser())
        if Path(place).is_dir():
            return datasets.load_dataset(place, split=split)  # pyright: ignore[reportReturnType]
        kind = "parquet" if place.endswith(".parquet") else "json"
        return datasets.load_dataset(kind, data_files=place, split="train")  # pyright: ignore[reportReturnType]
    except Exception as error:  # datasets raises a dozen unrelated types
        raise DataError(
            f"dataset {source!r}, split {split!r}, cannot be read: {in_one_line(error.__cause__ or error)}. Write "
            "one JSON object a line into a file: dataset_path: problems.jsonl"
        ) from error


def gym_dataset(gym: ReasoningGymTask, *, held_out: bool, template: str | None, chat: bool) -> Dataset:
    """Problems of a task of reasoning-gym with a ``prompt``; ``answer`` is there only if each problem has one."""
    rows = gym.rows(held_out=held_out)
    columns = {
        "prompt": as_prompts([row["problem"] for row in rows], template, chat),
        COLUMN: [row[COLUMN] for row in rows],
    }
    if all(row["answer"] is not None for row in rows):
        columns["answer"] = [str(row["answer"]) for row in rows]
    return Dataset.from_dict(columns)


def checked(
    dataset: Dataset,
    *,
    count: Callable[[Any], Sized] | None = None,
    longest: tuple[int, str] | None = None,
    minimum: int = 1,
    drop: bool = False,
) -> Dataset:
    """The dataset without bad rows: empty or over-long prompts, empty answers. They are an error unless ``drop``.

    ``count`` gives the tokens of a prompt, chat template included. ``longest`` is the most of them and the name of that
    limit, and ``minimum`` the prompts needed, usually as many as one generation takes.
    """
    prompts = list(dataset["prompt"])
    bad = {"empty prompt": [row for row, prompt in enumerate(prompts) if not _text(prompt).strip()]}
    if "answer" in dataset.column_names:
        bad["empty answer"] = [row for row, each in enumerate(dataset["answer"]) if not str(each or "").strip()]
    if longest is not None and count is not None:
        most, limit = longest
        long = (row for row, prompt in enumerate(prompts) if len(str(prompt).encode()) + TEMPLATE_TOKENS > most)
        counts = {row: len(count(prompts[row])) for row in {*long} - {*bad["empty prompt"]}}
        reason = f"prompt of more than {most} tokens, {limit} (longest: {max(counts.values(), default=0)})"
        bad[reason] = [row for row in sorted(counts) if counts[row] > most]
    if rows := set().union(*bad.values()):
        counted = (f"{reason} in {len(found)} (counted from 0: {found[:5]})" for reason, found in bad.items() if found)
        said = f"{len(rows)} of {len(dataset)} rows cannot be trained on: {'; '.join(counted)}"
        if not drop:
            raise DataError(f"{said}. Leave them out with on_bad_rows: drop")
        warnings.warn(f"{said}. They are left out", stacklevel=3)
        dataset = dataset.select([row for row in range(len(dataset)) if row not in rows])
    if len(dataset) < minimum:
        raise DataError(
            f"{len(dataset)} prompts are fewer than the {minimum} that one generation needs. Add problems, or lower "
            "generation_batch_size"
        )
    return dataset


def _text(prompt: Any) -> str:
    """The text of a prompt, of messages too; parts of a message count as text."""
    contents = [prompt] if prompt is None or isinstance(prompt, str) else [each.get("content") for each in prompt]
    return "".join(str(content or "") for content in contents)
