"""GRESO in the loop asks for the prompts that its paper's rules name. ``test_trl_rounds.py`` has steps of rounds."""

import pytest
import torch

from dppo.methods import METHODS
from dppo.pruning import PromptStream
from dppo.rng import Purpose, generator
from examples.engine import GENERATIONS

SIZE, WANTED = 16, 3


@pytest.fixture
def loop(still):
    return lambda method, rewards: still(method, rewards, prompts=WANTED, size=SIZE)


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
