r"""A reward without gold answers: 1 for the answer that most completions of a prompt gave (TTRL, arXiv:2504.16084).

    trainer = GRPOTrainer(model, reward_funcs=majority_vote_reward(votes=8), ...)  # votes: num_generations

Biased by design: it rewards agreement and not being right, and how much depends on how many completions vote. Agreement
rises when a policy becomes surer, right or wrong: it is no accuracy.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from answer_judge.errors import DataError
from answer_judge.grading import Verifier
from answer_judge.grading.answers import final_answer
from answer_judge.problems.rewards import completion_text


def majority_vote_reward(
    votes: int, benchmark: str | None = None, verifier: Verifier | None = None
) -> Callable[..., Any]:
    """A reward of 1.0 for the answer with the most votes, the first of those tied; 0.0 for any other or none.

    Two answers are the same if the verifier accepts each for the other. ``votes`` is the number of completions of a
    prompt, and ``benchmark`` the rule to judge by.
    """
    judge = verifier or Verifier()

    def vote(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        answers = [final_answer(completion_text(completion)) for completion in completions]
        sizes = [len(list(run)) for _, run in groupby(prompts)]
        if any(size % votes for size in sizes):
            raise DataError(
                f"the completions of a prompt come {sizes} at a time, and a vote has {votes}. Make "
                "per_device_train_batch_size * steps_per_generation a multiple of num_generations"
            )
        rewards: list[float] = []
        for start in range(0, len(answers), votes):
            classes = answer_classes(answers[start : start + votes], judge, benchmark)
            counts = Counter(number for number in classes if number is not None)
            winner = max(counts, key=lambda number: counts[number], default=None)
            rewards += [float(number is not None and number == winner) for number in classes]
        if columns.get("log_metric") and rewards:
            columns["log_metric"]("vote/agreement", sum(rewards) / len(rewards))
            columns["log_metric"]("vote/no_answer", answers.count(None) / len(answers))
        return rewards

    vote.__name__ = "majority_vote_reward"
    return vote


def answer_classes(answers: Sequence[str | None], judge: Verifier, benchmark: str | None) -> list[int | None]:
    """The class of equal answers that each is in, numbered by first appearance; None for no answer."""
    firsts: list[str] = []
    found: dict[str, int] = {}
    for answer in dict.fromkeys(each for each in answers if each is not None):
        said = [rf"\boxed{{{text}}}" for first in firsts for text in (answer, first)]
        verdicts = judge.verify_many(said, [gold for first in firsts for gold in (first, answer)], benchmark=benchmark)
        right = [verdict.value == 1.0 for verdict in verdicts]
        same = [place for place in range(len(firsts)) if right[2 * place] and right[2 * place + 1]]
        if not same:
            firsts.append(answer)
        found[answer] = same[0] if same else len(firsts) - 1
    return [None if answer is None else found[answer] for answer in answers]
