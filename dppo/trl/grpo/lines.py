"""Lines that a run prints: its plan, the gain of choosing among completions and prompts, and the card of its model."""

import warnings
from collections.abc import Iterator
from typing import Any

from dppo import __version__
from dppo.methods import Method
from dppo.methods.settings import start_lines
from dppo.moment_samples import MomentSamples
from dppo.pruning import COMPLETION_AUTO, PROMPT_AUTO, ceiling_of
from dppo.pruning.ceiling import FEWEST, LEAST_GAIN, Ceiling, Choice
from dppo.step import StepPlan
from dppo.trl.grpo.savings import Savings
from dppo.trl.grpo.schedule import AccumulationSchedule
from dppo.trl.safeguards import precision_line

FIELDS = {"completions": "completion_prune_rate", "prompts": "prompt_prune_rate"}
DROPPING = {"completions": "sampling them", "prompts": "skipping some by their history"}
UNITS = {"completions": "those with a gradient", "prompts": "the candidates"}


def announce(trainer: Any) -> None:
    """Print the plan of a ``DPPOTrainer`` on the main process; warn of each bias that was not accepted."""
    source, method = trainer.session.source, trainer.method
    rows = None if source is None else source.stream.size
    for line in [*describe_steps(trainer.args, method, prompts_in_dataset=rows), str(trainer.forwards.layout)]:
        trainer.accelerator.print(f"dppo | {line}")
    if trainer.use_vllm and trainer.accelerator.is_main_process and (line := precision_line(trainer)):
        warnings.warn(line, stacklevel=3)
    for reason in (reason for reason in trainer.biases if reason not in method.selection_bias):
        warnings.warn(f"{reason}. Unbiased settings: dppo docs methods.", stacklevel=3)


def describe_steps(
    args: Any, method: Method, *, prompts_in_dataset: int | None, processes: int | None = None
) -> list[str]:
    """Lines about rollouts, optimizer steps and biases of a run; ``processes`` are by default those of the launch."""
    schedule = AccumulationSchedule.of_arguments(args, processes or args.world_size)
    block, reasons = schedule.prompts, method.biases(schedule.steps_of_prompts)
    known = args.prompt_prior is not None
    lines = start_lines(method, reasons, _prompts(args, method, block))
    if method.sizes is not None:
        most = max(method.sizes.most, args.num_generations)
        lines.append(f"group sizes: by history, 1 to {most} completions of a prompt, {args.num_generations} on average")
    if args.num_generations == 1 and not known and args.prompt_values is None:
        lines.append("the first generation has no gradient: nothing is known yet that its completions differ from")
    if args.advantage_power:
        lines.append(f"advantages: {method.advantages.name}, which is another objective than the reward's")
    steps, calls, together = schedule.passes.steps, schedule.calls, schedule.together
    accumulated = f"gradient_accumulation_steps={calls * together} calls, and a generation has {schedule.length}"
    if steps > 1 and together > 1:
        takes = f"an optimizer step takes {accumulated}: a step may end one generation and begin the next"
        lines.append(f"{takes} (completions drawn anew every {calls} calls)")
    elif steps > 1:
        lines.append(f"optimizer steps per generation: {steps} (completions are drawn anew for each)")
    elif together > 1:
        lines.append(f"an optimizer step takes {together} generations: {accumulated}")
    if prompts_in_dataset is not None and method.prompts.rate:
        first = "" if known else "; none is pruned in the first one"
        lines.append(f"an epoch is {prompts_in_dataset / block:.0f} generations{first}")
    return lines + [f"biased: {reason}" for reason in reasons]


def _prompts(args: Any, method: Method, block: int) -> str:
    rate, auto, known = method.prompts.rate, method.prompts.auto, args.prompt_prior is not None
    if method.rounds is not None:
        return f"{method.rounds}; a step wants {block} groups of {args.num_generations} completions"
    if not rate:
        each = "on average" if method.sizes is not None else "each"
        return f"all {block} of a generation are rolled out, with {args.num_generations} completions {each}"
    if auto is not None:
        until = f"{auto.fewest} prompts have been visited" if known else "prompts have come back"
        return (
            f"all {block} of a generation are rolled out until {until} (prompt_prune_rate: auto needs a history to "
            f"choose by), then up to {rate:.0%} of them are skipped where that pays"
        )
    if args.prompt_mode == "fill":
        return f"of up to {round(block / (1 - rate))} for a generation about {block} are rolled out"
    once = "" if known else ", once all have a history"
    return f"about {max(1, round(block * (1 - rate)))} of the {block} of a generation are rolled out{once}"


def card_section(method: Method, optimizer_steps: int) -> str:
    """Method, rates, biases and paper as Markdown; ``optimizer_steps`` are those of one draw of prompts."""
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


class CeilingLines:
    """One line per level at the first samples, and one more if ``auto`` begins to prune later."""

    def __init__(self) -> None:
        self._last: dict[str, bool] = {}
        """By level that has a line: True if no other will follow."""

    def of(self, method: Method, plan: StepPlan, visits: MomentSamples | None) -> Iterator[str]:
        """Lines about a planned generation. ``visits`` are of prompts with a history; None for a stream."""
        prompts, completions, found = method.prompts, method.drawn, plan.completions
        if visits is not None and method.rounds is None and len(visits) >= (prompts.auto or PROMPT_AUTO).fewest:
            yield from self._level("prompts", prompts, visits, plan.metrics["prune/prompt_rate"])
        if completions is None or plan.samples is None:
            return
        samples, completions = plan.samples, completions.informed(found)
        if found.live_N.any() and len(samples) >= (completions.auto or COMPLETION_AUTO).fewest:
            without = 1 - int(found.live_N.sum()) / len(found.live_N)
            skipped = f"the {without:.0%} without a gradient are skipped; " if without else ""
            dropped = plan.draw_metrics[0]["prune/completion_rate"]
            yield from self._level("completions", completions, samples, dropped, skipped)

    def _level(self, name: str, level: Any, samples: MomentSamples, dropped: float, skipped: str = "") -> Iterator[str]:
        if name in self._last and (self._last[name] or not dropped):
            return
        chosen = None if level.auto is None else level.choice(samples)
        if name in self._last and not (chosen and chosen.rate):
            return  # by now the samples give a rate of 0 again
        self._last[name] = chosen is None or chosen.rate > 0
        gain = _gain(name, level, chosen, ceiling_of(samples), "sampling the others" if skipped else DROPPING[name])
        yield f"{name}: {skipped}{gain}"


def _gain(name: str, level: Any, chosen: Choice | None, ceiling: Ceiling, sampling: str) -> str:
    """Gain of the rate of a level: ``chosen`` by the run, or fixed if that is None."""
    field, nothing = FIELDS[name], ceiling.value < LEAST_GAIN
    if chosen is None and level.rate:
        if nothing:
            no_gain = f"adds noise and gains nothing here (at most {ceiling.value:.2f}x)"
            return f"{field}: {level.rate:g} {no_gain}. Set {field}: 0"
        return f"{field}: {level.rate:g} is in use; {sampling} gains at most {ceiling}"
    if chosen is None and not nothing:
        return f"{sampling} would gain at most {ceiling}"
    if chosen is not None and chosen.rate:
        return f"{sampling} gains {chosen.gain:.2f}x (at least {chosen.low:.2f}x); {chosen.rate:.0%} are dropped now"
    if chosen is not None and f"{chosen.gain:.2f}" != "1.00":
        begins = f"{field}: auto begins once {level.auto.least_gain:g}x is sure"
        return f"{sampling} would gain {chosen.gain:.2f}x (at least {chosen.low:.2f}x); {begins}"
    if nothing:
        return f"{sampling} would gain nothing here (at most {ceiling.value:.2f}x)"
    paid = "since rollouts are paid for by then" if level.auto.rollout_cost else "at any rate"
    return f"{sampling} would gain nothing here {paid}"


def closing_lines(
    method: Method, savings: Savings, completions: MomentSamples | None, visits: MomentSamples | None
) -> list[str]:
    """Lines about the share that each level dropped, and the setting that gains more."""
    rolled, live, kept = savings.completions
    if rolled and not live:
        return [
            f"nothing was learned: all {rolled:,.0f} completions had advantage 0, because the rewards of each group "
            "were equal or missing. Set log_completions: true and check the rewards"
        ]
    candidates, rolled_out = savings.prompts
    levels = (
        ("completions", method.drawn, completions, live, kept),
        ("prompts", method.prompts, visits if method.rounds is None else None, candidates, rolled_out),
    )
    lines = []
    for name, level, samples, units, left in levels:
        by_cuts = name == "completions" and method.tokens.rate  # these drop completions too
        if not rolled or level is None or by_cuts or samples is None or len(samples) < FEWEST:
            continue
        if line := _closing(name, level, samples, 1 - left / units if units else 0.0):
            lines.append(f"{name}: {line}")
    return lines


def _closing(name: str, level: Any, samples: MomentSamples, dropped: float) -> str:
    """Closing line of a level, or "" if there is nothing to do."""
    field, ceiling = FIELDS[name], ceiling_of(samples)
    if level.auto is not None and not dropped:
        chosen = level.choice(samples)
        why = f"{chosen.rate:.0%} would be dropped from here on"
        if not chosen.rate:
            why = _gain(name, level, chosen, ceiling, DROPPING[name])
        return f"{field}: auto dropped none of {UNITS[name]}; {why}"
    if not level.rate:
        return f"{DROPPING[name]} could gain at most {ceiling}. Try {field}: auto" if ceiling.low >= LEAST_GAIN else ""
    if level.auto is None and ceiling.value < LEAST_GAIN:
        return _gain(name, level, None, ceiling, DROPPING[name])
    share = "less than 1%" if dropped < 0.005 else f"{dropped:.0%}"
    setting = f"{field}: {'auto' if level.auto is not None else f'{level.rate:g}'}"
    return f"{setting} dropped {share} of {UNITS[name]}; the best choice could gain at most {ceiling}"
