"""Shares of groups, lengths and timed steps in the records of a run or of a pilot."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from dppo.errors import ConfigError
from dppo.lab.planning.costs import Figures, Timed, fitted, free_tokens, with_noise
from dppo.lab.planning.workload import Shares, Workload, pass_rates
from dppo.lab.runs.folder import METRICS_FILE, STOCK, TOTALS
from dppo.lab.runs.reader import Log, RunRecord, number
from dppo.rng import Purpose, generator

RESAMPLES = 100
"""Resamples for an interval: each is a plan of its own."""
MOST = 200
"""Timed steps and logs used: the latest, since a policy moves on."""
SECONDS, ROLLOUTS, ROLLOUT_TOKENS, _ = TOTALS.values()
NEEDED = (*("step", SECONDS, ROLLOUTS, ROLLOUT_TOKENS, "num_tokens", "time/rollout", "time/forward_backward"), "reward")
NEEDED += ("rows/tokens", "rows/padded_tokens")
"""Figures that a log needs to be a timed step."""
REWARD, ZERO_VARIANCE = ("candidates/reward", "reward"), ("candidates/zero_variance_groups", "frac_reward_zero_std")
"""Names of these metrics: over all candidate prompts first, then TRL's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Shares of groups, lengths and timed steps."""

    shares: Shares
    groups: int
    """Groups that the shares are of, each of another prompt, >= 1."""
    workload: Workload
    timed: tuple[Timed, ...]
    processes: int
    notes: tuple[str, ...] = ()

    def figures(self) -> Figures:
        """Workload and costs as measured."""
        costs = fitted(self.timed, self.processes)
        free_tokens(self.timed, costs)
        return Figures(workload=self.workload, costs=costs)

    def resampled(self) -> list[Figures]:
        """The same in resamples of groups and of the noise of timed steps.

        In a resample tokens may cost nothing: if timings are that noisy, an interval has to show it.
        """
        rng, fit, found = generator(0, Purpose.CHECK, len(self.timed), 8), fitted(self.timed, self.processes), []
        for _ in range(RESAMPLES):
            rates = pass_rates(self.shares.resampled(self.groups, rng))
            costs = fitted(with_noise(self.timed, fit, rng), self.processes)
            found.append(Figures(workload=replace(self.workload, pass_rates=rates), costs=costs))
        return found


def observed_run(run: RunRecord) -> Observed:
    """Shares, lengths and timed steps in the records of a run."""
    logs = timed_logs(run)
    if len(logs) < 2:
        raise ConfigError(
            f"{run.folder} has no timed steps: {METRICS_FILE} needs two records with {', '.join(NEEDED)}, as dppo "
            "train writes. Try --pilot 32"
        )
    padded = run.method == STOCK or run.config.get("layout") == "padded"
    layout = "padded batches" if padded else "packed rows"
    size = int(number(run.config.get("num_generations", 8)))  # TRL's default
    processes = number(run.environment.get("processes", 1))
    shares = _shares(run, logs, size)
    # Prompts that were rolled out; without records of prompts, groups.
    prompts = {row for line in run.prompts for row in line.rows if row is not None}
    return Observed(
        shares=shares,
        groups=max(len(prompts) or int((logs[-1][ROLLOUTS] - logs[0][ROLLOUTS]) / size), 1),
        workload=_workload(run, logs, shares),
        # The first log, of warm-up, is left out.
        timed=tuple(_timed(before, after) for before, after in pairwise(logs)),
        processes=max(int(processes), 1) if math.isfinite(processes) else 1,
        notes=(f"Steps of {layout} were timed: a token is taken to cost the same in the other layout.",),
    )


def timed_logs(run: RunRecord) -> list[Log]:
    """The latest logs that can be timed steps."""
    logs = [log for log in run.logs if all(math.isfinite(number(log.get(name))) for name in NEEDED)]
    later = [after for before, after in pairwise(logs) if after["step"] > before["step"]]
    return [*logs[:1], *later][-MOST:]


def _timed(before: Log, after: Log) -> Timed:
    """The mean of the steps between two logs."""
    steps = after["step"] - before["step"]
    seconds, completions, generated = (
        max(after[name] - before[name], 0.0) / steps for name in (SECONDS, ROLLOUTS, ROLLOUT_TOKENS)
    )
    rollout, reward, prune, log_probs, passes = (
        max(number(after.get(f"time/{phase}", 0.0)), 0.0)
        for phase in ("rollout", "reward", "prune", "log_probs", "forward_backward")
    )
    return Timed(
        generated=generated,
        completions=completions,
        forwarded=after["rows/tokens"],
        rollout=rollout,
        reward=reward + prune,
        update=log_probs + passes,
        rest=max(seconds - rollout - reward - prune - log_probs - passes, 0.0),
        steps=steps,
    )


def _mean(logs: list[Log], names: tuple[str, ...]) -> float:
    """Mean of the first of some figures that any log has; NaN if none has one."""
    found = ([value for log in logs if math.isfinite(value := number(log.get(name)))] for name in names)
    return float(np.mean(next((values for values in found if values), [math.nan])))


def _shares(run: RunRecord, logs: list[Log], size: int) -> Shares:
    """Shares by the logs; the range of rewards is that of the recorded ones, or 0 to 1."""
    rewards = {reward for reward, _ in _completions(run)}
    reward, equal = _mean(logs, REWARD), _mean(logs, ZERO_VARIANCE)
    low, high = (min(rewards), max(rewards)) if len(rewards) > 1 else (0.0, 1.0)
    if not math.isfinite(equal):
        raise ConfigError(f"{run.folder}: {METRICS_FILE} has neither {' nor '.join(ZERO_VARIANCE)}. Try --pilot 32")
    if not low <= reward <= high:
        raise ConfigError(
            f"{run.folder}: the mean reward {reward:.3g} is outside of [{low:g}, {high:g}], and too few completions "
            "are recorded to tell the range of rewards. Try --pilot 32"
        )
    return Shares.of(reward, low, high, equal, size)


def _completions(run: RunRecord) -> list[tuple[float, float]]:
    """Reward and tokens of each completion on record that has a reward."""
    groups = (pair for line in run.prompts for pair in zip(line.rewards, line.tokens, strict=True))
    pairs = (pair for rewards, tokens in groups for pair in zip(rewards, tokens, strict=True))
    return [(reward, float(length)) for value, length in pairs if math.isfinite(reward := number(value))]


def _workload(run: RunRecord, logs: list[Log], shares: Shares) -> Workload:
    """Lengths by totals of the logs; those by outcome from completions on record, if there are some of either."""
    first, last = logs[0], logs[-1]
    made, tokens, both = (last[name] - first[name] for name in (ROLLOUTS, ROLLOUT_TOKENS, "num_tokens"))
    mean = max(tokens / made, 1.0) if made > 0 else 1.0
    prompt = max((both - tokens) / made, 1.0) if made > 0 else 1.0
    padded = [
        log["rows/padded_tokens"] * (log["step"] - before["step"]) / rows
        for before, log in pairwise(logs)
        if (rows := number(log.get("prune/kept_share", 1.0)) * (log[ROLLOUTS] - before[ROLLOUTS])) > 0
    ]
    known = _completions(run)
    middle = (min(known)[0] + max(known)[0]) / 2 if known else 0.0
    right, wrong = ([length for reward, length in known if (reward > middle) is is_right] for is_right in (True, False))
    return Workload(
        pass_rates=pass_rates(shares),
        right_tokens=float(np.mean(right)) if right and wrong else mean,
        wrong_tokens=float(np.mean(wrong)) if right and wrong else mean,
        prompt_tokens=prompt,
        padded_tokens=float(np.median(padded)) if padded else prompt + mean,
    )
