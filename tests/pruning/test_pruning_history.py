"""Prompt history and scores of rows: golden values, and files that come back bit by bit or are refused."""

import random
import tempfile
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
import torch
from arrays import rewards_of, tensor
from refusals import refused

from dppo.errors import CheckpointError, ConfigError, DataError, ShapeError
from dppo.pruning import PromptHistory, RecordedScores
from dppo.pruning.recorded import mean_loss
from dppo.types import Rewards

EASY, HARD, NEITHER = 1, -1, 0


def identities(size: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def known_of(size: int = 4, half_life: float = 1e12, **settings) -> PromptHistory:
    return PromptHistory(identities(size), half_life=half_life, **settings)


def record(history, rows, signal, step: int = 0, tokens: float = 10.0, outcome=None) -> None:
    """One group of four completions per row."""
    groups, tokens_N = torch.ones(len(rows), 4, history.functions or 1), torch.full((len(rows) * 4,), tokens)
    rewards, outcome_Q = Rewards.in_groups(groups.flatten(0, 1), 4), None if outcome is None else torch.tensor(outcome)
    history.update(np.array(rows), rewards, tensor(signal), tokens_N, step, outcome_Q=outcome_Q)


def learn(known: PromptHistory, rows, groups, step: int = 0) -> None:
    rewards = rewards_of(*groups)
    known.update(torch.tensor(rows), rewards, torch.ones(len(rows)), torch.ones(len(rewards)), step)


def arrays(history: PromptHistory) -> dict[str, np.ndarray]:
    """Everything that a history knows, as it is saved."""
    with tempfile.TemporaryDirectory() as folder:
        history.save(Path(folder, "history.npz"))
        with np.load(Path(folder, "history.npz")) as found:
            return dict(found)


def same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in first)


def filled(size: int = 50) -> PromptHistory:
    rng, history = np.random.default_rng(0), PromptHistory(identities(size))
    for step in range(30):
        rewards = rewards_of(*(rng.random((count, 2)).tolist() for count in rng.integers(1, 5, 6)))
        tokens_N = torch.from_numpy(rng.integers(1, 99, len(rewards)))
        rows, outcome_Q = rng.integers(0, size * 4 // 5, 6), torch.from_numpy(rng.integers(-1, 2, 6))
        history.update(rows, rewards, tensor(rng.random(6)), tokens_N, step, outcome_Q=outcome_Q)
    return history


def test_prompts_without_history_are_unseen_and_take_the_prior():
    history = PromptHistory(identities(3))
    fresh = history.candidates(np.arange(3), 0)
    assert not fresh.seen_P.any() and not history.visited(range(3)).any()
    assert fresh.signal_P.tolist() == [1, 1, 1] and fresh.tokens_P.tolist() == [1, 1, 1]
    record(history, [0, 1], [0.2, 0.6], tokens=30)
    block = history.candidates(np.arange(3), 0)
    assert block.seen_P.tolist() == history.visited(range(3)).tolist() == [True, True, False]
    assert block.signal_P[2].item() == pytest.approx(((0.2**2 + 0.6**2) / 2) ** 0.5) and block.tokens_P[2] == 30
    assert block.row_P.tolist() == [0, 1, 2] and not len(PromptHistory(identities(0)).visited([]))


def test_golden_decay():
    history = known_of(decay=0.5, strength=1.0)
    for signal in (1.0, 0.0, 2.0):
        record(history, [0], [signal])
    # count 1 + .5 + .25, squares 4 + 0 + .25; the prior is (1 + 0 + 4) / 3, worth one observation
    assert history.candidates([0], 0).signal_P.item() == pytest.approx(((4.25 + 5 / 3) / (1.75 + 1)) ** 0.5)
    # had nothing decayed it would be the mean of all
    assert history.candidates([1], 0).signal_P.item() == pytest.approx((5 / 3) ** 0.5)


def test_signals_and_rewards_fade_to_the_prior_with_age():
    history = known_of(strength=1.0, half_life=10.0)
    record(history, [0, 1], [0.0, 1.0], step=5)
    # Of itself 0 and of all 0.5; after a half-life worth half an observation; a clock behind the record is age 0.
    for step, square in ((5, (1 * 0 + 0.5) / 2), (15, (0.5 * 0 + 0.5) / 1.5), (5000, 0.5), (0, 0.25)):
        assert history.candidates([0], step).signal_P.item() == pytest.approx(square**0.5)
    known = known_of(strength=1.0, half_life=10.0)
    learn(known, [0, 1], [[1, 1, 1, 1], [0, 0, 0, 0]])
    means = [known.expected([0], step).mean_QF.item() for step in (0, 10, 1000)]
    assert means == pytest.approx([(4 + 0.5) / 5, (2 + 0.5) / 3, 0.5])


def test_groups_of_any_size_count_as_one_observation_each_without_missing_rewards():
    """Means are within groups: of 1 token, and of 10, 20 and 60."""
    history, rows = PromptHistory(identities(3), strength=1e-9), torch.tensor([2, 0])
    history.update(rows, rewards_of([1], [1, 0, 0]), tensor([0.5, 2.0]), torch.tensor([1, 10, 20, 60]), 0)
    block = history.candidates([0, 1, 2], 0)
    assert block.tokens_P.tolist() == pytest.approx([30, 15.5, 1])
    prior = ((0.25 + 4) / 2) ** 0.5  # in which both weigh the same
    assert block.signal_P.tolist() == pytest.approx([2, prior, 0.5])
    count, total, square = arrays(history)["reward_moments"][:, :, 0].tolist()
    assert count == [3, 0, 1] and total == square == [1, 0, 1]
    history = PromptHistory(identities(3))
    rewards = rewards_of([1, nan, 0, nan], [nan] * 4)
    history.update(torch.tensor([0, 1]), rewards, torch.tensor([0.5, 0.0]), torch.full((8,), 7), 3)
    assert history.candidates([0, 1, 2], 3).seen_P.tolist() == [True, False, False]
    assert arrays(history)["reward_moments"][:, 0, 0].tolist() == [2, 1, 1]
    assert history.candidates([1], 3).signal_P.item() == pytest.approx(0.5), "the empty group is not in the prior"


def test_a_row_twice_in_one_update_is_two_updates():
    once, twice = PromptHistory(identities(5)), PromptHistory(identities(5))
    record(once, [3, 1, 3, 3], [0.5, 0.1, 0.7, 0.2], step=4)
    for row, signal in ((3, 0.5), (1, 0.1), (3, 0.7), (3, 0.2)):
        record(twice, [row], [signal], step=4)
    first, second = arrays(once), arrays(twice)
    np.testing.assert_allclose(first.pop("totals"), second.pop("totals"), rtol=1e-15)
    assert (first.pop("reward_totals") > second.pop("reward_totals")).all(), "the prior fades with every update"
    assert same(first, second)
    assert first["rollouts"].tolist() == [0, 1, 0, 3, 0]


def test_a_streak_is_of_the_most_recent_groups_of_one_kind():
    streaks = {(EASY,) * 3: 3, (HARD,) * 2: -2, (HARD, HARD, EASY): 1, (EASY, NEITHER): 0, (): 0}
    for outcomes, streak in (streaks | {(EASY, EASY, NEITHER, HARD): -1}).items():
        history = PromptHistory(identities(2))
        for outcome in outcomes:
            record(history, [0], [1.0], outcome=[outcome])
        assert history.streak([0, 1]).tolist() == [streak, 0]


def test_with_rewards_of_0_and_1_it_is_the_beta_distribution():
    known = known_of(decay=0.5, strength=3.0)
    learn(known, [0, 1], [[1, 1, 0, 1], [0, 0]])
    learn(known, [0], [[0, 1]], step=1)
    prior = (0.95 * 3 + 1) / (0.95 * 6 + 2)  # of all completions lately
    right, wrong = 0.5 * 3 + 1, 0.5 * 1 + 1
    a, b = 3 * prior + right, 3 * (1 - prior) + wrong
    found = known.expected([0, 3], 1)
    assert found.mean_QF[0].item() == pytest.approx(a / (a + b))
    assert (found.variance_QF / found.strength_QF)[0].item() == pytest.approx(a * b / ((a + b) ** 2 * (a + b + 1)))
    assert found.variance_QF[0].item() == pytest.approx(a * b / (a + b) ** 2), "p (1 - p)"
    assert found.mean_QF[1].item() == pytest.approx(prior) and found.strength_QF[1].item() == 4, "unseen: the prior"


def test_each_function_has_its_own_and_missing_rewards_count_in_none():
    known = known_of(decay=1.0, strength=2.0)
    learn(known, [0, 1], [[[1, nan], [0, 5.0]], [[1, 7.0], [1, nan]]])
    found = known.expected([0, 1], 0)
    assert found.strength_QF.tolist() == [[5.0, 4.0], [5.0, 4.0]], "completions seen, two of the prior, and one"
    assert found.mean_QF[:, 1].tolist() == pytest.approx([(2 * 6 + 5) / 3, (2 * 6 + 7) / 3])
    by_hand = 4 * found.variance_QF[:, 0] + 0.25 * found.variance_QF[:, 1]
    torch.testing.assert_close(found.total_variance_Q(torch.tensor([2.0, 0.5])), by_hand)
    before = arrays(known)
    with refused(ShapeError, 2, 1):
        learn(known, [0], [[1.0]])
    assert same(before, arrays(known)), "what is refused leaves no trace"
    unknown = known_of()
    learn(unknown, [0], [[[1, nan], [0, nan]]])
    assert unknown.expected([0], 0).strength_QF[0].tolist() == [5.0, 0.0], "nothing of the second"


def test_bad_settings_are_refused_together_and_ten_million_prompts_fit():
    with refused(ConfigError, "decay", "strength", "half_life"):
        PromptHistory(identities(1), decay=0, strength=0, half_life=0)
    with refused(ShapeError, "uint64"):
        PromptHistory(np.arange(3))
    assert PromptHistory(identities(1000)).nbytes * 10_000 < 1e9


def test_save_and_load_give_the_same_bits(tmp_path):
    history, back = filled(), PromptHistory(identities(50))
    history.save(tmp_path / "history.npz")
    assert back.load(tmp_path / "history.npz") == 50
    assert same(arrays(history), arrays(back))
    assert [file.name for file in tmp_path.iterdir()] == ["history.npz"]
    for each in (history, back):
        record(each, [1, 2], [0.3, 0.4], step=31)
    assert same(arrays(history), arrays(back))


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    history, path = filled(), tmp_path / "history.npz"
    history.save(path)
    before = path.read_bytes()

    def full_disk(file, **arrays):
        file.write(b"half of it")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(OSError, match="no space"):
        history.save(path)
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]


def test_a_changed_dataset_keeps_the_history_of_prompts_it_still_has(tmp_path):
    history = filled()
    history.save(tmp_path / "history.npz")
    new = np.concatenate([identities(8, start=900), np.array([1, 2**64 - 1], np.uint64)])
    changed = PromptHistory(np.concatenate([new, identities(50)[::-1][:45]]))
    assert changed.load(tmp_path / "history.npz") == 45
    assert not changed.candidates(np.arange(10), 30).seen_P.any()
    kept, original = changed.candidates(np.arange(10, 55), 30), history.candidates(np.arange(49, 4, -1), 30)
    assert all(torch.equal(getattr(kept, name), getattr(original, name)) for name in ("signal_P", "tokens_P", "seen_P"))


def test_a_file_damaged_anywhere_is_refused_or_read_in_full_and_a_pickle_is_never_opened(tmp_path):
    history, path = filled(size=5), tmp_path / "history.npz"
    history.save(path)
    whole, before, source, found_out = path.read_bytes(), arrays(history), random.Random(0), 0
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[source.randrange(len(whole))] ^= 1 << source.randrange(8)
        path.write_bytes(damaged)
        back = PromptHistory(identities(5))
        try:
            back.load(path)
        except CheckpointError:
            found_out += 1
            assert not back.visited(range(5)).any()
        else:
            assert same(before, arrays(back))
    assert found_out > 50
    for content, named in (
        ({name: array for name, array in before.items() if name != "streak"}, "streak"),
        (before | {"format": np.int64(99)}, "format 99"),
        (before | {"count": np.array([{"a": 1}] * 5, object)}, "damaged"),
    ):
        np.savez(path, **content)
        with refused(CheckpointError, named, path):
            PromptHistory(identities(5)).load(path)


def scores(size=4, first=10):
    return RecordedScores(np.arange(first, first + size, dtype=np.uint64), np.arange(1, size + 1))


def test_of_rows_the_last_visit_with_a_finite_score_counts():
    found = scores()
    assert found.seen == 0 and not found.candidates(torch.arange(4)).seen_P.any()
    found.record(torch.tensor([1, 3]), torch.tensor([2.0, 5.0]))
    found.record(torch.tensor([3, 1, 0]), torch.tensor([0.5, nan, inf]))
    found.record(torch.tensor([1]), torch.tensor([-1.0]))
    candidates = found.candidates(torch.tensor([3, 0, 1]))
    assert candidates.seen_P.tolist() == [True, False, True] and candidates.signal_P.tolist() == [0.5, 0.0, 2.0]
    assert candidates.tokens_P.tolist() == [4.0, 1.0, 2.0] and found.seen == 2


def test_scores_are_found_again_by_what_rows_hold_or_it_says_why_not(tmp_path):
    before, path = scores(), tmp_path / "rows.npz"
    before.record(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    before.save(path)
    same, moved = scores(), scores(first=12)  # rows 12 and 13 were places 2 and 3
    assert same.load(path) == 4 and np.array_equal(same.score, before.score)
    assert moved.load(path) == 2
    assert moved.score[:2].tolist() == [3.0, 4.0] and np.isnan(moved.score[2:]).all()
    with refused(CheckpointError, path):
        scores(first=100).load(path)
    with refused(CheckpointError, "missing.npz"):
        scores().load(tmp_path / "missing.npz")
    with refused(DataError, "0 rows"):
        scores(size=0)
    with refused(DataError, "rows 3 to 4"):
        scores().record(torch.tensor([3, 4]), torch.ones(2))


def test_a_damaged_header_that_hides_rows_is_refused(tmp_path):
    """The wrong twin leaves checksums to numpy, which compares them at the end of an array and stops before that."""
    path = tmp_path / "rows.npz"
    scores(size=9000).save(path)
    path.write_bytes(path.read_bytes().replace(b"(9000,)", b"(1000,)"))
    with refused(CheckpointError, path, "checksum"):
        scores(size=9000).load(path)
    with np.load(path) as file:
        assert len(file["score"]) == 1000, "the twin"


def test_the_mean_loss_is_over_trained_tokens():
    logp = torch.tensor([[-1.0, -3.0, -100.0], [-2.0, nan, 0.0]])
    assert mean_loss(logp, torch.tensor([[1, 1, 0], [1, 0, 0]])).tolist() == [2.0, 2.0]
