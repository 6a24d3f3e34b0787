"""What running commands show, on a terminal and anywhere else."""

import io
import re

import pytest
from rich.console import Console
from small_runs import small_words

from dppo.lab.cli.main import main
from dppo.lab.cli.progress import Board, shown

FIGURES = {"reward": 0.5, "loss": 0.1, "total/seconds": 4.0, "total/rollouts": 200, "prune/kept_share": 0.482}
SAVED = {"saved/seconds": 7800.0, "saved/share": 0.31, "prune/prompts_kept_share": 0.8, "prune/token_kept_share": 1.0}


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Time:
    """A clock that a test moves."""

    def __init__(self):
        self.at = 100.0

    def __call__(self):
        return self.at


def test_lines_come_now_and_then_and_at_the_end():
    now, file = Time(), io.StringIO()
    with Board(Console(file=file), every=30, now=now) as board:
        for step in range(1, 41):
            now.at += 2
            board.update("train", step, 40, FIGURES)
        board.update("train", 40, 40, FIGURES)
        board.update("other", 1, 1)
    printed = file.getvalue().splitlines()
    assert printed == [
        "train: 16/40 steps, reward 0.500, kept 48% of completions, saved: not measured yet, 0:00:48 left",
        "train: 31/40 steps, reward 0.500, kept 48% of completions, saved: not measured yet, 0:00:18 left",
        "train: 40/40 steps, reward 0.500, kept 48% of completions, saved: not measured yet",
        "other: 100%",
    ]


def test_what_is_shown_is_what_one_can_act_on():
    assert shown(FIGURES | SAVED | {"candidates/reward": 0.45, "eval/average/pass@1": 0.6}) == [
        "reward 0.450",
        "last accuracy 0.600",
        "kept 80% of prompts and 48% of completions",
        "saved 31% of the run so far, 2 h 10 min of 6 h 59 min",
    ]
    assert shown({"loss": 0.25}) == ["loss 0.250"], "of a warm-up"
    assert shown(FIGURES | {"prune/token_kept_share": 0.5})[1] == "kept 48% of completions and 50% of their tokens"
    assert shown(FIGURES | {"saved/seconds": -2.0, "saved/share": 0.0})[-1] == "saved 0% of the run so far"


def drawn(console, **options):
    """The text that a board shows on a console."""
    with Board(console, **options) as board:
        board.update("train", 1, 2)
        board.update("train", 2, 2)
    return console.file.getvalue()


def test_no_control_characters_into_files_pipes_and_notebooks(monkeypatch):
    assert "\x1b" in drawn(Console(file=Terminal(), force_terminal=True)), "bars"
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.setenv(name, "1")
    piped = Console(file=io.StringIO())
    assert piped.is_terminal and drawn(piped) == "train: 2/2 steps\n"  # rich alone would draw bars
    assert drawn(Console(file=Terminal(), force_jupyter=True)) == "train: 2/2 steps\n"
    terminal = Console(file=Terminal(), force_terminal=True)
    assert drawn(terminal, first=False) == "" and drawn(terminal, plain=True) == "train: 2/2 steps\n"
    monkeypatch.setenv("TERM", "dumb")
    assert drawn(Console(file=Terminal(), force_terminal=True)) == "train: 2/2 steps\n"


@pytest.fixture
def small_run(tmp_path, untrained):
    """Words of a run of three steps."""
    more = ("--disable_tqdm", "false", "--max_steps", "3", "--logging_steps", "1", "--save_strategy", "no")
    return small_words(tmp_path / "out", *more, model=untrained)


def test_train_shows_lines_in_a_pipe(small_run, capsys, monkeypatch):
    monkeypatch.setitem(Board.__init__.__kwdefaults__, "every", 0.0)
    assert main(["train", *small_run]) == 0
    printed = capsys.readouterr()
    said = [line for line in printed.err.splitlines() if line.startswith("train: ")]
    assert [line.split(",")[0].split()[1] for line in said] == ["1/3", "1/3", "2/3", "2/3", "3/3"]
    assert "reward 0.000, kept" in said[1] and "saved: not measured yet" in said[1]
    begins = r"dppo \| (pruned|saved|nothing was learned): "
    block = [line for line in printed.out.splitlines() if re.match(begins, line)]
    assert len(block) == 3 and "not yet known in seconds" in block[1] and "dppo report " in printed.out
    assert "\x1b" not in printed.err + printed.out
    assert "| 3/3 [" not in printed.err  # the bar of transformers
    assert "'loss':" not in printed.out and "trained 3 steps" in printed.out


def test_bars_show_the_same_on_a_terminal():
    now, file = Time(), Terminal()
    with Board(Console(file=file, force_terminal=True, width=140), now=now) as board:
        assert file.getvalue() == ""  # nothing before there is something to show
        for step in range(1, 341):
            now.at += 100 if step < 39 else 20
            board.update("[b]train", step, 400, FIGURES)
        board.update("other", 0.5)
    printed = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    assert "reward 0.500  kept 48% of completions  saved: not measured yet  0:20:00 left" in printed
    assert "[b]train 340/400 steps" in printed and "other" in printed and "50%" in printed
