"""What a step of a run will do, in words, before it is done."""

from typing import Any

from dppo.errors import raise_problems
from dppo.methods import Method, in_words
from dppo.pruning import constant
from dppo.trl.grpo.cycle import Cycle


def step_plan(args: Any, method: Method, *, prompts_in_dataset: int | None, processes: int | None = None) -> list[str]:
    """Lines that say what a generation rolls out, what is trained on, and what is biased about it.

    Args:
        args: the run's arguments, a ``DPPOConfig``.
        method: the method built from them.
        prompts_in_dataset: rows of the training set; None where it is streamed.
        processes: how many the run is meant for; default: those of this launch.
    """
    completions, cycle = generation_sizes(args, processes or args.world_size)
    block = completions // (args.num_generations or 1)
    kept = max(1, round(block * (1 - method.prompts.rate)))
    reasons = method.biases(cycle.passes.steps)
    lines = [f"method: {method.name} ({method.paper}), gradient {'BIASED' if reasons else 'unbiased'}"]
    if method.rounds is not None:
        lines.append(f"prompts: {method.rounds}; a step wants {block} groups of {args.num_generations} completions")
    elif not method.prompts.rate:
        each = "on average" if method.sizes is not None else "each"
        lines.append(f"prompts: all {block} of a block are rolled out, {args.num_generations} completions {each}")
    elif method.prompts.auto is not None:
        lines.append(
            f"prompts: all {block} of a block until prompts have come back (prompt_prune_rate: auto starts unpruned, "
            f"without a history to choose from), then up to {method.prompts.rate:g} of them pruned where that pays"
        )
    elif args.prompt_mode == "fill":
        lines.append(f"prompts: blocks of up to {round(block / (1 - method.prompts.rate))}, about {block} rolled out")
    else:
        lines.append(f"prompts: of a block of {block}, about {kept} are rolled out once all have a history")
    if method.sizes is not None:
        most = max(method.sizes.most, args.num_generations)
        lines.append(f"group sizes: by history, 1 to {most} completions of a prompt, {args.num_generations} on average")
    if args.num_generations == 1 and args.difficulty_features is None and args.prompt_values is None:
        lines.append("the first generation has no gradient: nothing is known yet that its completions differ from")
    share = f"{1 - method.completions.rate:.0%}"
    if getattr(method.completions, "auto", None) is not None:
        share = f"{share} or more, as their scores say in each step (completion_prune_rate: auto),"
    lines.append(f"completions: of those with a gradient, {share} are trained on; score {method.score_name}")
    if method.schedule is not constant:
        lines.append(f"rates follow a schedule over the run: {in_words(method.schedule)}")
    if args.advantage_power:
        lines.append(f"advantages: {method.advantages.name}, which is another objective than the reward's")
    steps = cycle.passes.steps
    lines.append(
        f"optimizer steps per generation: {steps}" + (" (completions drawn anew for each)" if steps > 1 else "")
    )
    calls, accumulated = cycle.calls * cycle.passes.shares, args.gradient_accumulation_steps
    if accumulated > calls:
        lines.append(
            f"an optimizer step takes {accumulated // calls} generations: gradient_accumulation_steps={accumulated} "
            f"calls, and a generation has {calls}"
        )
    if prompts_in_dataset is not None and method.prompts.rate:
        lines.append(f"an epoch is {prompts_in_dataset / block:.0f} generations; none is pruned in the first one")
    return lines + [f"biased: {reason}" for reason in reasons]


def generation_sizes(args: Any, processes: int) -> tuple[int, Cycle]:
    """Completions of a generation and the cycle of its calls.

    Args:
        args: the run's arguments, a ``DPPOConfig``.
        processes: how many the run is meant for.

    Raises:
        ConfigError: they cannot share the generation.
    """
    per_call = args.per_device_train_batch_size * processes
    steps = args.steps_per_generation or 1
    if args.generation_batch_given:
        whole = args.generation_batch_size or per_call
        steps, rest = divmod(whole, per_call)
        problem = (
            f"generation_batch_size={whole} is not a multiple of the {per_call} completions that {processes} processes "
            f"hold at once. Try generation_batch_size: {per_call * (steps or 1)}."
        )
        raise_problems("DPPOConfig", [problem] if rest or not steps else [])
    cycle = Cycle.of(
        steps_per_generation=steps, accumulation=args.gradient_accumulation_steps, iterations=args.num_iterations
    )
    return per_call * steps, cycle
