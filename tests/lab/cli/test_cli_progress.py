"""Lines that running commands print from time to time."""

import re

from small_runs import small_words

from dppo.lab.cli.main import main
from dppo.lab.cli.progress import Board, shown

FIGURES = {"reward": 0.5, "loss": 0.1, "total/seconds": 4.0, "total/rollouts": 200, "prune/kept_share": 0.482}
SAVED = {"saved/seconds": 7800.0, "saved/share": 0.31, "prune/prompts_kept_share": 0.8, "prune/token_kept_share": 1.0}


def test_lines_come_now_and_then_and_at_the_end(capsys):
    """By hand: 2 s a step."""
    clock = iter([0.0, 2.0, 30.0, 32.0, 60.0, 80.0, 80.0, 81.0])
    board = Board(every=30, now=clock.__next__)
    for step in (0, 1, 15, 16, 30, 40, 40):
        board.update("train", step, 40, FIGURES)
    board.update("other", 1, 1)
    assert capsys.readouterr().err.splitlines() == [
        "train: 15/40 steps, reward 0.500, kept 48% of completions, saved: not measured yet, 0:00:50 left",
        "train: 30/40 steps, reward 0.500, kept 48% of completions, saved: not measured yet, 0:00:20 left",
        "train: 40/40 steps, reward 0.500, kept 48% of completions",
        "other: 100%",
    ]


def test_what_is_shown_is_what_one_can_act_on():
    assert shown(FIGURES | SAVED | {"candidates/reward": 0.45, "eval/average/pass@1": 0.6}) == [
        "reward 0.450",
        "last accuracy 0.600",
        "kept 80% of prompts and 48% of completions",
        "saved 31% (2 h 10 min)",
    ]
    assert shown({"loss": 0.25}) == ["loss 0.250"], "of a warm-up"
    assert shown(FIGURES | {"prune/token_kept_share": 0.5})[1] == "kept 48% of completions and 50% of tokens"


def test_train_shows_lines_in_place_of_the_bar_of_transformers(tmp_path, untrained, capsys, monkeypatch):
    monkeypatch.setitem(Board.__init__.__kwdefaults__, "every", 0.0)
    more = "--disable_tqdm false --max_steps 3 --logging_steps 1 --save_strategy no"
    assert main(["train", *small_words(tmp_path / "out", *more.split(), model=untrained)]) == 0
    printed = capsys.readouterr()
    said = [line for line in printed.err.splitlines() if line.startswith("train: ")]
    assert [line.split(",")[0].split()[1] for line in said] == ["1/3", "1/3", "2/3", "2/3", "3/3"]
    assert "reward 0.000, kept" in said[1] and "saved: not measured yet" in said[1]
    begins = r"dppo \| (pruned|saved|nothing was learned): "
    block = [line for line in printed.out.splitlines() if re.match(begins, line)]
    assert len(block) == 3 and "not known in seconds" in block[1] and "dppo report " in printed.out
    assert "\x1b" not in printed.err + printed.out and "| 3/3 [" not in printed.err
    assert "'loss':" not in printed.out and "trained for 3 of 3 steps" in printed.out
