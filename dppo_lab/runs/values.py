"""Prompt values, stage 1 of A*-PO: samples of a run's model before training, their rewards, and the values.

Samples are drawn as by ``dppo eval``, each with its own seed, and are written batch by batch: a stopped estimate goes
on from there, and so does one with more samples. Another beta needs no new samples.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from answer_judge.evaluation import ENGINES, Engine, ModelSpec, Request, load_engine
from answer_judge.evaluation.engines import DTYPES
from answer_judge.evaluation.run import differences
from answer_judge.evaluation.samples import batches_of
from answer_judge.evaluation.sampling import sample_seed
from answer_judge.files import append_lines, encoded, explaining, read_lines, replacing, sole_writer
from answer_judge.problems.checks import prompt_tokens
from answer_judge.problems.loading import is_local
from dppo.errors import ConfigError, DataError
from dppo.methods.a_star_po import optimal_value
from dppo.pruning.prior import prompt_key
from dppo.rewards import guarded, identities
from dppo_lab.demo.scratch import SCRATCH
from dppo_lab.runs.benchmarks import sampling_of
from dppo_lab.runs.embedded import EMBEDDED
from dppo_lab.runs.models import chat_options, hub_options, load_tokenizer, model_problems
from dppo_lab.runs.parsing import Run
from dppo_lab.runs.parts import load_dataset, prepare_model
from dppo_lab.runs.preflight import data_problems, raise_all, weight_problems
from dppo_lab.runs.rewards import load_rewards
from dppo_lab.runs.subject import scored
from dppo_lab.runs.words import bare

GO_ON = "the same command goes on from what is there"
UNREAD: dict[str, Any] = {"min_p": None, "repetition_penalty": 1.0, "generation_kwargs": None}
"""Fields that change the samples of a run and not those drawn here, with the values that change nothing."""
UNJUDGED = {
    "overlong": "counts the tokens of a completion, and samples are judged by their text",
    "majority_vote": "compares the completions of a group, and each sample is judged by itself",
}
"""Rewards that do not follow from the text of one completion, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """The outcome of an estimate."""

    prompts: int
    """Different prompts, each with a value."""
    drawn: int
    """Samples drawn now, without those that were there before."""
    failed: int
    """Prompts with a reward of 0 for every sample: their value is 0."""
    mean: float
    """Reward over all samples."""
    model: str
    """The model that was sampled: a folder, or a name of the hub."""


def values_path(run: Run) -> Path:
    """The file of a run's prompt values: the field ``prompt_values``, or next to the file of the dataset."""
    if run.training.prompt_values is not None:
        return Path(run.training.prompt_values)
    name = run.data.dataset_path or (run.data.dataset_name if is_local(run.data.dataset_name or "") else None)
    if name is None or Path(name).is_dir():
        raise ConfigError(
            "there is no file of problems to write values beside. Set prompt_values: problems.values.jsonl"
        )
    return Path(name).with_name(f"{bare(name)}.values.jsonl")


def estimate_values(
    run: Run,
    *,
    samples: int = 8,
    beta: float = 0.5,
    engine: str = "transformers",
    batch_size: int | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Estimated:
    """Write the value of every training prompt of a run, from samples of its model before training.

    ``samples`` are completions per prompt, 8 in the paper, and ``batch_size`` completions at once. ``report`` is called
    after each batch with the samples there are and those there will be.
    """
    if samples < 1:
        raise ConfigError(f"samples={samples} must be >= 1. Try --samples 8")
    if engine not in ENGINES:
        raise ConfigError(f"--engine {engine} is not one of {', '.join(ENGINES)}")
    optimal_value(torch.zeros(1, 1), beta=beta)  # checks its range
    checks = (model_problems, data_problems, weight_problems, unread_problems)
    raise_all("these values", [problem for check in checks for problem in check(run)])
    path = values_path(run)
    kind = (run.model.model_name_or_path or "").removeprefix(SCRATCH)
    model = prepare_model(run, folder=Path(f"{path}.start") / f"{kind}_{run.training.seed}")
    tokenizer = load_tokenizer(run, model)
    dataset = load_dataset(run, tokenizer=tokenizer)
    # Rows of equal prompts have equal values: the first of each is sampled.
    first = {int(identity): row for row, identity in reversed(list(enumerate(identities(dataset["prompt"]))))}
    dataset = dataset.select(sorted(first.values()))
    spec = ModelSpec(
        model=model,
        dtype=run.model.dtype if run.model.dtype in DTYPES else "auto",
        batch_size=batch_size,
        **hub_options(run),
        chat_options=chat_options(run, tokenizer),
        uncut=True,
    )
    sampler = load_engine(engine, spec)
    with sole_writer(f"{path}.samples", advice="set another prompt_values"):
        drawn, rewards = _sampled(run, dataset, sampler, tokenizer, Path(f"{path}.samples"), samples, report)
        return _written(path, rewards, beta, drawn, model)


def unread_problems(run: Run) -> Iterator[str]:
    """One sentence for each setting that makes a run's completions or rewards differ from the samples here."""
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


def _sampled(
    run: Run,
    dataset: Dataset,
    engine: Engine,
    tokenizer: Any,
    path: Path,
    samples: int,
    report: Callable[[int, int], None] | None,
) -> tuple[int, dict[str, list[float | None]]]:
    """The number of samples drawn, and by prompt the rewards of the ``samples`` that were asked for."""
    training, prompts = run.training, dataset["prompt"]
    sampling = sampling_of(training)
    identity = [int(found) for found in identities(prompts)]
    keys = [prompt_key(found) for found in identity]
    functions = [guarded(function, training.reward_time_limit) for function in load_rewards(run, dataset)]
    weights = training.reward_weights or [1.0] * len(functions)
    asked = {"rewards": [function.__name__ for function in functions], "weights": weights}
    facts = {"name": engine.name, **engine.facts}
    done = _claimed(path, {"sampling": asdict(sampling), "engine": facts, **asked})
    tokens = [prompt_tokens(tokenizer, prompt, chat_options(run, tokenizer)) for prompt in prompts]
    before, total = len(done), len(keys) * samples
    wanted = {(key, sample) for key in keys for sample in range(samples)}
    there = len(wanted & done.keys())
    for batch in batches_of(tokens, engine, sampling, samples):
        members = [(row, sample) for row, sample in batch.members if (keys[row], sample) not in done]
        if not members:
            continue
        seeds = [sample_seed(training.seed, identity[row], sample) for row, sample in members]
        requests = [Request(tokens[row], seed) for (row, _), seed in zip(members, seeds, strict=True)]
        made = engine.generate(requests, sampling.up_to(batch.limit)) if batch.limit > 0 else []
        texts = [each.text for each in made] or [""] * len(requests)  # there may be no room for a completion
        found = _totals(functions, weights, [dataset[row] for row, _ in members], texts)
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


def _totals(
    functions: Sequence[Callable[..., Any]], weights: Sequence[float], rows: Sequence[dict[str, Any]], texts: list[str]
) -> list[float | None]:
    """The weighted total reward of each completion; None where no function scored it."""
    totals = []
    for values in zip(*scored(functions, rows, texts), strict=True):
        known = [(x, w) for x, w in zip(values, weights, strict=True) if x is not None and not math.isnan(x)]
        totals.append(sum(x * w for x, w in known) if known else None)
    return totals


def _claimed(path: Path, settings: dict[str, Any]) -> dict[tuple[str, int], float | None]:
    """The rewards of the samples on disk, by prompt and number. A new file gets the settings as its first line."""
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
    """Write the values of all prompts in one step."""
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
