"""The contestants of a comparison: names, methods and fields, checked before anything is trained."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl.trainer.grpo_config import GRPOConfig

from dppo.errors import ConfigError, did_you_mean
from dppo.lab.runs.folder import STOCK
from dppo.lab.runs.parsing import ENVIRONMENT, TRAINING_OURS, AnyRun, parse_fields
from dppo.methods import ALL_PROMPTS, METHODS, Method
from dppo.methods.from_settings import RATES
from dppo.methods.own import DECIDED, is_own, method_named
from dppo.methods.settings import not_chosen
from dppo.pruning import Pruning, advantage_with_length, constant
from dppo.settings import AUTO, DEFAULT_METHOD
from dppo.trl.grpo.config import DPPOConfig
from dppo.trl.grpo.objective import OBJECTIVE, fields_of, unread_by

GIVEN = {"seed", "output_dir", "resume", "resume_from_checkpoint", "overwrite", "dry_run", "processes", "method"}
"""Fields that the comparison itself decides for each run."""
SHARED = {
    *("model_name_or_path", "model_revision", "embedded_problems", "dataset_name", "dataset_path", "task_arguments"),
    *("answer_pattern", "dataset_train_split", "prompt_column", "answer_column", "prompt_template", "extract"),
    *("max_prompt_tokens", "on_bad_rows", "rollout_func", "use_vllm", "vllm_mode", "use_cpu"),
    *("eval_benchmarks", "eval_benchmark_data", "eval_benchmark_limit", "eval_benchmark_samples"),
    *("max_completion_length", "temperature", "top_p", "top_k", "min_p"),
}
"""Fields that make the task and its evaluation. All contestants have one value, so that accuracies compare."""
SEEDED = ("model_name_or_path", "dataset_name", "dataset_path", "eval_dataset_name", "prompt_values")
"""Fields in which ``{seed}`` stands for the seed."""


def _prunes_prompts(method: Method) -> bool:
    """True if it can prune prompts: it has a rule for them, or draws completions without bias, as in DPPO.

    Methods with one biased level stay as in their papers.
    """
    drawn = isinstance(method.completions, Pruning) and method.completions.rate > 0 and not method.completions.bias
    return method.prompts != ALL_PROMPTS or drawn


def _prunes(method: Method) -> bool:
    return method.completions.rate > 0 or method.prompts.rate > 0


def _draws(method: Method) -> bool:
    return _prunes(method) and isinstance(method.completions, Pruning)


TAKEN: dict[str, Callable[[Method], bool]] = {
    "completion_prune_rate": lambda method: method.completions.rate > 0,
    # Scores of papers' rules belong to the paper.
    "completion_score": lambda method: method.completions.rate > 0 and method.score == advantage_with_length,
    **dict.fromkeys(("completion_budget", "sampling_design", "prune_floor"), _draws),
    "prune_schedule": _prunes,
    "prompt_prune_rate": _prunes_prompts,
    **dict.fromkeys(("token_prune_rate", "head_prune_rate"), lambda method: _draws(method) or method.tokens.active),
    "prompt_prior": lambda method: method.advantages.from_history or _prunes_prompts(method),
    "prompt_values": lambda method: method.advantages.from_history or method.advantages.from_values,
    **dict.fromkeys(("max_rounds", "round_factor"), lambda method: method.rounds is not None),
}
"""Fields of the configuration that only some methods are given, with the test that says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One of those compared."""

    name: str
    """Its name in tables and folders."""
    method: str
    """A key of ``METHODS``, or ``trl``."""
    overrides: Mapping[str, Any]
    """Its own training fields, which override those of the configuration."""

    @property
    def stock(self) -> bool:
        """True for TRL's own trainer."""
        return self.method == STOCK

    @property
    def preset(self) -> str:
        """The key of ``METHODS`` that has its gradient: ``grpo`` for stock TRL, as ``dppo verify`` shows."""
        return "grpo" if self.stock else self.method

    def left_out(self, config: Mapping[str, Any]) -> list[str]:
        """Fields of the shared configuration that this method does not take."""
        if self.stock:
            return sorted(config.keys() & TRAINING_OURS - GIVEN)
        method = method_named(self.method)
        if is_own(self.method):
            return sorted(name for name in (*DECIDED, *OBJECTIVE) if config.get(name) is not None)
        chosen = [name for name in RATES if config.get(name) == AUTO and not_chosen(name, method)]
        unread = {name for name, takes in TAKEN.items() if not takes(method)} | {*chosen, *unread_by(method, config)}
        if "prompt_prune_rate" in unread:
            unread.add("prompt_mode")
        if config.get("prune_schedule", AUTO) == AUTO and method.schedule is constant:
            unread.add("prune_until")
        return sorted(name for name in unread if config.get(name) is not None)

    def fields(self, config: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
        """Every field of its run, as in ``config.yaml`` of the run's folder; ``config`` has the shared ones."""
        kept = {name: value for name, value in config.items() if name not in {*GIVEN, *self.left_out(config)}}
        ours = {} if self.stock else {"method": self.method, "accept_bias": True}
        needed = {} if self.stock or is_own(self.method) else fields_of(METHODS[self.method])
        merged = {**kept, **ours, **needed, **self.overrides, "seed": seed, "output_dir": str(folder)}
        for name in SEEDED:
            if isinstance(merged.get(name), str):
                merged[name] = merged[name].replace("{seed}", str(seed))
        return merged

    def parse(self, fields: Mapping[str, Any]) -> AnyRun:
        """The parsed arguments of its run; an error has the contestant's name before it."""
        kind: type[GRPOConfig] = GRPOConfig if self.stock else DPPOConfig
        try:
            return parse_fields(fields, kind)
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from error


def choose(names: Sequence[str] | None, block: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[Contestant, ...]:
    """The contestants named: from the ``block`` ``compare: methods:``, or else methods by their own names.

    ``names`` of None are the whole block, or where there is none TRL's, plain GRPO, and the method of ``config``, the
    fields that all share.
    """
    if names is None:
        names = list(block) or list(dict.fromkeys([STOCK, "grpo", str(config.get("method", DEFAULT_METHOD))]))
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice or not names:
        raise ConfigError(f"--methods names {twice[0]} twice." if twice else "--methods is empty. Try trl,grpo,dppo")
    return tuple(_contestant(name, block) for name in names)


def _contestant(name: str, block: Mapping[str, Any]) -> Contestant:
    own, known = block.get(name, {}) or {}, [STOCK, *METHODS]
    if not isinstance(own, Mapping):
        raise ConfigError(f"compare: methods: {name}: {own!r} is not a mapping of fields. Write {name}: {{}}")
    method = own.get("method", name)
    if name in block and "method" not in own and name not in known:
        raise ConfigError(f"compare: methods: {name} has no method. Write {name}: {{method: dppo}}, with its fields.")
    if not is_own(method) and (method not in known or (name not in block and name not in known)):
        listed = [*dict.fromkeys([*block, *known])]
        where = f"method {method!r}" if method == name else f"method {method!r} of {name}"
        raise ConfigError(f"{where} is unknown. {did_you_mean(str(method), listed)}There are: {', '.join(listed)}.")
    overrides = {field: value for field, value in own.items() if field != "method"}
    shared, ours = (sorted(overrides.keys() & names) for names in (SHARED | GIVEN | {ENVIRONMENT}, TRAINING_OURS))
    if shared:
        raise ConfigError(
            f"{name}: {shared[0]} belongs to the task or the comparison: all contestants have one value. Write it "
            "outside of compare:"
        )
    if method == STOCK and ours:
        raise ConfigError(f"{name}: {ours[0]} is not a field of TRL's own trainer. Leave it out, or use method: grpo")
    if not re.fullmatch(r"[\w-][\w.-]*", str(name)):
        raise ConfigError(f"the name {name!r} is a folder's name too: use letters, digits, '-', '_' and '.'.")
    return Contestant(name=str(name), method=str(method), overrides=overrides)
