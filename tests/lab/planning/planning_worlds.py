"""A workload and costs that a pencil can check."""

from dataclasses import asdict, replace

from dppo.lab.planning.costs import Costs, Figures, Timed
from dppo.lab.planning.model import make_plan
from dppo.lab.planning.records import Length, Option, Step
from dppo.lab.planning.work import work_of
from dppo.lab.planning.workload import Workload


def workload(*rates_and_counts, right=20.0, wrong=40.0, prompt=11.0, padded=61.0):
    """Pass rates, each of a number of prompts; right completions have one length and wrong ones another."""
    rates = tuple(rate for rate, count in rates_and_counts for _ in range(count))
    lengths = {"right_tokens": right, "wrong_tokens": wrong, "prompt_tokens": prompt, "padded_tokens": padded}
    return Workload(pass_rates=rates, **lengths)


MIXED = workload((0.0, 2), (0.3, 3), (0.8, 3), (1.0, 2))
COSTS = Costs(rollout_fixed=0.1, rollout_token=1e-3, completion=1e-3, update_fixed=0.05, token=2e-3, rest=0.2)
STEP, LENGTH = Step(prompts=16, generations=8), Length(steps=100, first_epoch=20)


def planned(workload=MIXED, costs=COSTS, length=LENGTH, processes=1):
    """The plan of a run."""
    rates = {"completions": 0.5, "prompts": 0.3}
    about = {"title": "t", "source": "s", "method": {}}
    return make_plan(Figures(workload=workload, costs=costs), STEP, length, rates=rates, processes=processes, **about)


def timed(prompts):
    """A step of ``MIXED`` without its zero advantages, timed by ``COSTS``."""
    work = work_of(MIXED, replace(STEP, prompts=prompts), Option(name="exact"))
    amounts = {name: getattr(work, name) for name in ("generated", "completions", "forwarded")}
    return Timed(**asdict(COSTS.seconds(work, 1)), **amounts)
