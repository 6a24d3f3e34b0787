"""What pruning could save at most on a subject: a pilot, from two rollouts of the same prompts."""

from dppo.methods import Method
from dppo.pruning import Evidence, Pruning, ceiling_of
from dppo.pruning.ceiling import FEWEST
from dppo.step import signals
from dppo.types import Draw
from dppo.verification.findings import CeilingRow
from dppo.verification.subject import Subject, remembered


def pilot_ceilings(subject: Subject, method: Method) -> tuple[CeilingRow, ...]:
    """The ceilings of both levels, by the method's own advantages and score; a level of too few units is left out.

    Of prompts, the first rollout is the history and the second what was then found.
    """
    rows = []
    seen_P = subject.candidates.seen_P
    everything = Draw(keep_N=seen_P, prob_N=seen_P.double(), weight_N=seen_P.double())
    signal_P, tokens_N = signals(method, subject.rolled_out(), subject.context), subject.tokens_N
    visits = Evidence.of_visits(remembered(subject, method), everything, subject.rewards, signal_P, tokens_N)
    if len(visits) >= FEWEST:
        rows.append(CeilingRow.of("prompts", ceiling_of(visits)))
    completions = subject.completions(method)
    free = 1 - completions.live_N.double().mean().item()
    if int(completions.live_N.sum()) >= FEWEST:
        found = ceiling_of(Pruning(score=method.score).evidence(completions))
        rows.append(CeilingRow.of("completions", found, free=free))
    return tuple(rows)
