"""Rounds in the loop: DAPO rolls out until enough groups count and trains on them alone; GRESO skips prompts."""

import copy
from dataclasses import replace

import pytest
import torch
from refusals import refused

from dppo.errors import RoundsError
from dppo.methods import METHODS
from dppo.pruning import PromptStream
from dppo.rng import Purpose, generator, torch_generator
from dppo.verification.tiny_tokenizer import encode_questions
from dppo_lab.demo.decode import sample
from examples.engine import GENERATIONS

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
    order = made.session.source.stream.peek(SIZE).tolist()
    report = made.step(1e-3)
    counts = [row % 3 == 1 for row in order]
    rounds = next(r for r in range(1, 6) if sum(counts[: r * WANTED]) >= WANTED)
    rows = order[: rounds * WANTED]
    used = [counts[i] and sum(counts[: i + 1]) <= WANTED for i in range(len(rows))]
    assert rounds > 1 and sum(used) == WANTED, "the case has several rounds"
    assert (report.rounds, report.rollouts) == (rounds, len(rows) * GENERATIONS)
    assert report.completions_trained == WANTED * GENERATIONS
    assert report.zero_variance == pytest.approx(1 - sum(counts[: len(rows)]) / len(rows))

    wanted = by_hand(start, rows, used)
    torch.testing.assert_close(gradients[0], wanted, rtol=1e-3, atol=1e-6)
    everything = by_hand(start, rows, [True] * len(rows))
    assert (everything - wanted).norm() > 0.1 * wanted.norm(), "a denominator that counts all of them is another one"
    seen = made.session.source.history.candidates(torch.arange(SIZE), 1).seen_P
    assert seen.nonzero()[:, 0].tolist() == sorted(set(rows)), "history learns from what the step did without, too"


def test_the_limit_is_an_error_and_changes_no_weight(loop):
    made, gradients = loop(DAPO, lambda row_Q, step: torch.ones(len(row_Q), GENERATIONS))
    with refused(RoundsError, "after 10 rounds", "0 of 30", "max_rounds: 20"):
        made.step(1e-3)
    assert gradients == [] and made.session.number == 0


def graded_rows(row_Q, step):
    """Of four dataset rows one is always right, one always wrong, one mixed and one mostly wrong."""
    reward_QG = torch.zeros(len(row_Q), GENERATIONS)
    reward_QG[row_Q % 4 == 0] = 1.0
    reward_QG[row_Q % 4 == 2, ::2] = 1.0
    reward_QG[row_Q % 4 == 3, 0] = 0.1
    return reward_QG


KINDS = {"greso": {0: "easy", 1: "hard"}, "greso_compat": {0: "easy", 1: "hard", 3: "hard"}}


def greso_by_hand(name, steps):
    """The rows that each step rolls out, and the exploration after it, with lists and dictionaries only."""
    order = PromptStream(SIZE, 0).peek(100 * SIZE).tolist()
    place, streak, explore, told = 0, {}, {"easy": 0.5, "hard": 0.5}, []
    for step in range(steps):
        rolled_out, buffer, round_size, last, number = [], 0, round(1.5 * WANTED), False, 0
        while True:
            draws, asked = generator(0, Purpose.PROMPT_SKIP, step, number), []
            while len(asked) < round_size:
                row, numbers, place = order[place], draws.random(2), place + 1
                kind, z = streak.get(row, ("easy", 0))
                chance = {"easy": 1.0, "hard": 1.0} | {kind: max(explore[kind] ** z, 0.01)}
                if numbers[0] >= 1 - chance["easy"] and numbers[1] >= 1 - chance["hard"]:
                    asked.append(row)
            rolled_out.append(asked)
            useful = sum(row % 4 in (2, 3) for row in asked)
            buffer, number = buffer + useful, number + 1
            if buffer >= WANTED or last or (number == 10 and buffer):
                break
            if useful:
                estimate = (WANTED - buffer) * len(asked) * 5 // (4 * useful)
                last = estimate <= round(1.5 * WANTED)
                round_size = max(min(estimate, round(1.5 * WANTED)), 1)
            else:
                round_size, last = round(1.5 * WANTED), False
        every = [row for asked in rolled_out for row in asked]
        for row in every:
            kind = KINDS[name].get(row % 4)
            before, z = streak.get(row, (None, 0))
            streak[row] = (kind, z + 1 if kind == before else 1) if kind else ("easy", 0)
        if place > SIZE:
            shares = {"easy": sum(row % 4 == 0 for row in every), "hard": sum(row % 4 == 1 for row in every)}
            if name == "greso_compat":
                shares["hard"] = 0  # groups of zeros are not exactly 0.1
            for kind, thirds in (("easy", 1), ("hard", 2)):
                down = 12 * shares[kind] >= thirds * len(every)
                explore[kind] = min(max(explore[kind] + (-0.01 if down else 0.01), 0.05), 0.95)
        told.append((every, dict(explore)))
    return told


@pytest.mark.parametrize("name", KINDS)
def test_greso_asks_what_its_rules_say(name, loop):
    asked, steps = [], 10

    def rewards(row_Q, step):
        asked[-1].extend(row_Q.tolist())
        return graded_rows(row_Q, step)

    made, gradients = loop(METHODS[name], rewards)
    wanted = greso_by_hand(name, steps)
    for rows, explore in wanted:
        asked.append([])
        made.step(1e-3)
        assert asked[-1] == rows
        learned = made.session.source.learned
        assert (learned.easy, learned.hard) == pytest.approx((explore["easy"], explore["hard"]))
    early, late = ([row for rows in asked[part] for row in rows] for part in (slice(0, 2), slice(6, 10)))
    shares = [sum(row % 4 < 2 for row in rows) / len(rows) for rows in (early, late)]
    assert shares[1] < shares[0], "prompts that give nothing are asked less often"
    assert any(explore["easy"] != 0.5 for _, explore in wanted) and len(gradients) == steps
    (other,) = KINDS.keys() - {name}
    assert wanted != greso_by_hand(other, steps)


def test_a_step_that_lacks_groups_trains_on_those_there_are(loop):
    """Only one of 16 prompts is useful: after three rounds the step is made of it alone, over its own completions."""

    def one(row_Q, step):
        return useful(row_Q, step) * (row_Q == 7)[:, None]

    made, gradients = loop(replace(GRESO, rounds=replace(GRESO.rounds, limit=3)), one)
    place = made.session.source.stream.peek(SIZE).tolist().index(7)
    report = made.step(1e-3)
    rolled_out = report.rollouts // GENERATIONS
    assert place < rolled_out and report.completions_trained == GENERATIONS
    assert gradients[0].norm() > 0
