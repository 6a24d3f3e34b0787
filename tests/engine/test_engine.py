"""`examples/engine.py`: gradients that are unbiased when pruned, every preset, and prompts that GRESO asks for."""

from dataclasses import replace

import pytest
import torch
from mechanisms import one_of_each

from dppo.lab.demo.decode import sample
from dppo.lab.demo.task import make_split
from dppo.methods import METHODS
from dppo.pruning import UNWEIGHTED, PromptStream
from dppo.rng import Purpose, generator, step_streams, torch_generator
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer
from examples.engine import GENERATIONS, Loop, everything

GRPO, DPPO = METHODS["grpo"], METHODS["dppo"]
SIZE = 16
SERVED = [name for name, method in METHODS.items() if not (method.needs_reference or method.tokens.active)]


@pytest.fixture
def still(monkeypatch):
    """Makes loops of an untrained policy whose steps leave parameters alone, with the gradients of their steps.

    The policy is never right, so rewards come from ``rewards(row_Q, step)``.
    """
    monkeypatch.setattr("examples.engine.MAX_NEW_TOKENS", 16)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *a, **k: None)

    def made(method, rewards, **options):
        problems, gradients = make_split(0, train=32, held_out=6).train[:SIZE], []
        loop = Loop(build_model(0).eval(), build_tokenizer(), problems, method, seed=0, **options)

        def keep():
            parts = [p.grad if p.grad is not None else torch.zeros_like(p) for p in loop.model.parameters()]
            gradients.append(torch.cat([part.flatten() for part in parts]).double())

        def given(row_N, rollout):
            return rewards(row_N[:: loop.session.generations], loop.session.number).flatten()

        monkeypatch.setattr(loop, "_rewards", given)
        monkeypatch.setattr(loop.optimizer, "step", keep)
        return loop, gradients

    return made


def coin(row_Q, step):
    return torch.randint(2, (len(row_Q), GENERATIONS), generator=torch_generator(1, Purpose.CHECK, step)).float()


@pytest.fixture
def gradient_of_step(still, monkeypatch):
    """The gradient and report of one step; ``draw_seed`` chooses other completions from the same rollouts."""
    rolled_out = []

    def once(*given, **named):
        rolled_out[:] = rolled_out or [sample(*given, **named)]
        return rolled_out[0]

    def found(method, draw_seed=0, live=None):
        monkeypatch.setattr("dppo.session.step_streams", lambda seed, step: step_streams(draw_seed, step))
        monkeypatch.setattr("examples.engine.sample", once)
        loop, gradients = still(method, coin, prompts=4, live=live)
        report = loop.step(1e-3)
        return gradients[0], report

    return found


def test_dropping_completions_without_gradient_is_exact_and_others_right_on_average(gradient_of_step):
    full, everything_kept = gradient_of_step(GRPO, live=everything)
    less, report = gradient_of_step(GRPO)
    assert everything_kept.completions_trained == 4 * GENERATIONS >= report.completions_trained
    torch.testing.assert_close(less, full, rtol=1e-4, atol=1e-7)

    def error(method):
        draws = torch.stack([gradient_of_step(method, draw_seed=seed)[0] for seed in range(1, 25)])
        return (draws.mean(0) - less).square().sum() / (draws - less).square().sum(1).mean()

    pruned = DPPO.with_rates(completion=0.5, prompt=0.0)
    assert error(pruned) < 4 / 24  # 1 / draws is expected; 4 times that has probability below 1e-3
    forgotten = replace(pruned, completions=replace(pruned.completions, weighting=UNWEIGHTED))
    assert error(forgotten) > 8 / 24


@pytest.mark.parametrize("name", one_of_each(SERVED))
def test_every_preset_takes_steps(name, still):
    method = METHODS[name]
    if method.rounds is None:
        method = method.with_rates(prompt=0.5 if "infobatch" in name else 0.25)
    loop, gradients = still(method, coin, prompts=4)
    reports = [loop.step(1e-3, done) for done in (0.0, 0.5)]
    assert all(g.isfinite().all() and g.norm() > 0 for g in gradients)
    assert all(0 < report.completions_trained <= report.rollouts for report in reports)


# GRESO asks for the prompts that its paper's rules name. ``test_trl_rounds.py`` has steps of rounds.

WANTED = 3


def graded_rows(row_Q, step):
    """Rewards of four dataset rows: always right, always wrong, half right, and one small reward."""
    kinds = torch.zeros(4, GENERATIONS)
    kinds[0], kinds[2, ::2], kinds[3, 0] = 1.0, 1.0, 0.1
    return kinds[row_Q % 4]


KINDS = {"greso": {0: "easy", 1: "hard"}, "greso_compat": {0: "easy", 1: "hard", 3: "hard"}}


def greso_by_hand(name, steps):
    """The rows that each step rolls out, and the exploration after it, with lists and dictionaries only."""
    order = PromptStream(SIZE, 0).peek(100 * SIZE).tolist()
    usual, place, streak, explore, told = round(1.5 * WANTED), 0, {}, {"easy": 0.5, "hard": 0.5}, []
    for step in range(steps):
        rolled_out, buffer, round_size, last, number = [], 0, usual, False, 0
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
            round_size, last = usual, False
            if useful:
                estimate = (WANTED - buffer) * len(asked) * 5 // (4 * useful)
                round_size, last = max(min(estimate, usual), 1), estimate <= usual
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
def test_greso_asks_what_its_rules_say(name, still):
    asked, steps = [], 10

    def rewards(row_Q, step):
        asked[-1].extend(row_Q.tolist())
        return graded_rows(row_Q, step)

    loop, gradients = still(METHODS[name], rewards, prompts=WANTED)
    wanted = greso_by_hand(name, steps)
    for rows, explore in wanted:
        asked.append([])
        loop.step(1e-3)
        assert asked[-1] == rows
        learned = loop.session.source.learned
        assert (learned.easy, learned.hard) == pytest.approx((explore["easy"], explore["hard"]))
    early, late = ([row for rows in asked[part] for row in rows] for part in (slice(0, 2), slice(6, 10)))
    shares = [sum(row % 4 < 2 for row in rows) / len(rows) for rows in (early, late)]
    assert shares[1] < shares[0], "prompts that give nothing are asked less often"
    assert any(explore["easy"] != 0.5 for _, explore in wanted) and len(gradients) == steps
    (other,) = KINDS.keys() - {name}
    assert wanted != greso_by_hand(other, steps)
