"""Lines about a run before it begins, and the section about it on the card of its model."""

import warnings
from typing import Any

from dppo import __version__
from dppo.errors import in_words
from dppo.methods import Method
from dppo.pruning import constant
from dppo.trl.grpo.schedule import AccumulationSchedule, generation_sizes, steps_of_prompts
from dppo.trl.safeguards import precision_line


def announce(trainer: Any) -> None:
    """Print the plan of a ``DPPOTrainer`` on the main process; warn of each bias that was not accepted."""
    source, method = trainer.session.source, trainer.method
    rows = None if source is None else source.stream.size
    for line in [*describe_steps(trainer.args, method, prompts_in_dataset=rows), str(trainer.forwards.layout)]:
        trainer.accelerator.print(f"dppo | {line}")
    if trainer.use_vllm and trainer.accelerator.is_main_process and (line := precision_line(trainer)):
        warnings.warn(line, stacklevel=3)
    for reason in (reason for reason in trainer.biases if reason not in method.selection_bias):
        warnings.warn(f"{reason}. Unbiased settings: docs/choose.md.", stacklevel=3)


def describe_steps(
    args: Any, method: Method, *, prompts_in_dataset: int | None, processes: int | None = None
) -> list[str]:
    """Lines about the rollouts and optimizer steps of a run, and about its biases.

    ``prompts_in_dataset`` is None if that is not known; ``processes`` are by default those of the launch.
    """
    ranks: int = processes or args.world_size
    completions, schedule = generation_sizes(args, ranks)
    block = completions // (args.num_generations or 1)
    reasons = method.biases(steps_of_prompts(args, ranks))
    known = args.prompt_prior is not None
    lines = [
        f"method: {method.name} ({method.paper}), gradient {'BIASED' if reasons else 'unbiased'}",
        f"prompts: {_prompts(args, method, block)}",
    ]
    if method.sizes is not None:
        most = max(method.sizes.most, args.num_generations)
        lines.append(f"group sizes: by history, 1 to {most} completions of a prompt, {args.num_generations} on average")
    if args.num_generations == 1 and not known and args.prompt_values is None:
        lines.append("the first generation has no gradient: nothing is known yet that its completions differ from")
    share = f"{1 - method.completions.rate:.0%}"
    if getattr(method.completions, "auto", None) is not None:
        share = f"{share} or more, by their scores in each step (completion_prune_rate: auto),"
    lines.append(f"completions: of those with a gradient, {share} are trained on; score {method.score_name}")
    if method.tokens.active:
        lines.append(f"tokens of completions with a gradient: {method.tokens}")
    if method.schedule is not constant:
        lines.append(f"rates follow a schedule over the run: {in_words(method.schedule)}")
    if args.advantage_power:
        lines.append(f"advantages: {method.advantages.name}, which is another objective than the reward's")
    lines += _optimizer_lines(schedule, args.gradient_accumulation_steps)
    if prompts_in_dataset is not None and method.prompts.rate:
        first = "" if known else "; none is pruned in the first one"
        lines.append(f"an epoch is {prompts_in_dataset / block:.0f} generations{first}")
    return lines + [f"biased: {reason}" for reason in reasons]


def _prompts(args: Any, method: Method, block: int) -> str:
    """Prompts that a generation rolls out, of a block of so many."""
    rate, known = method.prompts.rate, args.prompt_prior is not None
    if method.rounds is not None:
        return f"{method.rounds}; a step wants {block} groups of {args.num_generations} completions"
    if not rate:
        each = "on average" if method.sizes is not None else "each"
        return f"all {block} of a block are rolled out, {args.num_generations} completions {each}"
    if (auto := method.prompts.auto) is not None:
        until = f"{auto.fewest} prompts have been visited" if known else "prompts have come back"
        return (
            f"all {block} of a block until {until} (prompt_prune_rate: auto starts unpruned, without a history to "
            f"choose from), then up to {rate:g} of them pruned where that pays"
        )
    if args.prompt_mode == "fill":
        return f"blocks of up to {round(block / (1 - rate))}, about {block} rolled out"
    return f"of a block of {block}, about {max(1, round(block * (1 - rate)))} are rolled out" + (
        "" if known else " once all have a history"
    )


def _optimizer_lines(schedule: AccumulationSchedule, accumulated: int) -> list[str]:
    """Lines about the optimizer steps of a generation, each of ``accumulated`` calls of the loss."""
    steps, calls = schedule.passes.steps, schedule.calls * schedule.passes.shares
    if accumulated > schedule.calls and steps > 1:
        return [
            f"an optimizer step takes gradient_accumulation_steps={accumulated} calls, and a generation has "
            f"{schedule.length}: a step may end one generation and begin the next (completions drawn anew every "
            f"{schedule.calls} calls)"
        ]
    lines = [f"optimizer steps per generation: {steps}" + (" (completions drawn anew for each)" if steps > 1 else "")]
    if accumulated != schedule.calls:
        lines.append(
            f"an optimizer step takes {accumulated // calls} generations: gradient_accumulation_steps={accumulated} "
            f"calls, and a generation has {calls}"
        )
    return lines


def card_section(method: Method, optimizer_steps: int) -> str:
    """Method, rates, biases and paper as Markdown, for the card below TRL's text.

    ``optimizer_steps`` are those of one draw of prompts.
    """
    reasons = method.biases(optimizer_steps)

    def share(level: Any, of: str) -> str:
        auto = getattr(level, "auto", None) is not None
        return f"up to {level.rate:.0%} of {of}, chosen in each step (auto)" if auto else f"{level.rate:.0%} of {of}"

    rows = {
        "method": f"`{method.name}`",
        "completions pruned": share(method.completions, "those with a gradient"),
        "prompts pruned": share(method.prompts, "those with a history"),
        **({"tokens left out": str(method.tokens)} if method.tokens.active else {}),
        "gradient": f"**biased**: {'; '.join(reasons)}" if reasons else "unbiased: the full batch's, in expectation",
        "paper": method.paper,
    }
    lines = [f"| {name} | {text.replace('|', chr(92) + '|')} |" for name, text in rows.items()]
    head = f"With dppo {__version__}, Dynamic Pruning Policy Optimization (not Divergence PPO):"
    text = ["## How it was trained: dppo", "", head, "", "| | |", "|---|---|", *lines]
    return "\n".join([*text, "", method.describe(optimizer_steps), ""])
