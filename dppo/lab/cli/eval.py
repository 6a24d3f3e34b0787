"""``dppo eval MODEL --benchmarks reasoning_gym:chain_sum``; other benchmarks are those of answer-judge."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dppo.errors import ConfigError
from dppo.lab.cli.words import listed
from dppo.lab.gym import is_gym
from dppo.lab.judge import judge

USAGE = "dppo eval MODEL --benchmarks NAMES [--limit N] [--output DIR]"
DESCRIPTION = (
    "Accuracy on held-out problems of tasks of reasoning-gym. Every other benchmark, file of problems and option is "
    "one of answer-judge: python -m answer_judge.evaluation --help."
)


def main(words: Sequence[str]) -> int:
    """Evaluate a model and print its accuracy, or hand the words to answer-judge."""
    parser = argparse.ArgumentParser(prog="dppo eval", usage=USAGE, description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("model", nargs="?", help="folder or hub name of a model")
    add = parser.add_argument
    add("--benchmarks", default="", help="names with commas between, each reasoning_gym:NAME")
    add("--task_arguments", type=json.loads, default={}, metavar="JSON", help='such as {"max_terms": 2}')
    add("--answer_pattern", default="text", help="the answer in a completion: text, number or tags")
    add("--prompt_template", help="text of the user's turn; {problem} is where the question goes")
    add("--output", default="runs/eval", metavar="DIR", help="folder for results.json")
    add("--limit", type=int, help="most problems of each, the same ones in every run")
    add("--seed", type=int, default=0)
    add("--temperature", type=float, default=0.6, help="default 0.6; 0 takes the most likely token")
    add("--top_p", type=float, default=0.95, help="default 0.95")
    add("--max_new_tokens", type=int, default=2048, help="default 2048")
    add("--batch_size", type=int, default=32, help="completions at once (default 32)")
    add("--dtype", default="auto", help="auto (default), float32, bfloat16 or float16")
    add("--workers", type=int, default=2, help="processes that score answers")
    add("--answer_time_limit", type=float, default=5.0, help="seconds that scoring one may take")
    options, others = parser.parse_known_args(words)
    names = listed(options.benchmarks) or []
    if not any(map(is_gym, names)):
        return judge("evaluation.command", "dppo eval on other benchmarks").main(words, "dppo eval")
    if others or not all(map(is_gym, names)) or not options.model:
        raise ConfigError(
            f"{' '.join(others) or options.benchmarks}: tasks of reasoning-gym are evaluated by themselves. Try dppo "
            f"eval MODEL --benchmarks {next(filter(is_gym, names))}"
        )
    from dppo.lab.runs.evaluate import evaluate

    with Console(file=sys.stderr).status(f"evaluating {options.model}"):
        results = evaluate(options, names, Path(options.output))
    for name, found in results["benchmarks"].items():
        interval = f"[{found['low']:.3f}, {found['high']:.3f}]"
        print(f"{name}: accuracy {found['value']:.3f} {interval} on {found['problems']} held-out problems")
    print(f"settings and results are in {options.output}")
    return 0
