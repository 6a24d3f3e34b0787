"""What a run's model does on each prompt before it is trained: samples, their rewards, and the values they give.

Stage 1 of A*-PO. Samples are drawn as by ``dppo eval``, each from a seed of its own, and are on disk batch by batch: a
stopped estimate goes on from there, and so does one with more samples. Of values at another beta nothing is drawn anew.
"""

import asyncio
import inspect
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer

from answer_judge.evaluation import ENGINES, Engine, Generated, ModelSpec, Request, Sampling, load_engine
from answer_judge.evaluation.engines import DTYPES
from answer_judge.evaluation.run import differences
from answer_judge.evaluation.samples import Batch, batches_of
from answer_judge.evaluation.sampling import sample_seed
from answer_judge.files import append_lines, encoded, explaining, read_lines, replacing, sole_writer
from answer_judge.problems.loading import is_local
from dppo.errors import ConfigError, DataError, first_line, raise_problems
from dppo.objective import optimal_value
from dppo.pruning.values import prompt_key
from dppo.rewards import guarded, identities
from dppo_lab.demo.scratch import SCRATCH
from dppo_lab.runs.arguments import Run
from dppo_lab.runs.embedded import EMBEDDED
from dppo_lab.runs.parts import load_dataset, load_rewards, prepare_model
from dppo_lab.runs.preflight import data_problems, model_problems, weight_problems

GO_ON = "the same command goes on from what is there"
UNREAD: dict[str, Any] = {"min_p": None, "repetition_penalty": 1.0, "generation_kwargs": None}
"""Fields that change what a run samples and not what is sampled here, at the values that change nothing."""
UNJUDGED = {
    "overlong": "counts the tokens of a completion, and samples are judged by their text",
    "majority_vote": "compares the completions of a group, and each sample is judged by itself",
}
"""Rewards that cannot be given to one completion by its text, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """What an estimate came to."""

    prompts: int
    """Different prompts, each with a value."""
    drawn: int
    """Samples that were drawn now; the others were there."""
    failed: int
    """Prompts all of whose samples had a reward of 0: their value is 0."""
    mean: float
    """Reward over all samples."""
    model: str
    """The model that was sampled: a folder, or a name of the hub."""


def values_path(run: Run) -> Path:
    """Where the values of a run's prompts are: the field ``prompt_values``, or beside the file of the dataset.

    Raises:
        ConfigError: there is no such field, and the dataset is no file.
    """
    if run.training.prompt_values is not None:
        return Path(run.training.prompt_values)
    name = run.data.dataset_path or (run.data.dataset_name if is_local(run.data.dataset_name or "") else None)
    if name is None or Path(name).is_dir():
        raise ConfigError(
            "there is no file of problems to write values beside. Set prompt_values: problems.values.jsonl"
        )
    return Path(name).with_name(f"{Path(name).name.split('.')[0]}.values.jsonl")


def estimate_values(
    run: Run,
    *,
    samples: int = 8,
    beta: float = 0.5,
    engine: str = "transformers",
    batch_size: int | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Estimated:
    """Write the value of every prompt of a run's training set, from samples of its model as it is before training.

    Args:
        run: gives prompts, model, rewards and how completions are sampled.
        samples: completions of each prompt, >= 1; the paper has 8.
        beta: of ``optimal_value``, > 0.
        engine: a key of ``answer_judge.evaluation.ENGINES``.
        batch_size: completions at once, >= 1; None for the engine's default.
        report: called after each batch with the samples there are and those there will be.

    Raises:
        ConfigError: a setting out of range or one that samples would not have, or samples on disk that were drawn
            otherwise.
        DataError: a prompt that no sample has a reward of.
        FileError: the samples are damaged or another process writes them.
    """
    if samples < 1:
        raise ConfigError(f"samples={samples} must be >= 1. Try --samples 8")
    if engine not in ENGINES:
        raise ConfigError(f"--engine {engine} is not one of {', '.join(ENGINES)}")
    optimal_value(torch.zeros(1, 1), beta=beta)  # says what is wrong with it
    checks = (model_problems, data_problems, weight_problems, unread_problems)
    problems = [problem for check in checks for problem in check(run)]
    if len(problems) == 1:
        raise ConfigError(problems[0])
    raise_problems("these values", problems)
    path = values_path(run)
    model = prepare_model(run, folder=_start(run, path))
    trusted, revision = run.training.trust_remote_code, run.model.model_revision
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=trusted)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model_name_or_path={model}: {first_line(error)}") from error
    dataset = _distinct(load_dataset(run, tokenizer=tokenizer))
    spec = ModelSpec(
        model=model,
        revision=revision,
        dtype=run.model.dtype if run.model.dtype in DTYPES else "auto",
        batch_size=batch_size,
        trust_remote_code=trusted,
        chat_options=_chat_options(run, tokenizer),
        uncut=True,
    )
    sampler = load_engine(engine, spec)
    with sole_writer(f"{path}.samples", advice="set another prompt_values"):
        drawn, rewards = _sampled(run, dataset, sampler, tokenizer, Path(f"{path}.samples"), samples, report)
        return _written(path, rewards, beta, drawn, model)


def unread_problems(run: Run) -> Iterator[str]:
    """One sentence for each setting by which a run's completions, or their rewards, are others than samples here."""
    for name, default in UNREAD.items():
        value = getattr(run.training, name)
        if value and value != default:
            yield (
                f"{name}={value!r} changes what is sampled in training, and dppo values samples by temperature, top_p "
                f"and top_k alone: its values would be of another policy. Leave {name} out."
            )
    if run.data.rollout_func not in (None, EMBEDDED):
        yield (
            f"rollout_func={run.data.rollout_func!r} completes prompts in training, and dppo values samples the model "
            "by itself: its values would be of another policy. Leave rollout_func out, or write the file yourself as "
            "in docs/a_star_po.md."
        )
    for name in run.data.reward_funcs or ():
        if name in UNJUDGED:
            yield f"reward_funcs: {name} {UNJUDGED[name]}. Leave {name} out."


def _start(run: Run, path: Path) -> Path:
    """Where a model that is made from scratch is kept: one of another kind or seed is another."""
    kind = (run.model.model_name_or_path or "").removeprefix(SCRATCH)
    return Path(f"{path}.start") / f"{kind}_{run.training.seed}"


def _chat_options(run: Run, tokenizer: Any) -> dict[str, Any]:
    options = run.training.chat_template_kwargs
    return options if isinstance(options, dict) and tokenizer.chat_template is not None else {}


def _distinct(dataset: Dataset) -> Dataset:
    """The dataset with the first row of each prompt: rows of equal prompts have equal values."""
    first = {int(identity): row for row, identity in reversed(list(enumerate(identities(dataset["prompt"]))))}
    return dataset.select(sorted(first.values()))


def _sampled(
    run: Run,
    dataset: Dataset,
    engine: Engine,
    tokenizer: Any,
    path: Path,
    samples: int,
    report: Callable[[int, int], None] | None,
) -> tuple[int, dict[str, list[float | None]]]:
    """How many samples were drawn, and by prompt the rewards of all that are wanted."""
    training, prompts = run.training, dataset["prompt"]
    sampling = Sampling(
        temperature=training.temperature,
        top_p=training.top_p,
        top_k=training.top_k or 0,
        max_new_tokens=training.max_completion_length or Sampling().max_new_tokens,
    )
    identity = [int(found) for found in identities(prompts)]
    keys = [prompt_key(found) for found in identity]
    score = _scorer(run, dataset)
    done = _claimed(
        path, {"sampling": asdict(sampling), "engine": {"name": engine.name, **engine.facts}, **score.asked}
    )
    tokens = _tokens(tokenizer, prompts, _chat_options(run, tokenizer))
    before, total = len(done), len(keys) * samples
    wanted = {(key, sample) for key in keys for sample in range(samples)}
    there = len(wanted & done.keys())
    for batch in batches_of(tokens, engine, sampling, samples):
        members = [(row, sample) for row, sample in batch.members if (keys[row], sample) not in done]
        if not members:
            continue
        seeds = [sample_seed(training.seed, identity[row], sample) for row, sample in members]
        requests = [Request(tokens[row], seed) for (row, _), seed in zip(members, seeds, strict=True)]
        found = score(members, _completions(engine, requests, batch, sampling))
        lines = [
            {"prompt": keys[row], "sample": sample, "reward": reward}
            for (row, sample), reward in zip(members, found, strict=True)
        ]
        with explaining(path, GO_ON):
            append_lines(path, lines)
        done.update({(line["prompt"], line["sample"]): line["reward"] for line in lines})
        there += len(lines)
        if report is not None:
            report(there, total)
    return len(done) - before, {key: [done[key, sample] for sample in range(samples)] for key in keys}


def _completions(engine: Engine, requests: list[Request], batch: Batch, sampling: Sampling) -> list[Generated]:
    if batch.limit < 1:
        return [Generated("", 0, "no_room")] * len(requests)
    return engine.generate(requests, sampling.up_to(batch.limit))


def _tokens(tokenizer: Any, prompts: Sequence[Any], options: dict[str, Any]) -> list[list[int]]:
    """Token ids of each prompt, as the trainer makes them."""
    if isinstance(prompts[0], str):
        return tokenizer(text=list(prompts))["input_ids"]
    settings = {"add_generation_prompt": True, "tokenize": True, "return_dict": False, **options}
    return tokenizer.apply_chat_template(list(prompts), **settings)


class _scorer:
    """The total reward of completions by a run's functions and weights; None where none of them scored one."""

    def __init__(self, run: Run, dataset: Dataset) -> None:
        functions = load_rewards(run, dataset)
        self.functions = [guarded(function, run.training.reward_time_limit) for function in functions]
        self.weights = run.training.reward_weights or [1.0] * len(functions)
        self.dataset = dataset
        self.asked = {"rewards": [function.__name__ for function in functions], "weights": self.weights}

    def __call__(self, members: Sequence[tuple[int, int]], generated: Sequence[Generated]) -> list[float | None]:
        columns: dict[str, Any] = self.dataset[[row for row, _ in members]]
        prompts = columns.pop("prompt")
        texts: list[Any] = [each.text for each in generated]
        if not isinstance(prompts[0], str):
            texts = [[{"role": "assistant", "content": text}] for text in texts]
        found = [_called(function, prompts=prompts, completions=texts, **columns) for function in self.functions]
        return [self._total(values) for values in zip(*found, strict=True)]

    def _total(self, values: Sequence[float | None]) -> float | None:
        known = [(x, w) for x, w in zip(values, self.weights, strict=True) if x is not None and not math.isnan(x)]
        return sum(x * w for x, w in known) if known else None


def _called(function: Callable[..., Any], **columns: Any) -> Any:
    found = function(**columns)
    return asyncio.run(found) if inspect.iscoroutine(found) else found


def _claimed(path: Path, settings: dict[str, Any]) -> dict[tuple[str, int], float | None]:
    """The rewards of the samples that are there, by prompt and number; of a new file none, after its settings."""
    settings = json.loads(encoded(settings, default=str))
    lines = list(read_lines(path, advice=f"Remove {path} to draw all samples again"))
    if not lines:
        with explaining(path, GO_ON):
            append_lines(path, [{"settings": settings}])
        return {}
    if different := differences(lines[0].get("settings"), settings):
        raise ConfigError(
            f"{path} has samples that were drawn otherwise: {'; '.join(different)}. Set another prompt_values, or "
            "remove that file."
        )
    return {(line["prompt"], line["sample"]): line["reward"] for line in lines[1:]}


def _written(path: Path, rewards: dict[str, list[float | None]], beta: float, drawn: int, model: str) -> Estimated:
    """Write the values of all prompts at once, and say what they came to."""
    known = {key: [x for x in found if x is not None] for key, found in rewards.items()}
    if none := [key for key, found in known.items() if not found]:
        raise DataError(
            f"{len(none)} of {len(known)} prompts have no reward of any sample, {none[0]} the first: every reward "
            "function gave None. Give them one that scores them, or leave them out of the dataset."
        )
    with explaining(path, GO_ON), replacing(path) as file:
        for key, found in known.items():
            value = optimal_value(torch.tensor([found], dtype=torch.float64), beta=beta).item()
            file.write(f"{encoded({'prompt': key, 'value': value, 'rewards': found})}\n".encode("ascii"))
    everything = [x for found in known.values() for x in found]
    failed = sum(not any(found) for found in known.values())
    mean = sum(everything) / len(everything)
    return Estimated(prompts=len(known), drawn=drawn, failed=failed, mean=mean, model=model)
