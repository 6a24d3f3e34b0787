r"""Countdown: reach a target from a few numbers with + - * /. Problems with a seed, and a checker for ``check:``.

python examples/countdown/task.py --count 96 --seed 0 > examples/countdown/problems.jsonl
"""

import argparse
import ast
import json
import operator
import random
import re
from collections import Counter
from fractions import Fraction

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
LONGEST = 200
"""Characters of an expression."""


def right(completion: str, row: dict) -> bool:
    r"""Whether the last ``\boxed{...}`` gives the row's target from its numbers, each used once."""
    boxes = re.findall(r"\\boxed\{([^{}]*)\}", completion)
    if not boxes or len(boxes[-1]) > LONGEST:
        return False
    try:
        tree = ast.parse(boxes[-1].strip(), mode="eval").body
        value = value_of(tree)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError):
        return False
    used = Counter(node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return used == Counter(row["numbers"]) and value == row["target"]


def value_of(node: ast.expr) -> Fraction:
    """The value of an expression of whole numbers; ValueError for anything else."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value_of(node.left), value_of(node.right))
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    raise ValueError("not an expression of whole numbers")


def problems(count: int, seed: int) -> list[dict]:
    """``count`` different problems of three numbers, each with a solution."""
    rng, found = random.Random(seed), {}
    while len(found) < count:
        a, b, c = numbers = rng.sample(range(1, 14), 3)
        first, second = rng.choice("+-*"), rng.choice("+-*")
        middle = SIGNS[first](a, b)
        target = SIGNS[second](middle, c)
        listed = ", ".join(map(str, sorted(numbers)))
        problem = f"Use each of {listed} once, with + - * / and brackets, to make {target}."
        if 0 < target < 100 and problem not in found:
            expression = f"({a}{first}{b}){second}{c}"
            solution = f"{a}{first}{b}={middle}, {middle}{second}{c}={target}, so \\boxed{{{expression}}}"
            own = {"numbers": sorted(numbers), "target": target}
            found[problem] = {"problem": problem, **own, "answer": expression, "solution": solution}
    return list(found.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for row in problems(options.count, options.seed):
        print(json.dumps(row))
