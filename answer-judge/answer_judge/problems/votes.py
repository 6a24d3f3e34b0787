"""Rewards without gold answers: agreement with the majority of a group, in TRL's signature and as a sampling loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from answer_judge.errors import ConfigError, DataError, is_listed
from answer_judge.grading.answers import final_answer, last_boxed
from answer_judge.grading.verifier import LONGEST_ANSWER, Verifier
from answer_judge.grading.vote import Same, Stopping, Vote, answer_classes, equal, majority, vote_rewards
from answer_judge.problems.rewards import Reward, completion_text

Sampler = Callable[[list[int]], Sequence[Any]]
"""``sample_more(prompts)``: one new answer, or None for none, for each of the prompts named, which may repeat."""


def majority_vote_reward(
    *,
    votes: int | None = None,
    benchmark: str | None = None,
    verifier: Verifier | None = None,
    workers: int = 2,
    limit_seconds: float = 5.0,
) -> Reward:
    """A reward of 1.0 for the final answer that most completions of the same prompt gave, 0.0 for any other or none.

    No column of the dataset is read, so no gold answer is. A group is a run of equal prompts, as TRL passes them; ties
    go to the answer that appeared first. Answers are the same where the verifier says so of each against the other.
    Biased by design: it rewards agreement, not being right, and depends on how many completions vote (docs/votes.md).

    Where the trainer offers logging, ``vote/agreement`` is the mean reward, ``vote/ties`` the share of groups that a
    tie decided, ``vote/no_answer`` the share of completions that did not vote, and ``vote`` the answer each was held
    to.

    Args:
        votes: completions of a group, >= 2, the trainer's ``num_generations``. Longer runs of equal prompts are cut,
            and a group that is not whole, because another process has the rest of it, is an error. None: groups are
            runs of equal prompts, of any size.
        benchmark: the rule by which answers are the same, see ``verifier.RULES``.
        verifier: one to share; by default the reward has its own, shut down at exit.
        workers: processes of its own verifier, >= 1.
        limit_seconds: wall-clock seconds for one comparison in its own verifier, > 0.

    Source: TTRL, arXiv:2504.16084.

    Raises:
        ConfigError: math-verify is missing, or a setting is out of range. The reward raises DataError for a group that
            is not whole.
    """
    if votes is not None and votes < 2:
        raise ConfigError(f"votes={votes} must be >= 2: a vote of one always agrees. Try majority_vote_reward(votes=8)")
    judge = verifier or Verifier(workers=workers, limit_seconds=limit_seconds)

    def vote(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        if len(prompts) != len(completions):
            raise DataError(f"{len(prompts)} prompts but {len(completions)} completions: give one prompt for each")
        answers = iter([final_answer(completion_text(completion)) for completion in completions])
        groups = [list(islice(answers, size)) for size in group_sizes_of(prompts, votes)]
        numbers = answer_classes(groups, same_answers(judge, benchmark=benchmark))
        _log(columns, groups, numbers)
        return [reward for group in numbers for reward in vote_rewards(group)]

    vote.__name__ = "majority_vote_reward"
    vote.__dict__["required_columns"] = ()
    return vote


def group_sizes_of(prompts: Sequence[Any], votes: int | None) -> list[int]:
    """How many completions each group has, in order: ``votes`` each, or as many equal prompts as follow each other.

    ``DataError``: a run of equal prompts is no whole number of groups.
    """
    runs = [len(list(run)) for _, run in groupby(prompts)]
    if votes is None:
        return runs
    cut = next((run for run in runs if run % votes), 0)
    if cut:
        raise DataError(
            f"{cut} completions of one prompt follow each other, and a vote has {votes}: a group is cut between "
            "processes, or of another size. Make per_device_train_batch_size * steps_per_generation a multiple of "
            "num_generations, or write majority_vote_reward(votes=None) to let any number vote"
        )
    return [votes] * (len(prompts) // votes)


def _log(columns: dict[str, Any], groups: list[list[str | None]], numbers: list[list[int | None]]) -> None:
    """Log what the votes came to, under the same names every time: ranks must agree on them."""
    held = [majority(group) for group in numbers]
    total = sum(map(len, groups))
    if columns.get("log_extra"):
        # The answer a group was held to, as its first completion wrote it; empty where none has an answer.
        each = zip(groups, numbers, held, strict=True)
        said = ["" if vote.winner is None else str(group[found.index(vote.winner)]) for group, found, vote in each]
        columns["log_extra"]("vote", [text for text, group in zip(said, groups, strict=True) for _ in group])
    if columns.get("log_metric") and total:
        agreeing = sum(vote.agreement * len(group) for vote, group in zip(held, groups, strict=True))
        columns["log_metric"]("vote/agreement", agreeing / total)
        columns["log_metric"]("vote/no_answer", sum(vote.silent for vote in held) / total)
        columns["log_metric"]("vote/ties", sum(vote.tied for vote in held) / len(held))


def same_answers(judge: Verifier, *, benchmark: str | None = None) -> Same:
    """``Same`` for answers in text: each is right where the other is the gold answer, so the order does not matter.

    What is told of a pair is remembered. Answers above 1,000 characters, or with braces that do not match, are the same
    as their own text alone; so is what the verifier cannot read in time.

    Args:
        judge: asked twice about each pair that texts and plain integers do not settle.
        benchmark: the rule, a key of ``verifier.RULES``, or None for the exact one.
    """
    known: dict[tuple[str, str], bool] = {}

    def same(pairs: list[tuple[str, str]]) -> list[bool]:
        new = [pair for pair in dict.fromkeys(pairs) if pair not in known]
        known.update((pair, False) for pair in new)
        asked = [pair for pair in new if all(map(_can_be_asked, pair))]
        said = [rf"\boxed{{{text}}}" for pair in asked for text in pair]
        verdicts = judge.verify_many(said, [text for pair in asked for text in reversed(pair)], benchmark=benchmark)
        for place, pair in enumerate(asked):
            known[pair] = all(verdict.value == 1.0 for verdict in verdicts[2 * place : 2 * place + 2])
        return [known[pair] for pair in pairs]

    return same


def _can_be_asked(answer: str) -> bool:
    """Whether an answer, put into a box, is found in it whole."""
    return len(answer) <= LONGEST_ANSWER and last_boxed(rf"\boxed{{{answer}}}") == answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Votes that were sampled until they were settled, and what their completions are worth."""

    rewards: tuple[float, ...]
    """Of each completion, in the order in which they were sampled."""
    prompts: tuple[int, ...]
    """Of each completion, its prompt; groups, one per prompt, differ in size."""
    votes: tuple[Vote, ...]
    """Of each prompt, over the numbers of its classes of answers."""
    rounds: int
    """Calls of ``sample_more``."""


def vote_until_settled(prompts: int, sample_more: Sampler, rule: Stopping, *, same: Same = equal) -> Settled:
    """Sample answers in rounds, of the prompts whose vote is still open alone, and reward agreement with the majority.

    Args:
        prompts: P, how many prompts, >= 1, numbered from 0.
        sample_more: called once a round with the prompts to complete, ascending, each as often as it is wanted.
        rule: when the vote on a prompt is settled; each prompt ends with ``fewest`` to ``most`` completions.
        same: which answers are the same, ``same_answers(verifier)`` for texts.

    Returns:
        Rewards in the order of the completions: what ``sample_more`` was asked for, call after call.

    Raises:
        ConfigError: no prompts. DataError: ``sample_more`` does not give one answer per prompt named.
    """
    if prompts < 1:
        raise ConfigError(f"prompts={prompts} must be >= 1: how many prompts there are, such as len(row_Q)")
    groups: list[list[Any]] = [[] for _ in range(prompts)]
    numbers: list[list[int | None]] = [[] for _ in range(prompts)]
    places: list[tuple[int, int]] = []
    rounds, still = 0, list(range(prompts))
    while wanted := [p for p in still for _ in range(rule.more(majority(numbers[p]).votes.values(), len(groups[p])))]:
        answers = sample_more(wanted)
        if not is_listed(answers) or len(answers) != len(wanted):
            raise DataError(
                f"sample_more gave {answers!r:.80} for {len(wanted)} prompts: give one answer, or None, each"
            )
        for prompt, answer in zip(wanted, answers, strict=True):
            places.append((prompt, len(groups[prompt])))
            groups[prompt].append(answer)
        rounds, still = rounds + 1, list(dict.fromkeys(wanted))
        for prompt, found in zip(still, answer_classes([groups[p] for p in still], same), strict=True):
            numbers[prompt] = found
    reward = [vote_rewards(found) for found in numbers]
    return Settled(
        rewards=tuple(reward[prompt][place] for prompt, place in places),
        prompts=tuple(prompt for prompt, _ in places),
        votes=tuple(map(majority, numbers)),
        rounds=rounds,
    )
