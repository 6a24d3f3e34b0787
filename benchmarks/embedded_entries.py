"""Who takes part in ``embedded_compare.py``, on which tasks, and which settings are tried and chosen for each.

A contestant is one line of ``CONTESTANTS``, a task one line of ``TASKS``. Settings that the grid chose stand in
``benchmarks/results/embedded_settings.json``, which ``embedded_summary.py grid`` writes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from answer_judge.files import read_json
from dppo.errors import ConfigError
from dppo.methods import METHODS
from dppo_lab.comparison.contestants import Contestant
from dppo_lab.runs.folder import STOCK

SETTINGS_FILE = Path(__file__).parent / "results" / "embedded_settings.json"
EVALUATIONS = 12
"""Of each reported run, after the one at the start."""
SEEDS, MORE_SEEDS = (10, 11, 12, 13, 14), (15, 16, 17, 18, 19)
"""Of everything that is reported, and of ``MORE`` besides. Seeds below 10 were looked at on the way."""
OURS_SEEDS = (101, 102, 103)
"""Of the runs, as long as reported ones, that the best of ours is chosen by. Those of the grid are too short to tell
methods of equal seconds apart: their steps were timed before the policy had learned anything."""
MORE = ("trl_g8", "trl", "grpo_rows", "grpo_rows_centred")
"""Contestants with twice as many seeds, with the best of ours."""
OPPONENTS = MORE
"""What the best of ours is measured against."""
TARGETS = ("trl_g8", "grpo_rows")
"""Whose final accuracy, of the same seed, is the target: stock TRL as papers run it, and the best uniform control."""
LEARNING_RATES, COMPLETIONS = (2e-4, 4e-4), (32, 64, 128)
"""The grid, with the group sizes of each contestant: optimizer's rate, and completions generated for a step. It grows
where its best is at an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """A round of the grid."""

    seeds: tuple[int, ...]
    """Which nothing else uses."""
    keep: int
    """Settings that get here, the best of the rung below."""


RUNGS = (Rung(seeds=(100,), keep=18), Rung(seeds=(101, 102), keep=3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """How long a task's runs train, evaluations not counted. All contestants have the same."""

    rungs: tuple[float, ...]
    """Runs of the grid, by rung."""
    reported: float
    """Runs that are reported: long enough that few miss the targets."""


TASKS = {
    "embedded": Seconds(rungs=(15.0, 40.0), reported=60.0),
    "embedded_sparse": Seconds(rungs=(15.0, 40.0), reported=60.0),
}
"""By the task's name among ``dppo_lab.runs.embedded.TASKS``."""
LONGEST: dict[str, int] = {}
"""Most tokens of a completion, where it is not 104."""
PROBLEMS = {"embedded": 192, "embedded_sparse": 72}
"""Training problems of each task: few enough that a run passes them several times."""
FIELDS: dict[str, Any] = {
    "reward_funcs": ["embedded"],
    "rollout_func": "embedded",
    "eval_benchmark_limit": 192,
    "eval_benchmark_samples": 4,
    "loss_type": "dr_grpo",
    "max_completion_length": 104,
    "temperature": 1.0,
    "beta": 0.0,
    "lr_scheduler_type": "linear",
    "warmup_steps": 5,
    "adam_beta2": 0.98,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "gradient_checkpointing": False,
    "use_cpu": True,
    "bf16": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "record_completions": 0,
}
"""What all runs of all tasks share."""


def fields_of_task(task: str) -> dict[str, Any]:
    """The fields that all runs of a task share.

    Args:
        task: a key of ``TASKS``.
    """
    own = {"model_name_or_path": f"scratch:{task}", "dataset_name": task, "eval_benchmarks": [task]}
    longest = LONGEST.get(task, FIELDS["max_completion_length"])
    return {**FIELDS, **own, "max_completion_length": longest, "embedded_problems": PROBLEMS.get(task, 192)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A point of the grid."""

    learning_rate: float
    completions: int
    """Generated for a step; fewer where the contestant takes fewer prompts."""
    group: int
    """Completions of a prompt."""

    def named(self, name: str) -> str:
        """What a run of this setting is called.

        Args:
            name: of the contestant.
        """
        return f"{name}-g{self.group}-c{self.completions}-{self.learning_rate:g}"

    @classmethod
    def read(cls, said: str) -> "Setting":
        """The setting that ``named`` put behind the name of a contestant.

        Args:
            said: such as ``g4-c64-0.0002``.
        """
        group, completions, rate = said.split("-", 2)
        return cls(learning_rate=float(rate), completions=int(completions[1:]), group=int(group[1:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A contestant."""

    method: str
    """A key of ``METHODS``, or ``trl``."""
    groups: tuple[int, ...] = ()
    """Group sizes of its grid; empty where it has the settings of another."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    tuned_as: str = ""
    """Whose grid it is chosen from, at its own ``groups`` where it has some; by default its own."""
    prompts: float = 1.0
    """Prompts of a step, as a share of those of the setting."""
    setting: Setting | None = None
    """Given here, and chosen from no grid."""
    ours: bool = False
    """Whether it may be the best of ours: a method of this library's, not a control."""

    @property
    def known(self) -> bool:
        """Whether this version has the method."""
        return self.method == STOCK or self.method in METHODS

    @property
    def unbiased(self) -> bool:
        """Whether its method's gradient is."""
        return self.method == STOCK or not METHODS[self.method].biases()

    def grid(self) -> tuple[Setting, ...]:
        """The settings that are tried for it; none for one that is chosen from another's grid."""
        points = product(LEARNING_RATES, COMPLETIONS, () if self.tuned_as else self.groups)
        return tuple(Setting(learning_rate=rate, completions=size, group=group) for rate, size, group in points)

    def contestant(self, name: str, setting: Setting, steps: int, evaluations: int = EVALUATIONS) -> Contestant:
        """The contestant with a setting.

        Args:
            name: what tables and folders call it.
            setting: of the grid.
            steps: of the optimizer, >= 1.
            evaluations: after the one at the start, >= 1.
        """
        prompts = max(1, round(setting.completions / setting.group * self.prompts))
        own = {
            "per_device_train_batch_size": prompts * setting.group,
            "num_generations": setting.group,
            "learning_rate": setting.learning_rate,
            "max_steps": steps,
            "eval_benchmark_every": -(-steps // evaluations),
        }
        return Contestant(name=name, method=self.method, overrides={**own, **self.fields})


HALF = {"completion_prune_rate": 0.5}
RATES = {"prompt_prune_rate": 0.3, **HALF}
MOST = {"completion_prune_rate": 0.6}
"""Where every completion has a gradient: picked from per-completion gradients of four policies (docs/log.md)."""
DEFAULT = {"completion_prune_rate": "auto"}
BY_ITSELF = "dppo_default"
"""What ``DPPOConfig`` does where nothing is said, and the contestant that it is."""
CHOSEN = {"prompt_prune_rate": "auto", **DEFAULT}
"""As the ceilings say, in each step."""
ROUNDS = {"max_rounds": 40}
"""Where nearly every problem is solved, 10 rounds are not enough for a batch, and a run would end there. One that never
needs more is the same with either."""
GROUPS = (2, 4, 8)
LARGE = (4, 8)
"""Where groups of equal rewards are thrown away, few completions are nearly always such a group."""
WITH_HISTORY = (1, 2, 4)
"""A baseline from history needs no second completion of a prompt."""
PREDICTED = {"difficulty_features": "length"}
"""A prior for prompts from what is free."""
CONTESTANTS = {
    "trl_g8": Entry(method=STOCK, groups=(8,), tuned_as="trl"),
    "trl": Entry(method=STOCK, groups=GROUPS),
    "grpo_rows": Entry(method="grpo", groups=GROUPS),
    "grpo_rows_centred": Entry(method="grpo", groups=GROUPS, fields={"scale_rewards": "none"}),
    "fewer_prompts": Entry(method="grpo", tuned_as="dppo", prompts=0.7),
    "cppo": Entry(method="cppo", groups=GROUPS, fields=HALF),
    "greso": Entry(method="greso", groups=LARGE),
    "dapo": Entry(method="dapo", groups=LARGE, fields={"loss_type": "dapo", "epsilon_high": 0.28, **ROUNDS}),
    "dppo_threshold": Entry(method="dppo_threshold", tuned_as="dppo", fields=RATES),
    "dppo_completions": Entry(method="dppo", groups=GROUPS, fields=HALF, ours=True),
    "dppo": Entry(method="dppo", groups=GROUPS, fields=RATES, ours=True),
    BY_ITSELF: Entry(method="dppo", tuned_as="dppo_completions", fields=DEFAULT),
    "dppo_auto": Entry(method="dppo", tuned_as="dppo_completions", fields=CHOSEN, ours=True),
    "dppo_history": Entry(method="dppo_history", tuned_as="dppo_predicted", fields=MOST),
    "dppo_predicted": Entry(method="dppo_history", groups=WITH_HISTORY, fields={**MOST, **PREDICTED}, ours=True),
    "dppo_history_sizes": Entry(
        method="dppo_history_sizes", groups=WITH_HISTORY, fields={**MOST, **PREDICTED}, ours=True
    ),
    "dppo_everything": Entry(
        method="dppo_history_sizes",
        groups=WITH_HISTORY,
        fields={**MOST, **PREDICTED, "prompt_prune_rate": "auto"},
        ours=True,
    ),
}
"""In the order of the tables. Methods that this version does not have are left out, and the script says so."""
ABLATED = BY_ITSELF
"""What parts are taken away from, with its settings."""
TAKEN_AWAY: dict[str, dict[str, Any]] = {
    "without_completion_pruning": {"completion_prune_rate": 0.0},
    "without_packing": {"layout": "padded"},
    "without_shared_prefixes": {"layout": "packed"},
    "without_score": {"completion_score": "uniform"},
}
"""By name, the fields that change. Weights are no part that can be: ``auto`` refuses a draw that is biased."""


def known(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Those whose methods this version has.

    Args:
        entries: by name.
    """
    return {name: entry for name, entry in entries.items() if entry.known}


def ablation() -> dict[str, Entry]:
    """``ABLATED`` with one part taken away at a time."""
    base = CONTESTANTS[ABLATED]
    return {name: replace(base, fields={**base.fields, **changes}) for name, changes in TAKEN_AWAY.items()}


STEPS = {"16x4": 64, "22x4": 88, "32x4": 128}
"""Completions of a step at each size that ``sizes`` compares, prompts by completions of a prompt."""
PAIR = ("grpo_rows", BY_ITSELF)
"""What is compared at each size, the control first."""


def sizes() -> dict[str, Entry]:
    """The uniform control and the default at equal sizes of a step: the grid's short runs prefer small steps."""
    found = {}
    for name, (size, completions) in product(PAIR, STEPS.items()):
        setting = Setting(learning_rate=LEARNING_RATES[-1], completions=completions, group=4)
        base = CONTESTANTS[name]
        found[f"{name}_{size}"] = Entry(method=base.method, fields=base.fields, setting=setting)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What the grid chose for one contestant."""

    setting: Setting
    accuracy: float
    """Mean over the grid's seeds at the end of runs of the same seconds, in [0, 1]."""
    seconds_per_step: float
    """Mean over its runs of the grid."""
    at_edge: Sequence[str]
    """Which of its settings are at an end of the grid, where there may be better ones beyond."""

    def as_json(self) -> dict[str, Any]:
        """The record of the file of settings."""
        return {**asdict(self.setting), **{f.name: getattr(self, f.name) for f in fields(self)[1:]}}


def setting_of(name: str, entry: Entry, chosen: Mapping[str, Chosen]) -> Setting:
    """The setting that a contestant is reported with.

    Args:
        name: of the contestant.
        entry: the contestant.
        chosen: by name; an entry without a grid has that of ``tuned_as``.

    Raises:
        ConfigError: the grid was not run for it.
    """
    if entry.setting is not None:
        return entry.setting
    own = chosen.get(name) or chosen.get(entry.tuned_as)
    if own is None:
        raise ConfigError(f"{name} has no settings: embedded_compare.py grid --only {entry.tuned_as or name}")
    return own.setting


def read_settings(path: Path, task: str) -> tuple[dict[str, Chosen], str]:
    """What the grid chose for each contestant of a task, and the name of the best of ours.

    Args:
        path: the file of settings.
        task: a key of ``TASKS``.

    Raises:
        ConfigError: the file is not there, or says nothing of the task.
    """
    found = read_json(path, advice="Write it anew: embedded_summary.py grid")["tasks"] if path.exists() else {}
    if task not in found:
        raise ConfigError(
            f"{path} has no settings for {task}: its grid has not been run and summed up. Run\n"
            f"  python benchmarks/embedded_compare.py grid --task {task}\n  python benchmarks/embedded_summary.py grid"
        )
    chosen = {}
    for name, read in found[task]["settings"].items():
        setting = Setting(**{each.name: read[each.name] for each in fields(Setting)})
        rest = {each.name: read[each.name] for each in fields(Chosen)[1:]}
        chosen[name] = Chosen(setting=setting, **rest)
    return chosen, found[task]["best"]
