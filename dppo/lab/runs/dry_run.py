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
from dppo.lab.errors import EXPLAINED
from dppo.lab.judge import judge
from dppo.lab.runs.adapters import adapters_of
from dppo.lab.runs.benchmarks import load_benchmarks
from dppo.lab.runs.data import at_hand, fitting, load_dataset
from dppo.lab.runs.models import hub_options, load_tokenizer, model_of, model_problems, positions
from dppo.lab.runs.parsing import Run
from dppo.lab.runs.parts import output_checkpoint
from dppo.lab.runs.preflight import (
    data_problems,
    output_problems,
    rule_problems,
    schedule_problems,
    tracker_problems,
    value_problems,
    weight_problems,
)
from dppo.lab.runs.rewards import load_rewards, load_rollouts
from dppo.trl.grpo.prompts import column_prior
from dppo.trl.grpo.start import describe_steps

TEMPLATE = {True: "with a chat template", False: "without a chat template: prompts will be plain text"}
Kind = Literal["ok", "wrong", "unchecked", "plan"]


@dataclass(frozen=True)
class Finding:
    """One line of a dry run."""

    kind: Kind
    text: str


def dry_run(run: Run) -> list[Finding]:
    """Everything that is known about a run without a network and without training; the plan comes last."""
    config, of_model = _model(run)
    findings = [Finding("ok", "all fields are known, in range and served")]
    try:
        checkpoint = output_checkpoint(run)
        start = f"output_dir={run.training.output_dir} {f'resumes from {checkpoint}' if checkpoint else 'is free'}"
        findings += _wrong(*output_problems(run)) or [Finding("ok", start)]
    except EXPLAINED as error:
        findings += _wrong(str(error))
    findings += of_model
    checks = (tracker_problems, weight_problems, value_problems, schedule_problems, rule_problems)
    findings += _wrong(*(problem for check in checks for problem in check(run)))
    if run.without_gpu:
        text = "bf16 and memory: there is no GPU here; fields that need one were checked as if for a CPU"
        findings.append(Finding("unchecked", text))
    rows, found = _data(run, config is not None)
    findings += found
    if run.training.use_vllm and importlib.util.find_spec("vllm") is None:
        findings.append(Finding("unchecked", f"use_vllm: vLLM is not installed here: {VLLM_LINE}"))
    processes = run.data.processes or run.training.world_size
    method = run.training.build_method(sampler_log_probs=run.sampler_log_probs, model_config=config)
    try:
        lines = describe_steps(run.training, method, prompts_in_dataset=rows, processes=processes)
    except EXPLAINED as error:
        return [*findings, *_wrong(str(error))]
    lines = [*lines, f"for {processes} process{'es' if processes > 1 else ''}"]
    return [*findings, *(Finding("plan", line) for line in lines)]


def _wrong(*problems: str) -> list[Finding]:
    return [Finding("wrong", problem) for problem in problems]


def _model(run: Run) -> tuple[Any, list[Finding]]:
    """The configuration of a local model, None of any other, and the findings."""
    name = run.model.model_name_or_path or ""
    if problems := _wrong(*model_problems(run)):
        return None, problems
    if name.startswith(SCRATCH):
        return None, [Finding("ok", f"model: made from scratch ({name.removeprefix(SCRATCH)}) when the run starts")]
    if not Path(name).exists():
        return None, [Finding("unchecked", f"model {name}: no such folder here; it will be loaded from the hub")]
    try:
        config = AutoConfig.from_pretrained(name, **hub_options(run))
        template = load_tokenizer(run, name).chat_template
        adapters_of(run, name)
    except (OSError, ValueError) as error:
        return None, _wrong(f"model {name}: {error}")
    return config, [Finding("ok", f"model {name}: {config.model_type}, {TEMPLATE[bool(template)]}")]


def _data(run: Run, local_model: bool) -> tuple[int | None, list[Finding]]:
    """Problems of the training set, None where it is not local, and the findings."""
    source = run.data.dataset_path or run.data.dataset_name
    findings: list[Finding] = []
    dataset = None
    if problems := _wrong(*data_problems(run)):
        return None, problems
    try:
        if at_hand(source):
            dataset = load_dataset(run)
            columns = ", ".join(dataset.column_names)
            findings.append(Finding("ok", f"dataset {source}: {len(dataset)} problems with columns {columns}"))
            column_prior(dataset, run.training)
            if local_model:
                name = model_of(run)
                tokenizer = load_tokenizer(run, name)
                fitting(run, load_dataset(run, tokenizer=tokenizer), tokenizer, positions(name, run))
            else:
                findings.append(Finding("unchecked", "prompt lengths: they need the model's tokenizer"))
        else:
            text = f"dataset {source}: loaded from the hub when the run starts; rewards are checked against it then"
            findings.append(Finding("unchecked", text))
        findings += _parts(run, dataset)
    except (*EXPLAINED, OSError) as error:
        findings += _wrong(f"data: {error}")
    return None if dataset is None else len(dataset), findings


def _parts(run: Run, dataset: Dataset | None) -> Iterator[Finding]:
    """Rewards, rollouts and evaluation sets."""
    data = run.data
    names = [getattr(function, "__name__", str(function)) for function in load_rewards(run, dataset)]
    yield Finding("ok", f"rewards: {', '.join(names)}")
    if load_rollouts(run) is not None:
        yield Finding("ok", f"completions: {data.rollout_func}")
    evaluated = data.eval_dataset_path or data.eval_dataset_name or ""
    if run.training.eval_strategy != "no" and (not evaluated or at_hand(evaluated)):
        yield Finding("ok", f"evaluation on {evaluated}: {len(load_dataset(run, held_out=True))} problems")
    benchmarks = data.eval_benchmarks or []
    if benchmarks and not data.eval_benchmark_data and not all("=" in name or at_hand(name) for name in benchmarks):
        asked = f"eval_benchmarks: {benchmarks[0]}"
        judge("evaluation.problems", asked).choose(benchmarks, [], folder=None)  # refuses a name that is none
        yield Finding("unchecked", f"benchmarks {', '.join(benchmarks)}: fetched from the hub when the run starts")
    elif benchmarks:
        sets = [f"{len(found.questions)} of {found.name}" for found in load_benchmarks(run)]
        yield Finding("ok", f"benchmarks while training: {', '.join(sets)}")
