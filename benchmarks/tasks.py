"""What the embedded tasks are like: groups without signal, how many stay so, lengths, gradient noise, what is learnt.

python benchmarks/tasks.py [--tasks embedded,embedded_sparse] [--seeds 200,201,202] [--work FOLDER] [--output FILE.json]

Each seed has a warm start, which is kept in the work folder, and one run of plain GRPO in the demonstration's loop. At
the start and after every epoch each training prompt is answered anew by the policy as it then is: nothing is read off
the training steps. A group is dead where all its completions have the same reward.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from results_file import write
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from dppo.environment import one_thread
from dppo.methods import METHODS
from dppo.objective import group_advantages
from dppo.rng import Purpose, torch_generator
from dppo.types import Rewards
from dppo.verification.gradients import Folding, log_probs, trained_parameters
from dppo.verification.tiny_tokenizer import build_tokenizer, encode_questions
from dppo_lab.demo.decode import sample
from dppo_lab.demo.evaluate import BATCH_ROWS, MAX_NEW_TOKENS, accuracy, rewards_of
from dppo_lab.demo.loop import Loop
from dppo_lab.demo.race import Runner
from dppo_lab.demo.scratch import prepare_embedded
from dppo_lab.demo.task import Problem, Split, make_split
from dppo_lab.runs.embedded import TASKS

SEEDS = (200, 201, 202)
"""Neither the tasks nor any comparison were tuned on these."""
TRAIN = {"embedded": 192, "embedded_quick": 192, "embedded_sparse": 72}
"""Training prompts of a run."""
HELD_OUT, HELD_OUT_SAMPLES = 192, 4
GENERATIONS = 8
PROMPTS, STEPS, LEARNING_RATE = 8, 72, 2e-4
"""Of training: prompts per step, optimizer steps, and the rate after its rise, which falls as in ``dppo demo``."""
RATE_SAMPLES = 32
"""Completions per prompt from which pass rates at the start are read."""
NOISE_GROUPS = 256
"""Groups of ``GENERATIONS`` from which the noise of the gradient is read, each of a question of its own."""

Answered = tuple[Tensor, list[list[list[int]]]]
"""(P, G) rewards, and the token ids of the G completions of each of P problems."""


def answers(model: Any, tokenizer: Any, problems: Sequence[Problem], samples: int, rng: torch.Generator) -> Answered:
    """``samples`` completions of each problem at temperature 1."""
    rewards, tokens, at_once = [], [], BATCH_ROWS // samples
    for start in range(0, len(problems), at_once):
        asked = problems[start : start + at_once]
        prompts = encode_questions(tokenizer, [problem.question for problem in asked])
        rollout = sample(model, prompts, rng, samples=samples, max_new_tokens=MAX_NEW_TOKENS)
        each = [problem for problem in asked for _ in range(samples)]
        rewards.append(rewards_of(rollout, tokenizer, each).view(-1, samples))
        lists = rollout.token_lists
        tokens += [lists[first : first + samples] for first in range(0, len(lists), samples)]
    return torch.cat(rewards), tokens


def dead(reward_PG: Tensor) -> Tensor:
    """(P,) bool, True where all completions of a prompt have the same reward."""
    return (reward_PG == reward_PG[:, :1]).all(1)


def still_dead(dead_EP: Sequence[Tensor]) -> tuple[float, float]:
    """Of the groups that are dead at one look, the share that is at the next: from the first look, and from all.

    ``dead_EP`` are (P,) bool of the same prompts, an epoch apart.
    """
    pairs = [(int((before & after).sum()), int(before.sum())) for before, after in pairwise(dead_EP)]
    stayed, were = (sum(numbers) for numbers in zip(*pairs, strict=True))
    return pairs[0][0] / pairs[0][1], stayed / were


def noise_and_signal(gradients: Iterable[Tensor]) -> tuple[float, float]:
    """Unbiased tr(S) and |g|^2 of M >= 2 independent gradients with mean g and covariance S.

    |g|^2 is the mean inner product of two different ones, so it may come out below 0. Their quotient is the number of
    gradients whose mean has as much noise as signal.

    Source: McCandlish et al. (2018), arXiv:1812.06162, appendix A.
    """
    total, squares, count = torch.zeros(()), 0.0, 0
    for gradient in gradients:
        total = total + gradient.double()
        squares += float(gradient.double().square().sum())
        count += 1
    signal = (float(total.square().sum()) - squares) / (count * (count - 1))
    return squares / count - signal, signal


def group_gradients(model: Qwen3ForCausalLM, prompts: list[list[int]], answered: Answered) -> Iterator[Tensor]:
    """The gradient of GRPO's loss on each group: advantages over the group's deviation, tokens averaged."""
    parameters = trained_parameters(model)
    folding = Folding(parameters)
    reward_PG, tokens = answered
    advantage_PG = group_advantages(Rewards.of_groups(reward_PG)).view_as(reward_PG)
    for prompt, completions, advantage_G in zip(prompts, tokens, advantage_PG.tolist(), strict=True):
        model.zero_grad()
        for completion, advantage in zip(completions, advantage_G, strict=True):
            if advantage:
                (-advantage / len(completions) * log_probs(model, prompt, completion).mean()).backward()
        yield folding(parameters)
    model.zero_grad()


def noise_scale(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, name: str, seed: int, look: int
) -> float | None:
    """Noise over signal in completions, on questions drawn as those trained on are; None where no signal is seen."""
    problems = make_split(seed, train=NOISE_GROUPS, held_out=0, task=TASKS[name]).train
    answered = answers(model, tokenizer, problems, GENERATIONS, torch_generator(seed, Purpose.CHECK, look, 1))
    prompts = encode_questions(tokenizer, [problem.question for problem in problems])
    noise, signal = noise_and_signal(group_gradients(model, prompts, answered))
    return GENERATIONS * noise / signal if signal > 0 else None


def at_start(name: str, split: Split, answered: Answered) -> dict[str, float]:
    """Pass rates, groups without signal, and tokens of an answer by band, of the training prompts."""
    reward_PG, tokens = answered
    right_P = reward_PG.mean(1)
    groups = reward_PG.view(-1, GENERATIONS)
    shares = {
        "never": right_P == 0,
        "rarely": (right_P > 0) & (right_P <= 0.1),
        "sometimes": (right_P > 0.1) & (right_P < 0.9),
        "mostly": (right_P >= 0.9) & (right_P < 1),
        "always": right_P == 1,
        "all_right": groups.sum(1) == GENERATIONS,
        "all_wrong": groups.sum(1) == 0,
        **{f"dead_at_{size}": dead(reward_PG.view(-1, size)) for size in (2, 4, 8)},
    }
    record = {key: share.double().mean().item() for key, share in shares.items()}
    for band in ("easy", "middle", "hard"):
        levels = getattr(TASKS[name], band)
        inside = [index for index, problem in enumerate(split.train) if problem.level in levels]
        record[f"right_{band}"] = right_P[inside].mean().item()
        record[f"tokens_{band}"] = mean(len(one) for index in inside for one in tokens[index])
    return record


def measure(name: str, seed: int, folder: Path, *, steps: int = STEPS) -> dict[str, Any]:
    """One record: a task and a seed, at the start and through a run of plain GRPO."""
    if not folder.exists():
        prepare_embedded(folder, seed=seed, task=TASKS[name])
    model, tokenizer = Qwen3ForCausalLM.from_pretrained(folder), build_tokenizer()
    split = make_split(seed, train=TRAIN[name], held_out=HELD_OUT, task=TASKS[name])

    def look(number: int, samples: int) -> Answered:
        return answers(model, tokenizer, split.train, samples, torch_generator(seed, Purpose.CHECK, number))

    def held_out(when: str) -> dict[str, float]:
        rng = torch_generator(seed, Purpose.EVALUATION)
        right_P = accuracy(model, tokenizer, split.held_out, HELD_OUT_SAMPLES, rng).double().mean(1)
        hard = [index for index, problem in enumerate(split.held_out) if problem.level in TASKS[name].hard]
        return {f"accuracy_{when}": right_P.mean().item(), f"accuracy_hard_{when}": right_P[hard].mean().item()}

    answered = look(0, RATE_SAMPLES)
    record = {
        "task": name,
        "seed": seed,
        "train": len(split.train),
        **at_start(name, split, answered),
        "noise_start": noise_scale(model, tokenizer, name, seed, 0),
        **held_out("start"),
    }
    looks = [dead(answered[0][:, :GENERATIONS])]
    runner = Runner("grpo", Loop(model, tokenizer, split.train, METHODS["grpo"], seed=seed, prompts=PROMPTS))
    for step in range(steps):
        runner.take_step(step / steps, LEARNING_RATE)
        if runner.loop.steps * PROMPTS % len(split.train) == 0:
            looks.append(dead(look(len(looks), GENERATIONS)[0]))
    first, every = still_dead(looks)
    return {
        **record,
        "steps": steps,
        "completions": runner.total("rollouts"),
        "epochs": steps * PROMPTS / len(split.train),
        "still_dead_first": first,
        "still_dead": every,
        "dead_end": looks[-1].double().mean().item(),
        "noise_end": noise_scale(model, tokenizer, name, seed, 1),
        **held_out("end"),
    }


ROWS = (
    ("groups of 8 without signal at the start", ("dead_at_8",)),
    ("- all right, all wrong", ("all_right", "all_wrong")),
    ("groups of 4, of 2 without signal", ("dead_at_4", "dead_at_2")),
    ("of the dead groups of 8, still dead after the first epoch", ("still_dead_first",)),
    ("- after any one epoch of the run", ("still_dead",)),
    ("groups of 8 without signal at the end", ("dead_end",)),
    ("prompts right never, at most 0.1, between, at least 0.9, always (of 32)",
     ("never", "rarely", "sometimes", "mostly", "always")),
    ("share right at the start: easy, middle, hard", ("right_easy", "right_middle", "right_hard")),
    ("tokens of an answer: easy, middle, hard", ("tokens_easy", "tokens_middle", "tokens_hard")),
    ("noise scale in completions: start, end", ("noise_start", "noise_end")),
    ("held-out accuracy: start, end", ("accuracy_start", "accuracy_end")),
    ("- on the hard band: start, end", ("accuracy_hard_start", "accuracy_hard_end")),
    ("training prompts, epochs, completions", ("train", "epochs", "completions")),
)  # fmt: skip
"""Lines of the table, and the figures of each."""


def table(records: Sequence[dict[str, Any]]) -> str:
    """The table of docs/tasks.md: means over seeds, with the lowest and highest seed where there are several."""
    names = list(dict.fromkeys(record["task"] for record in records))
    lines = ["| | " + " | ".join(f"`{name}`" for name in names) + " |", "|---" * (len(names) + 1) + "|"]
    for text, keys in ROWS:
        cells = [", ".join(_cell([r[key] for r in records if r["task"] == name]) for key in keys) for name in names]
        lines.append(f"| {text} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(values: Sequence[float | None]) -> str:
    values = [value for value in values if value is not None]
    if not values:
        return "none seen"
    digits = 2 if max(values) <= 1 else 0
    ends = "" if max(values) == min(values) else f" ({min(values):.{digits}f} to {max(values):.{digits}f})"
    return f"{mean(values):.{digits}f}{ends}"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="embedded,embedded_sparse")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--work", type=Path, default=Path("runs/tasks"), help="folder of the warm starts")
    parser.add_argument("--output", default="benchmarks/results/tasks.json")
    options = parser.parse_args()
    seeds, records = [int(seed) for seed in options.seeds.split(",")], []
    with one_thread():
        for name in options.tasks.split(","):
            for seed in seeds:
                records.append(measure(name, seed, options.work / f"{name}-{seed}"))
                write(options.output, records, seeds)  # a run that is stopped keeps what is finished
                print(records[-1], flush=True)
    print(table(records))


if __name__ == "__main__":
    main()
