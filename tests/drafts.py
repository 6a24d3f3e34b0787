"""Steps that tests give rewards, runs of them, and rounds of prompts that have a past."""

import numpy as np
import torch
from arrays import rewards_of

from dppo.methods import METHODS
from dppo.methods.greso import EASY, HARD
from dppo.pruning import PromptHistory, PromptStream
from dppo.pruning.rounds import take_round
from dppo.rng import Purpose, generator
from dppo.step import PromptSource, RolledOut, drafted
from dppo.types import Block


class Run(PromptSource):
    """The prompts of a run of one method, which every call is given."""

    def __init__(self, stream, history, method, **options):
        super().__init__(stream, history, **options)
        self.method = method

    @classmethod
    def over(cls, size, method, *, prompts, seed=0, half_life=1e9, **options):
        """A run over a dataset of ``size`` rows."""
        history = PromptHistory(np.arange(size, dtype=np.uint64), half_life=half_life)
        return cls(PromptStream(size, seed), history, method, prompts=prompts, **options)

    def block(self, step, **options):
        return super().block(self.method, step, **options)

    def rounds(self, step, roll_out, **options):
        return super().rounds(self.method, step, roll_out, **options)

    def load(self, folder, position, **options):
        super().load(self.method, folder, position, **options)


def draft_of(method, prompts, rewards, *, tokens=1):
    """What ``PromptSource.learn`` is given of a step whose completions all have as many tokens."""
    tokens_N = torch.full((len(rewards),), tokens)
    rolled_out = RolledOut(rewards=rewards, tokens_N=tokens_N, uncertainty_N=tokens_N.sqrt())
    return drafted(method, rolled_out, prompts, max_tokens=tokens)


def trained(run, steps, *, answers, generations, tokens=1, first=0, **options):
    """The prompts of some steps, which the run learns from; ``answers(row_Q)`` are their rewards, also in rounds."""
    found = []
    for step in range(first, first + steps):
        if run.method.rounds is None:
            found.append(run.block(step, generations=generations, **options))
        else:
            found.append(run.rounds(step, lambda number, block: answers(block.row_Q)))
        run.learn(draft_of(run.method, found[-1], answers(found[-1].row_Q), tokens=tokens), step)
    return found


def with_streaks(*streaks):
    """What is known of prompts whose last groups were as many easy ones in a row, or hard ones where it is below 0."""
    known = PromptHistory(np.arange(len(streaks), dtype=np.uint64))
    for row, streak in enumerate(streaks):
        for _ in range(abs(streak)):
            kind = torch.tensor([EASY if streak > 0 else HARD])
            known.update([row], rewards_of([1, 1]), torch.ones(1), torch.ones(2), 0, outcome_Q=kind)
    return known


def taken(known, prompts, seed=0):
    """A round at the start of GRESO's run, and the stream that it was taken from."""
    stream, skipping = PromptStream(len(known), seed=0, shuffle=False), METHODS["greso"].rounds.skipping

    def chances(row_P):
        return skipping.chances(known.streak(row_P), skipping.start())

    row_P, draw = take_round(stream, prompts, chances, generator(seed, Purpose.PROMPT_SKIP))
    return Block(candidates=known.candidates(row_P, 1), draw=draw), stream
