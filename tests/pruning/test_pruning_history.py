"""Prompt history: golden values, fading, duplicates, and files that come back bit by bit or are refused."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from dppo.errors import CheckpointError, ConfigError, DataError, ShapeError
from dppo.pruning import PromptHistory, inclusion_probabilities
from dppo.pruning.history import FIELDS, FORMAT

GROUP = 4


def identities(size: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def record(history: PromptHistory, rows, signal, step: int, reward: float = 1.0, tokens: float = 10.0) -> None:
    size = len(rows)
    history.update(
        np.array(rows),
        torch.full((size, GROUP), reward),
        torch.tensor(signal, dtype=torch.float64),
        torch.full((size, GROUP), tokens),
        step,
    )


def arrays(history: PromptHistory) -> dict[str, np.ndarray]:
    return {**{name: history._arrays[name].copy() for name in FIELDS}, "totals": history._totals.copy()}


def same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in first)


def filled(size: int = 50, steps: int = 30, seed: int = 0) -> PromptHistory:
    rng, history = np.random.default_rng(seed), PromptHistory(identities(size))
    for step in range(steps):
        rows = rng.integers(0, size * 4 // 5, 6)
        history.update(
            rows,
            torch.from_numpy(rng.random((6, GROUP))),
            torch.from_numpy(rng.random(6)),
            torch.from_numpy(rng.integers(1, 99, (6, GROUP))),
            step,
        )
    return history


def test_prompts_without_history_are_unseen_and_take_the_prior():
    history = PromptHistory(identities(3))
    fresh = history.candidates(np.arange(3), 0)
    assert not fresh.seen_P.any() and history.seen_share == 0
    assert fresh.signal_P.tolist() == [1, 1, 1] and fresh.tokens_P.tolist() == [1, 1, 1]
    record(history, [0, 1], [0.2, 0.6], step=0, tokens=30)
    block = history.candidates(np.arange(3), 0)
    assert block.seen_P.tolist() == [True, True, False]
    assert block.signal_P[2].item() == pytest.approx(((0.2**2 + 0.6**2) / 2) ** 0.5) and block.tokens_P[2] == 30
    assert history.seen_share == pytest.approx(2 / 3)
    assert block.row_P.tolist() == [0, 1, 2]


def test_golden_decay():
    history = PromptHistory(identities(2), decay=0.5, strength=1.0, half_life=1e9)
    record(history, [0], [1.0], step=0)
    record(history, [0], [0.0], step=0)
    record(history, [0], [2.0], step=0)
    # count 1 + .5 + .25, squares 4 + 0 + .25; the prior is (1 + 0 + 4) / 3, worth one observation
    assert history.candidates([0], 0).signal_P.item() == pytest.approx(((4.25 + 5 / 3) / (1.75 + 1)) ** 0.5)
    # had nothing decayed it would be the mean of all
    assert history.candidates([1], 0).signal_P.item() == pytest.approx((5 / 3) ** 0.5)


def test_a_prompt_with_a_large_signal_now_and_then_is_not_all_but_dropped():
    """The root of the mean square costs less variance than the mean, by which both prompts look alike."""
    history = PromptHistory(identities(2), decay=1.0, strength=1e-6)
    rare = [0.0] * 9 + [10.0]
    for signal in rare:
        record(history, [0, 1], [1.0, signal], step=0)
    size = history.candidates([0, 1], 0).signal_P
    assert size.tolist() == pytest.approx([1.0, 10**0.5], rel=1e-5)
    square = torch.tensor([1.0, np.square(rare).mean()])

    def added(size_P: torch.Tensor) -> float:
        prob = inclusion_probabilities(size_P, 1.0, floor=0.05)
        return float((square * (1 / prob - 1)).sum())

    assert added(size) < 0.7 * added(torch.tensor([1.0, np.mean(rare)]))


def test_signal_fades_to_the_prior_with_age():
    history = PromptHistory(identities(2), strength=1.0, half_life=10.0)
    record(history, [0, 1], [0.0, 1.0], step=5)
    assert history.candidates([0], 5).signal_P.item() == pytest.approx(0.25**0.5)  # (1 * 0 + 1 * 0.5) / 2
    assert history.candidates([0], 15).signal_P.item() == pytest.approx((0.5 / 1.5) ** 0.5)  # worth half an observation
    values = [history.candidates([0], step).signal_P.item() for step in (5, 6, 20, 60, 5000)]
    assert values == sorted(values) and values[-1] == pytest.approx(0.5**0.5)
    assert history.candidates([0], 0).signal_P.item() == pytest.approx(0.25**0.5)  # a clock behind the record is age 0


def test_missing_rewards_are_left_out():
    nan = float("nan")
    history = PromptHistory(identities(3))
    reward = torch.tensor([[1.0, nan, 0.0, nan], [nan] * 4])
    history.update(torch.tensor([0, 1]), reward, torch.tensor([0.5, 0.0]), torch.full((2, 4), 7), 3)
    assert history.candidates([0, 1, 2], 3).seen_P.tolist() == [True, False, False]
    mean = history.mean_reward([0, 1])
    assert mean[0] == 0.5 and mean[1].isnan()
    assert history.candidates([1], 3).signal_P.item() == pytest.approx(0.5)  # the empty group is not in the prior


def test_a_row_twice_in_one_update_is_two_updates():
    once, twice = PromptHistory(identities(5)), PromptHistory(identities(5))
    record(once, [3, 1, 3, 3], [0.5, 0.1, 0.7, 0.2], step=4)
    for row, signal in ((3, 0.5), (1, 0.1), (3, 0.7), (3, 0.2)):
        record(twice, [row], [signal], step=4)
    first, second = arrays(once), arrays(twice)
    np.testing.assert_allclose(first.pop("totals"), second.pop("totals"), rtol=1e-15)
    assert same(first, second)
    assert once._arrays["rollouts"].tolist() == [0, 1, 0, 3, 0]


def test_many_duplicates_count_in_the_order_given():
    history, rows = PromptHistory(identities(3), decay=0.5), np.random.default_rng(0).integers(0, 3, 1000)
    signal = np.random.default_rng(1).random(1000)
    record(history, rows, signal, step=0)
    for row in range(3):
        sum_, count = np.float32(0), np.float32(0)
        for value in signal[rows == row]:
            sum_, count = sum_ * np.float32(0.5) + np.float32(value**2), count * np.float32(0.5) + np.float32(1)
        assert history._arrays["signal_square_sum"][row] == sum_ and history._arrays["count"][row] == count


def test_indexed_assignment_alone_would_lose_duplicates():
    count = np.zeros(2)
    count[np.array([1, 1, 1])] += 1
    assert count[1] == 1


def test_the_same_updates_give_the_same_bits():
    assert same(arrays(filled()), arrays(filled()))
    assert not same(arrays(filled()), arrays(filled(seed=1)))


def test_bad_updates_are_refused_before_anything_changes():
    history = filled()
    before = arrays(history)
    ones = torch.ones(1, GROUP)
    with pytest.raises(DataError, match=r"rows 50 to 50 are not all within the dataset's 0 to 49"):
        history.update([50], ones, torch.ones(1), ones, 0)
    with pytest.raises(DataError, match="rows -1"):
        history.candidates([-1], 0)
    with pytest.raises(DataError, match=r"signal must be finite and >= 0"):
        history.update([0], ones, torch.tensor([-1.0]), ones, 0)
    with pytest.raises(DataError, match="tokens must be finite"):
        history.update([0], ones, torch.ones(1), ones * float("inf"), 0)
    with pytest.raises(ShapeError, match=r"expected \(P,\), \(P, G\) and \(P, G\)"):
        history.update([0], ones, torch.ones(1), torch.ones(1), 0)
    assert same(before, arrays(history))


def test_bad_settings_are_refused_together():
    with pytest.raises(ConfigError, match="3 problems"):
        PromptHistory(identities(1), decay=0, strength=0, half_life=0)
    with pytest.raises(ShapeError, match="expected uint64"):
        PromptHistory(np.arange(3))


def test_ten_million_prompts_fit():
    history = PromptHistory(identities(1000))
    assert history.nbytes * 10_000 < 1e9


def test_save_and_load_give_the_same_bits(tmp_path: Path):
    history, back = filled(), PromptHistory(identities(50))
    history.save(tmp_path / "history.npz")
    assert back.load(tmp_path / "history.npz") == 50
    assert same(arrays(history), arrays(back))
    assert [file.name for file in tmp_path.iterdir()] == ["history.npz"]
    record(history, [1, 2], [0.3, 0.4], step=31)
    record(back, [1, 2], [0.3, 0.4], step=31)
    assert same(arrays(history), arrays(back))


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    history = filled()
    history.save(tmp_path / "history.npz")
    before = (tmp_path / "history.npz").read_bytes()

    def full_disk(file, **arrays):
        file.write(b"half of it")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(OSError, match="no space"):
        history.save(tmp_path / "history.npz")
    assert (tmp_path / "history.npz").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_changed_dataset_keeps_the_history_of_prompts_it_still_has(tmp_path: Path):
    history = filled()
    history.save(tmp_path / "history.npz")
    order = np.concatenate([identities(10, start=900), identities(50)[::-1][:45]])
    changed = PromptHistory(order)
    assert changed.load(tmp_path / "history.npz") == 45
    assert not changed.candidates(np.arange(10), 30).seen_P.any()
    kept, original = changed.candidates(np.arange(10, 55), 30), history.candidates(np.arange(49, 4, -1), 30)
    assert torch.equal(kept.signal_P, original.signal_P) and torch.equal(kept.seen_P, original.seen_P)
    assert torch.equal(kept.tokens_P, original.tokens_P)


def test_equal_prompts_in_a_changed_dataset_all_get_the_history(tmp_path: Path):
    history = PromptHistory(identities(3))
    record(history, [2], [0.7], step=0)
    history.save(tmp_path / "history.npz")
    changed = PromptHistory(identities(3)[[2, 0, 2]])
    assert changed.load(tmp_path / "history.npz") == 3
    assert changed.candidates([0, 1, 2], 0).seen_P.tolist() == [True, False, True]


def test_another_dataset_is_refused_with_its_counts(tmp_path: Path):
    filled().save(tmp_path / "history.npz")
    other = PromptHistory(identities(20, start=5000))
    with pytest.raises(CheckpointError, match=r"50 prompts, and none of them is among the 20"):
        other.load(tmp_path / "history.npz")


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(CheckpointError, match="no history at"):
        PromptHistory(identities(5)).load(tmp_path / "none.npz")


def test_a_file_damaged_anywhere_is_refused_or_read_in_full(tmp_path: Path):
    history = filled(size=5)
    path = tmp_path / "history.npz"
    history.save(path)
    whole, before, source = path.read_bytes(), arrays(history), random.Random(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[source.randrange(len(whole))] ^= 1 << source.randrange(8)
        path.write_bytes(damaged)
        back = PromptHistory(identities(5))
        try:
            back.load(path)
        except CheckpointError:
            refused += 1
            assert not back._arrays["rollouts"].any()
        else:
            assert same(before, arrays(back))
    assert refused > 100


@pytest.mark.parametrize("content", [b"", b"not a file of ours", b"PK\x03\x04"])
def test_files_of_another_kind_are_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "history.npz"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        PromptHistory(identities(5)).load(path)


def test_truncated_and_foreign_archives_are_refused(tmp_path: Path):
    path = tmp_path / "history.npz"
    filled().save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="damaged"):
        PromptHistory(identities(50)).load(path)
    np.savez(path, something=np.ones(3))
    with pytest.raises(CheckpointError, match="damaged"):
        PromptHistory(identities(50)).load(path)
    history = filled()
    everything = {"format": np.int64(FORMAT), "totals": history._totals, "identities": history.identities}
    np.savez(path, **everything, **{**history._arrays, "count": np.zeros(50)})
    with pytest.raises(CheckpointError, match="wrong: count"):
        PromptHistory(identities(50)).load(path)
    np.savez(path, **{**everything, "format": np.int64(99)}, **history._arrays)
    with pytest.raises(CheckpointError, match=f"not of format {FORMAT}"):
        PromptHistory(identities(50)).load(path)


def test_a_pickle_is_never_opened(tmp_path: Path):
    path = tmp_path / "history.npz"
    history = filled()
    everything = {"format": np.int64(FORMAT), "totals": history._totals, "identities": history.identities}
    np.savez(path, **everything, **{**history._arrays, "count": np.array([{"a": 1}] * 50, object)})
    with pytest.raises(CheckpointError, match="damaged"):
        PromptHistory(identities(50)).load(path)
