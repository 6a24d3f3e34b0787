"""Sampling until a vote is settled, with the decoder of the demonstration, up to the gradient of a step."""

import re

import torch
from torch.nn.utils.rnn import pad_sequence

from answer_judge.grading.vote import Stopping, majority
from answer_judge.problems import vote_until_settled
from dppo.methods import METHODS
from dppo.objective import Tokens
from dppo.rng import Purpose, step_streams, torch_generator
from dppo.step import RolledOut, micro_batch_loss, plan_step, whole_block
from dppo.types import Rewards
from dppo.verification.tiny_tokenizer import encode_questions
from dppo_lab.demo.decode import sample
from dppo_lab.demo.loop import together

RULE = Stopping(confidence=0.85, vote_odds=3.0, fewest=3, most=9, at_once=2)


def answer_of(text):
    """The first digit by its remainder: an untrained policy boxes nothing, and about one text in ten has no digit."""
    digit = re.search(r"\d", text)
    return None if digit is None else int(digit[0]) % 2


def voted(start, seed):
    """Completions of eight prompts, what they answered, and what their votes gave."""
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
    return prompts, together(rollouts), answers, settled


def test_prompts_stop_when_they_are_settled_and_not_before(start):
    _, rollout, answers, settled = voted(start, 0)
    group_N, reward_N = settled.prompts, settled.rewards
    assert len(group_N) == len(rollout.length_N) == len(answers)
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


def test_a_step_trains_on_groups_of_unequal_sizes(start):
    """The plan and the loss take them as they are; the gradient is that of the formula, a sum over own groups."""
    model, (prompts, rollout, _, settled) = start[0], voted(start, 1)
    method = METHODS["dr_grpo"]
    reward_N = torch.tensor(settled.rewards, dtype=torch.float64)
    rewards = Rewards(reward_NF=reward_N[:, None], group_N=torch.tensor(settled.prompts))
    plan = plan_step(
        method,
        RolledOut(rewards=rewards, tokens_N=rollout.length_N),
        whole_block(groups=rewards.groups, completions=len(rewards)),
        streams=step_streams(0, 0),
        max_tokens=4,
    )
    mean_Q = torch.tensor([vote.agreement for vote in settled.votes], dtype=torch.float64)
    centred_N = rewards.total_N - mean_Q[rewards.group_N]
    torch.testing.assert_close(plan.advantage_N, centred_N.masked_fill(rewards.flat_Q[rewards.group_N], 0.0))

    rows = [
        torch.tensor([*prompts[group], *tokens])
        for group, tokens in zip(rewards.group_N.tolist(), rollout.token_lists, strict=True)
    ]
    logits = model(pad_sequence(rows, batch_first=True)).logits.log_softmax(-1)
    logp_BT = torch.stack(
        [
            torch.cat([logits[n, len(row) - length - 1 : len(row) - 1].gather(1, row[-length:, None])[:, 0], pad])
            for n, (row, length) in enumerate(zip(rows, rollout.length_N.tolist(), strict=True))
            for pad in [torch.zeros(rollout.token_NT.shape[1] - length)]
        ]
    )
    torch.testing.assert_close(logp_BT.detach(), rollout.logp_NT, rtol=0, atol=1e-4)
    tokens = Tokens(
        logp_BT=logp_BT,
        old_logp_BT=logp_BT.detach(),
        advantage_B=plan.advantage_N.float(),
        mask_BT=rollout.mask_NT,
    )
    loss = micro_batch_loss(method, tokens, plan.weight_UN[0], denominator=plan.denominator, all_tokens=plan.tokens)
    formula = -(plan.advantage_N.float()[:, None] * logp_BT).sum() / (4 * len(rewards))
    wanted, found = (
        torch.autograd.grad(value, model.lm_head.weight, retain_graph=True)[0] for value in (formula, loss)
    )
    assert wanted.norm() > 0
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-7)
