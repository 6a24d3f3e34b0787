"""The majority vote in TRL's own trainer and in ours: a fixed number of votes, in the groups that the trainer made."""

import pytest
from tiny_runs import GENERATIONS
from trl_recorder_runs import PROMPTS, make

from answer_judge.grading.vote import vote_rewards
from answer_judge.problems import majority_vote_reward


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "trl"])
def test_groups_of_the_trainer_vote(ours, tiny_path, tmp_path, verifier):
    vote, seen = majority_vote_reward(votes=GENERATIONS, verifier=verifier), []

    def reward(prompts, completions, **columns):
        boxed = [rf"\boxed{{{len(text) % 3}}}" for text in completions]
        seen.append((prompts, [len(text) % 3 for text in completions], vote(prompts, boxed, **columns)))
        return seen[-1][2]

    trainer, _ = make(tiny_path, tmp_path, ours=ours, recorded=False, reward=reward, max_steps=1)
    trainer.train()
    ((prompts, answers, rewards),) = seen
    assert len(prompts) % GENERATIONS == 0 and len(prompts) <= PROMPTS * GENERATIONS
    starts = range(0, len(prompts), GENERATIONS)
    groups = [slice(start, start + GENERATIONS) for start in starts]
    assert all(len(set(prompts[group])) == 1 for group in groups)
    assert rewards == [value for group in groups for value in vote_rewards(answers[group])]
    assert rewards != vote_rewards(answers)  # wrong: one vote over the batch
    logged = [record for record in trainer.state.log_history if "vote/agreement" in record]
    assert logged[0]["vote/agreement"] == pytest.approx(sum(rewards) / len(rewards))
    assert {"vote/ties", "vote/no_answer"} <= logged[0].keys()
