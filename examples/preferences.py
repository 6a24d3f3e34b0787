"""A small set of preferences from verified answers: of each question a right one, preferred to a wrong one.

python examples/preferences.py pairs.jsonl [--questions 96] [--warm_up 300] [--seed 0]

The policy of the embedded task is warmed up on its imperfect teacher and answers questions, which the task's own reward
judges. Questions with answers of one kind only give no pair. Lines are what ``DPPODPOTrainer`` and TRL's trainer read.
"""

import argparse
from pathlib import Path
from typing import Any

from dppo.lab.demo.decode import sample
from dppo.lab.demo.rollouts import MAX_NEW_TOKENS
from dppo.lab.demo.task import QUICK, ArithmeticProblem, make_split, reward
from dppo.lab.demo.warmup import warm_up
from dppo.lab.files import append_lines
from dppo.rng import Purpose, torch_generator
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer, encode_questions


def preferences(model: Any, problems: list[ArithmeticProblem], *, samples: int, seed: int) -> list[Any]:
    """Pairs of a right and a wrong answer to one question, as many as the rarer kind has different ones."""
    tokenizer = build_tokenizer()
    prompts = encode_questions(tokenizer, [problem.question for problem in problems])
    drawn = sample(
        model, prompts, torch_generator(seed, Purpose.ROLLOUT), samples=samples, max_new_tokens=MAX_NEW_TOKENS
    )
    texts = tokenizer.batch_decode(drawn.token_lists, skip_special_tokens=True)
    golds = [problem.answer for problem in problems for _ in range(samples)]
    right = [reward(text, gold) == 1.0 for text, gold in zip(texts, golds, strict=True)]
    pairs = []
    for place, problem in enumerate(problems):
        here = range(place * samples, (place + 1) * samples)
        good, bad = (list(dict.fromkeys(texts[i] for i in here if right[i] is kind)) for kind in (True, False))
        for chosen, rejected in zip(good, bad, strict=False):
            turn = [{"role": "user", "content": problem.question}]
            answers = {"chosen": chosen, "rejected": rejected}
            said = {name: [{"role": "assistant", "content": text}] for name, text in answers.items()}
            pairs.append({"prompt": turn, **said, "answer": str(problem.answer)})
    return pairs


def main() -> None:
    """Warm up, ask, judge, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--questions", type=int, default=96)
    parser.add_argument("--warm_up", type=int, default=300, help="steps")
    parser.add_argument("--samples", type=int, default=8, help="answers to a question")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    model = build_model(options.seed)
    warm_up(model, build_tokenizer(), QUICK, seed=options.seed, steps=options.warm_up)
    problems = list(make_split(options.seed, train=options.questions, held_out=3, task=QUICK).train)
    pairs = preferences(model, problems, samples=options.samples, seed=options.seed)
    options.output.unlink(missing_ok=True)
    append_lines(options.output, pairs)
    print(f"{len(pairs)} pairs of {len(problems)} questions: {options.output}")


if __name__ == "__main__":
    main()
