"""The start of a ``DPPOTrainer``: its session, the lines that it prints, and the section on the card of its model."""

import warnings
from dataclasses import replace
from typing import Any, cast

from dppo import __version__
from dppo.errors import ConfigError
from dppo.methods import Method
from dppo.methods.settings import start_lines
from dppo.pruning import SCORES
from dppo.session import Session
from dppo.settings import AUTO
from dppo.trl.grpo.prompts import check_lengths, prompt_source
from dppo.trl.grpo.schedule import AccumulationSchedule
from dppo.trl.safeguards import precision_line
from dppo.trl.served import unserved_models, unserved_tokens


def start_session(trainer: Any, own: Method | None) -> Session:
    """The session of a run. ``own`` is a method that the trainer was given; None for the one of its arguments.

    Raises:
        ConfigError: the model, the score or the tokens that it leaves out are not served.
        DataError: a prompt has as many tokens as the model has positions.
    """
    for refusal in unserved_models(trainer):
        raise ConfigError(refusal)
    args, log_probs = trainer.args, trainer.use_vllm or trainer.rollout_func is not None
    if args.completion_score == "uncertainty" and not log_probs:
        raise ConfigError(
            "completion_score='uncertainty' needs the sampler's log-probabilities, which transformers' generate "
            "does not give. Set use_vllm: true, or completion_score: length."
        )
    config, longest = trainer.model.config, args.max_completion_length or 1
    method = args.build_method(own, sampler_log_probs=log_probs, model_config=config)
    for refusal in unserved_tokens(trainer, method, log_probs):
        raise ConfigError(refusal)
    weight_F, environment = trainer.reward_weights.double().cpu(), trainer.environment_factories is not None
    source = prompt_source(trainer.train_dataset, args, method, weight_F=weight_F, environment=environment)
    if source is not None and not environment:
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        check_lengths(trainer.train_dataset, tokenizer, config, longest)
    return Session(
        method,
        source,
        seed=args.seed,
        generations=int(trainer.num_generations or 1),
        max_tokens=longest,
        passes=trainer.schedule.passes,
        rollout_cost=args.rollout_cost,
    )


def score_without_log_probs(trainer: Any) -> None:
    """Choose another score if ``auto`` needs log-probabilities and ``rollout_func`` returned none."""
    if trainer.use_vllm and trainer.vllm_importance_sampling_correction:
        raise ConfigError(
            "rollout_func returned logprobs: None, and with use_vllm: true the loss is corrected by them. Return "
            "those of the sampler, or set vllm_importance_sampling_correction: false."
        )
    session, args = trainer.session, trainer.args
    if session.method.score != SCORES["uncertainty"] or args.completion_score != AUTO:
        return
    score = args.build_method().score
    completions = replace(cast(Any, session.method.completions), score=score)
    session.method = replace(session.method, completions=completions)
    name = next(name for name, each in SCORES.items() if each is score)
    warnings.warn(
        "rollout_func returned logprobs: None, and completion_score: auto would rank completions by them: they are "
        f"ranked by {name} instead. To choose it yourself, write completion_score: {name}.",
        stacklevel=2,
    )


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
    """Words about the prompts that a generation rolls out."""
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
