"""Progress of a running command: a plain line from time to time, on a terminal and in a file alike."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

from dppo.errors import duration

KEPT = {"prune/prompts_kept_share": "prompts", "prune/kept_share": "completions", "prune/token_kept_share": "tokens"}
"""Shares kept; one of prompts or of tokens is shown if it is below 1."""


def shown(figures: Mapping[str, float]) -> list[str]:
    """Reward, accuracy, shares kept and savings among the newest metrics of a run; the loss of a warm-up."""
    rewards = (("candidates/reward", "reward"), ("reward", "reward"), ("loss", "loss"))
    words = [f"{word} {figures[name]:.3f}" for name, word in rewards if name in figures][:1]
    words += [f"last accuracy {figures[name]:.3f}" for name in ("eval/average/pass@1",) if name in figures]
    kept = {what: figures[name] for name, what in KEPT.items() if name in figures}
    said = [f"{share:.0%} of {what}" for what, share in kept.items() if what == "completions" or share < 1]
    words += [f"kept {' and '.join(said)}"] * bool(said)
    if "saved/share" in figures:
        words.append(f"saved {figures['saved/share']:.0%} ({duration(figures['saved/seconds'])})")
    elif said:
        words.append("saved: not measured yet")
    return words


class Board:
    """Prints the progress of each name every ``every`` seconds of the clock ``now``, and its last line always."""

    def __init__(self, *, every: float = 10.0, now: Callable[[], float] = time.monotonic) -> None:
        self._every, self._now = every, now
        self._begun: dict[str, tuple[float, float]] = {}
        self._said: dict[str, float] = {}

    def update(self, name: str, done: float, total: float = 1.0, figures: Mapping[str, float] | None = None) -> None:
        """Show that ``name`` has done so much of ``total``: optimizer steps, or a share of 1, with newest figures."""
        now = self._now()
        since, before = self._begun.setdefault(name, (now, done))
        if now - self._said.setdefault(name, now) < (self._every if done < total else 0):
            return
        self._said[name] = now if done < total else math.inf
        texts = [f"{done:.0%}" if total == 1 else f"{done:.0f}/{total:.0f} steps", *shown(figures or {})]
        if done >= total:  # a run prints at its end what it saved in all
            texts = [text for text in texts if not text.startswith("saved")]
        if before < done < total:
            texts.append(f"{timedelta(seconds=round((now - since) * (total - done) / (done - before)))} left")
        print(f"{name}: {', '.join(texts)}", file=sys.stderr, flush=True)


def show_status(text: str) -> None:
    """Print the part of a command that begins."""
    print(text, file=sys.stderr, flush=True)
