"""Everything about a run that can be known without running it: what is wrong, what a step does, what is unchecked."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transformers import AutoConfig, AutoTokenizer

from dppo.data.sources import is_local
from dppo.demo.scratch import SCRATCH
from dppo.errors import DPPOError
from dppo.launch.arguments import Run
from dppo.launch.benchmarks import load_benchmarks
from dppo.launch.embedded import TASKS
from dppo.launch.parts import load_dataset, load_rewards, load_rollouts, output_checkpoint
from dppo.trl.plan import step_plan


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of a dry run."""

    kind: Literal["ok", "wrong", "unchecked", "plan"]
    text: str


def dry_run(run: Run) -> list[Finding]:
    """What can be found out about a run without a network and without training.

    Args:
        run: parsed arguments; every field has been checked by then.

    Returns:
        Findings in order: files and parts that are fine, wrong, or could not be checked and why; then the plan.
    """
    findings = [Finding(kind="ok", text="all fields are known, in range and served"), *_output(run), *_model(run)]
    if run.without_gpu:
        text = "bf16 and memory: there is no GPU here; fields that need one were checked as if for a CPU"
        findings.append(Finding(kind="unchecked", text=text))
    rows, found = _data(run)
    findings += found
    if run.training.use_vllm and importlib.util.find_spec("vllm") is None:
        findings.append(
            Finding(kind="unchecked", text="use_vllm: vLLM is not installed here: pip install 'dppo[vllm]'")
        )
    processes = run.data.processes or run.training.world_size
    method = run.training.build_method(sampler_log_probs=run.sampler_log_probs)
    try:
        lines = step_plan(run.training, method, prompts_in_dataset=rows, processes=processes)
    except DPPOError as error:
        return [*findings, Finding(kind="wrong", text=str(error))]
    findings += [Finding(kind="plan", text=line) for line in lines]
    findings.append(Finding(kind="plan", text=f"for {processes} process{'es' if processes > 1 else ''}"))
    return findings


def _output(run: Run) -> Iterator[Finding]:
    try:
        checkpoint = output_checkpoint(run)
    except DPPOError as error:
        yield Finding(kind="wrong", text=str(error))
        return
    start = f"resumes from {checkpoint}" if checkpoint else "is free"
    yield Finding(kind="ok", text=f"output_dir={run.training.output_dir} {start}")


def _model(run: Run) -> Iterator[Finding]:
    name = run.model.model_name_or_path or ""
    if not name:
        yield Finding(kind="wrong", text="model_name_or_path is not set")
    elif name.startswith(SCRATCH):
        yield Finding(kind="ok", text=f"model: made from scratch ({name.removeprefix(SCRATCH)}) when the run starts")
    elif not Path(name).exists():
        yield Finding(kind="unchecked", text=f"model {name}: no such folder here; it will be loaded from the hub")
    else:
        try:
            kind = AutoConfig.from_pretrained(name).model_type
            template = AutoTokenizer.from_pretrained(name).chat_template
        except (OSError, ValueError) as error:
            yield Finding(kind="wrong", text=f"model {name}: {error}")
            return
        yield Finding(kind="ok", text=f"model {name}: {kind}, {'with' if template else 'without'} a chat template")


def _benchmarks(run: Run) -> list[Finding]:
    """What was found about the benchmarks followed while training."""
    names = ", ".join(run.data.eval_benchmarks or ())
    if not names:
        return []
    local = all("=" in name or name in TASKS for name in run.data.eval_benchmarks or ())
    if run.data.eval_benchmark_data is None and not local:
        return [Finding(kind="unchecked", text=f"benchmarks {names}: fetched from the hub when the run starts")]
    sets = [f"{len(found.problems)} of {found.benchmark.name}" for found in load_benchmarks(run)]
    return [Finding(kind="ok", text=f"benchmarks while training: {', '.join(sets)}")]


def _data(run: Run) -> tuple[int | None, list[Finding]]:
    """Rows of the training set, None where it is not at hand, and what was found."""
    source = run.data.dataset_path or run.data.dataset_name
    findings, dataset = [], None
    try:
        if source in TASKS or is_local(source):
            dataset = load_dataset(run)
            columns = ", ".join(dataset.column_names)
            text = f"dataset {source}: {len(dataset)} problems with columns {columns}"
            findings.append(Finding(kind="ok", text=text))
            if run.data.max_prompt_tokens:
                findings.append(Finding(kind="unchecked", text="prompt lengths: they need the model's tokenizer"))
        else:
            text = f"dataset {source}: loaded from the hub when the run starts; rewards are checked against it then"
            findings.append(Finding(kind="unchecked", text=text))
        rewards = load_rewards(run, dataset)
        names = [getattr(f, "__name__", str(f)) for f in rewards]
        findings.append(Finding(kind="ok", text=f"rewards: {', '.join(names)}"))
        if load_rollouts(run) is not None:
            findings.append(Finding(kind="ok", text=f"completions: {run.data.rollout_func}"))
        evaluated = run.data.eval_dataset_path or run.data.eval_dataset_name or ""
        if run.training.eval_strategy != "no" and (not evaluated or evaluated in TASKS or is_local(evaluated)):
            held_out = load_dataset(run, held_out=True)
            findings.append(Finding(kind="ok", text=f"evaluation on {evaluated}: {len(held_out)} problems"))
        findings += _benchmarks(run)
    except (DPPOError, OSError) as error:
        findings.append(Finding(kind="wrong", text=f"data: {error}"))
    return None if dataset is None else len(dataset), findings
