"""What a report begins with: what was pruned, what it saved, and whether the ceilings say that more was to be had."""

from collections.abc import Sequence

import numpy as np

from dppo.pruning import PROMPT_AUTO
from dppo_lab.comparison.words import amount, duration
from dppo_lab.report.browser import OURS
from dppo_lab.report.curves import averaged
from dppo_lab.report.figures_cost import phase_seconds
from dppo_lab.report.sources import Contents, Group
from dppo_lab.runs.ceilings import run_ceilings
from dppo_lab.runs.folder import TOTALS
from dppo_lab.runs.reader import RunRecord

SAVED, SHARE = "saved/seconds", "saved/share"
TOKENS_KEPT = "prune/token_kept_share"
Lines = tuple[tuple[str, str], ...]


def summaries(contents: Contents) -> tuple[tuple[str, Lines], ...]:
    """By label of each method that prunes: headings, and a text for each; means over seeds."""
    return tuple(
        (group.label, (("Pruned", _pruned(runs)), ("Saved", _saved(runs, group)), ("More to be had", _more(runs))))
        for group in contents.groups
        if _logged(runs := averaged(group), "prune/kept_share")
    )


def _logged(runs: Sequence[RunRecord], name: str) -> list[float]:
    """Every value of a metric."""
    return [value for run in runs for value in run.series(name).value_I.tolist()]


def _mean(runs: Sequence[RunRecord], name: str) -> float:
    """The mean of a share; 1 where it was not logged."""
    return float(np.mean(_logged(runs, name) or [1.0]))


def _pruned(runs: Sequence[RunRecord]) -> str:
    kept, live, prompts = (_mean(runs, f"prune/{of}") for of in ("kept_share", "live_share", "prompts_kept_share"))
    parts = [f"{1 - live:.0%} had no gradient, which is exact"] if live < 1 else []
    parts += [f"{live - kept:.0%} were not drawn"] if kept < live else []
    of_prompts = f"{1 - prompts:.0%} of the candidate prompts were not rolled out" if prompts < 1 else "no prompts"
    said = [f"{1 - kept:.0%} of the completions rolled out ({', '.join(parts) or 'none'})", of_prompts]
    if _logged(runs, TOKENS_KEPT):
        forwarded, scored = (_mean(runs, name) for name in (TOKENS_KEPT, "prune/head_share"))
        behind, head = f"{1 - forwarded:.0%} of the tokens of completions with a gradient", f"{scored:.0%}"
        said.append(f"{behind} were not forwarded, and {head} of them reached the head")
    return f"{'; '.join(said)}."


def _saved(runs: Sequence[RunRecord], group: Group) -> str:
    """In seconds as the run measured it; of records without, in tokens, and in seconds by what was computed."""
    measured = [(_last(run, SAVED), _last(run, SHARE)) for run in runs]
    known = [(seconds, share) for seconds, share in measured if share]
    if known:
        seconds, share = np.mean(known, axis=0).tolist()
        return (
            f"about {duration(max(seconds, 0.0))} of {duration(seconds / share)} ({share:.0%}) beside steps that prune "
            "nothing, by what tokens cost in the run's first generations."
        )
    trained, skipped = (sum(_logged(runs, f"prune/tokens_{what}")) for what in ("trained", "skipped"))
    prompts = _mean(runs, "prune/prompts_kept_share")
    if not trained or not prompts:
        return "not known: no log has prune/tokens_trained."
    phases = [phase_seconds(run, group) for run in runs]
    update, rollout = (float(np.mean([p.get(name, 0.0) for p in phases])) for name in ("forward_backward", "rollout"))
    saved = update * skipped / trained + rollout * (1 - prompts) / prompts
    spent = [last for run in runs if (last := _last(run, TOTALS["seconds"]))]
    tokens = f"forward and backward of {skipped / (skipped + trained):.0%} of the completion tokens"
    if not spent or not saved:
        return f"{tokens}."
    whole = duration(saved + float(np.mean(spent)))
    return f"{tokens}; about {duration(saved)} of {whole}, if what was left out had cost as much per token."


def _last(run: RunRecord, name: str) -> float:
    """The last value of a metric; 0 where it was not logged."""
    values = run.series(name).value_I
    return float(values[-1]) if len(values) else 0.0


def _more(runs: Sequence[RunRecord]) -> str:
    """By level, what choosing can save at most."""
    config, said = next((run.config for run in runs if run.config), {}), []
    other = "" if all(run.method == OURS for run in runs) else f"method: {OURS} with "
    for row in run_ceilings(runs):
        field = f"{row.level.removesuffix('s')}_prune_rate"
        asked = f"{field}: {config[field]} is in use" if config.get(field) else f"try {other}{field}: auto"
        advice = "which is next to nothing" if row.low < PROMPT_AUTO.least_gain else asked
        said.append(f"{row.level} at most {amount(row.value)}× ({amount(row.low)} to {amount(row.high)}), {advice}")
    return f"choosing among {'; among '.join(said)}." if said else "not known: too few prompts have come back."
