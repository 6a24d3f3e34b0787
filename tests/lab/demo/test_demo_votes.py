"""Sampling until a vote is settled, with the decoder of the demonstration."""

import re

from answer_judge.grading.vote import Stopping, majority
from answer_judge.problems import vote_until_settled
from dppo.rng import Purpose, torch_generator
from dppo.verification.tiny_tokenizer import encode_questions
from dppo_lab.demo.decode import sample

RULE = Stopping(confidence=0.85, vote_odds=3.0, fewest=3, most=9, at_once=2)


def answer_of(text):
    """The first digit by its remainder: an untrained policy boxes nothing, and about one text in ten has no digit."""
    digit = re.search(r"\d", text)
    return None if digit is None else int(digit[0]) % 2


def voted(start, seed):
    """The answers of eight prompts' completions, and their votes."""
    model, tokenizer, split = start
    prompts = encode_questions(tokenizer, [problem.question for problem in split.train[:8]])
    rollouts, answers = [], []

    def sample_more(wanted):
        rng = torch_generator(seed, Purpose.ROLLOUT, len(rollouts))
        rollouts.append(sample(model, [prompts[prompt] for prompt in wanted], rng, max_new_tokens=4))
        texts = tokenizer.batch_decode(rollouts[-1].token_lists, skip_special_tokens=True)
        answers.extend(map(answer_of, texts))
        return answers[-len(wanted) :]

    settled = vote_until_settled(len(prompts), sample_more, RULE)
    assert settled.rounds == len(rollouts)
    return answers, settled


def test_prompts_stop_when_they_are_settled_and_not_before(start):
    answers, settled = voted(start, 0)
    group_N, reward_N = settled.prompts, settled.rewards
    assert len(group_N) == len(answers)
    sizes = set()
    for prompt in range(8):
        own = [place for place, group in enumerate(group_N) if group == prompt]
        said = [answers[place] for place in own]
        vote = majority(said)
        assert [reward_N[place] for place in own] == [float(a is not None and a == vote.winner) for a in said]
        for drawn in range(3, len(said) + 1, 2):
            assert (RULE.more(majority(said[:drawn]).votes.values(), drawn) == 0) == (drawn == len(said))
        sizes.add(len(said))
    assert len(sizes) > 1 and sizes <= {3, 5, 7, 9} and None in answers
