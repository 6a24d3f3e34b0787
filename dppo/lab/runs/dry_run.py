"""A dry run: what is right or wrong about a run, what could not be checked, and the plan of a step."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset
from transformers import AutoConfig

from dppo.install import VLLM_LINE
from dppo.lab.demo.scratch import SCRATCH
from dppo.lab.judge import EXPLAINED, judge
from dppo.lab.runs.benchmarks import load_benchmarks
from dppo.lab.runs.data import at_hand, load_dataset
from dppo.lab.runs.models import hub_options, load_tokenizer, positions
from dppo.lab.runs.parsing import Run
from dppo.lab.runs.parts import output_checkpoint
from dppo.lab.runs.preflight import preflight_problems
from dppo.lab.runs.rewards import load_rewards, load_rollouts
from dppo.trl.grpo.lines import describe_steps
from dppo.trl.grpo.prompts import column_prior

Kind = Literal["ok", "wrong", "unchecked", "plan"]
Lines = Iterator[tuple[Kind, str]]


@dataclass(frozen=True)
class Finding:
    """One line of a dry run."""

    kind: Kind
    text: str


@dataclass
class Local:
    """Parts of the run that are on this machine, None where they are not."""

    config: Any = None
    """Configuration of the model."""
    tokenizer: Any = None
    dataset: Dataset | None = None


def dry_run(run: Run) -> list[Finding]:
    """Everything that is known about a run without a network and without training; the plan comes last."""
    if problems := preflight_problems(run):
        return [Finding("wrong", problem) for problem in problems]
    findings, local = [Finding("ok", "all fields are known, in range and served")], Local()
    for part in (_output, _model, _data, _rewards, _evaluation, _plan):
        try:
            findings.extend(Finding(kind, text) for kind, text in part(run, local))
        except (*EXPLAINED, OSError, ValueError) as error:
            findings.append(Finding("wrong", str(error)))
    return findings


def _output(run: Run, local: Local) -> Lines:
    checkpoint = output_checkpoint(run)
    yield "ok", f"output_dir={run.training.output_dir} {f'resumes from {checkpoint}' if checkpoint else 'is free'}"
    if run.without_gpu:
        yield "unchecked", "bf16 and memory: there is no GPU here; fields that need one were checked as if for a CPU"
    if run.training.use_vllm and importlib.util.find_spec("vllm") is None:
        yield "unchecked", f"use_vllm: vLLM is not installed here: {VLLM_LINE}"


def _model(run: Run, local: Local) -> Lines:
    name = run.model.model_name_or_path or ""
    if name.startswith(SCRATCH):
        yield "ok", f"model: made from scratch ({name.removeprefix(SCRATCH)}) when the run starts"
    elif not Path(name).exists():
        yield "unchecked", f"model {name}: no such folder here; it will be loaded from the hub"
    else:
        local.tokenizer = load_tokenizer(run, name)
        local.config = AutoConfig.from_pretrained(name, **hub_options(run))
        chat = "with" if local.tokenizer.chat_template else "prompts will be plain text, without"
        yield "ok", f"model {name}: {local.config.model_type}, {chat} a chat template"


def _data(run: Run, local: Local) -> Lines:
    source = run.data.dataset_path or run.data.dataset_name
    if not at_hand(source):
        yield "unchecked", f"dataset {source}: loaded from the hub and checked against the rewards when the run starts"
        return
    dataset = local.dataset = load_dataset(run)
    yield "ok", f"dataset {source}: {len(dataset)} problems with columns {', '.join(dataset.column_names)}"
    column_prior(dataset, run.training)
    if local.tokenizer is None:
        yield "unchecked", "prompt lengths: they need the model's tokenizer"
    else:
        load_dataset(run, tokenizer=local.tokenizer, room=positions(run.model.model_name_or_path or "", run))


def _rewards(run: Run, local: Local) -> Lines:
    names = [getattr(function, "__name__", str(function)) for function in load_rewards(run, local.dataset)]
    yield "ok", f"rewards: {', '.join(names)}"
    if load_rollouts(run) is not None:
        yield "ok", f"completions: {run.data.rollout_func}"


def _evaluation(run: Run, local: Local) -> Lines:
    data = run.data
    evaluated = data.eval_dataset_name or ""
    if run.training.eval_strategy != "no" and (not evaluated or at_hand(evaluated)):
        yield "ok", f"evaluation on {evaluated}: {len(load_dataset(run, held_out=True))} problems"
    benchmarks = data.eval_benchmarks or []
    if benchmarks and not data.eval_benchmark_data and not all("=" in name or at_hand(name) for name in benchmarks):
        asked = f"eval_benchmarks: {benchmarks[0]}"
        judge("evaluation.problems", asked).choose(benchmarks, [], folder=None)  # refuses a name that is none
        yield "unchecked", f"benchmarks {', '.join(benchmarks)}: fetched from the hub when the run starts"
    elif benchmarks:
        sets = [f"{len(found.questions)} of {found.name}" for found in load_benchmarks(run)]
        yield "ok", f"benchmarks while training: {', '.join(sets)}"


def _plan(run: Run, local: Local) -> Lines:
    processes = run.data.processes or run.training.world_size
    method = run.training.build_method(sampler_log_probs=run.sampler_log_probs, model_config=local.config)
    prompts = None if local.dataset is None else len(local.dataset)
    for line in describe_steps(run.training, method, prompts_in_dataset=prompts, processes=processes):
        yield "plan", line
    yield "plan", f"for {processes} process{'es' if processes > 1 else ''}"
