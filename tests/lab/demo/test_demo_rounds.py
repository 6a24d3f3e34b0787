"""Rounds in the loop: DAPO rolls out until enough groups count and trains on them alone; GRESO skips prompts."""

import copy
from dataclasses import replace

import pytest
import torch
from refusals import refused

from dppo.errors import RoundsError
from dppo.methods import METHODS
from dppo.rng import Purpose, torch_generator
from dppo.verification.tiny_tokenizer import encode_questions
from dppo_lab.demo.decode import sample
from dppo_lab.demo.loop import GENERATIONS

DAPO, GRESO = METHODS["dapo"], METHODS["greso"]
SIZE, WANTED = 16, 3


@pytest.fixture
def loop(still):
    return lambda method, rewards: still(method, rewards, prompts=WANTED, size=SIZE)


def some_rows(row_Q, step):
    """Rewards that differ within the groups of every third dataset row only."""
    reward_QG = torch.zeros(len(row_Q), GENERATIONS)
    reward_QG[row_Q % 3 == 1, ::3] = 1.0
    return reward_QG


def useful(row_Q, step):
    return (torch.arange(GENERATIONS) % 2).float().repeat(len(row_Q), 1)


def by_hand(start, rows, used):
    """The gradient of DAPO's loss over some groups, one completion after another, divided by their tokens."""
    model, tokenizer, split = copy.deepcopy(start[0]), start[1], start[2]
    prompts = encode_questions(tokenizer, [problem.question for problem in split.train[:SIZE]])
    tokens, losses = 0, []
    for number in range(len(rows) // WANTED):
        asked = rows[number * WANTED : (number + 1) * WANTED]
        rng = torch_generator(0, Purpose.ROLLOUT, 0, number)
        rollout = sample(start[0], [prompts[i] for i in asked], rng, samples=GENERATIONS, max_new_tokens=16)
        reward_QG = some_rows(torch.tensor(asked), 0).double()
        spread_QG = reward_QG.std(1, keepdim=True) + 1e-4
        advantage_N = ((reward_QG - reward_QG.mean(1, keepdim=True)) / spread_QG).flatten()
        for i in range(WANTED * GENERATIONS):
            if not used[number * WANTED + i // GENERATIONS]:
                continue
            length = int(rollout.length_N[i])
            prompt = torch.tensor(prompts[asked[i // GENERATIONS]])
            completion = rollout.token_NT[i, :length]
            logits = model(input_ids=torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1]
            logp_T = logits.log_softmax(-1).gather(-1, completion[:, None])[:, 0]
            losses.append(-(advantage_N[i] * (logp_T - logp_T.detach()).exp()).sum())
            tokens += length
    (torch.stack(losses).sum() / tokens).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]).double()


def test_dapo_trains_on_the_first_groups_that_count_over_their_own_tokens(start, loop):
    made, gradients = loop(DAPO, some_rows)
    order = made.source.stream.peek(SIZE).tolist()
    report = made.step(1e-3)
    counts = [row % 3 == 1 for row in order]
    rounds = next(r for r in range(1, 6) if sum(counts[: r * WANTED]) >= WANTED)
    rows = order[: rounds * WANTED]
    used = [counts[i] and sum(counts[: i + 1]) <= WANTED for i in range(len(rows))]
    assert rounds > 1 and sum(used) == WANTED, "the case has several rounds"
    assert (report.rounds, report.rollouts) == (rounds, len(rows) * GENERATIONS)
    assert report.completions_trained == WANTED * GENERATIONS
    assert report.zero_signal == pytest.approx(1 - sum(counts[: len(rows)]) / len(rows))

    wanted = by_hand(start, rows, used)
    torch.testing.assert_close(gradients[0], wanted, rtol=1e-3, atol=1e-6)
    everything = by_hand(start, rows, [True] * len(rows))
    assert (everything - wanted).norm() > 0.1 * wanted.norm(), "a denominator that counts all of them is another one"
    seen = made.source.history.candidates(torch.arange(SIZE), 1).seen_P
    assert seen.nonzero()[:, 0].tolist() == sorted(set(rows)), "history learns from what the step did without, too"


def test_the_limit_is_an_error_and_changes_no_weight(loop):
    made, gradients = loop(DAPO, lambda row_Q, step: torch.ones(len(row_Q), GENERATIONS))
    with refused(RoundsError, "after 10 rounds", "0 of 30", "max_rounds: 20"):
        made.step(1e-3)
    assert gradients == [] and made.steps == 0


def test_a_step_that_lacks_groups_trains_on_those_there_are(loop):
    """Only one of 16 prompts is useful: after three rounds the step is made of it alone, over its own completions."""

    def one(row_Q, step):
        return useful(row_Q, step) * (row_Q == 7)[:, None]

    made, gradients = loop(replace(GRESO, rounds=replace(GRESO.rounds, limit=3)), one)
    place = made.source.stream.peek(SIZE).tolist().index(7)
    report = made.step(1e-3)
    rolled_out = report.rollouts // GENERATIONS
    assert place < rolled_out and report.completions_trained == GENERATIONS
    assert gradients[0].norm() > 0
