"""``DPPOAsyncConfig``: every field of TRL's ``AsyncGRPOConfig`` plus ours, checked before anything is loaded."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from trl.experimental.async_grpo.async_grpo_config import AsyncGRPOConfig

from dppo.methods import Method
from dppo.methods import settings as checks
from dppo.methods.from_settings import pruned, with_rollout_cost
from dppo.methods.own import is_own, method_named
from dppo.objective import DAPO_TOKENS, DR_GRPO
from dppo.settings import DEFAULT_METHOD, AsyncSettings, described
from dppo.trl.served import DEEPSPEED, ranges_of, served_in_rows
from dppo.typed import NamedFields

RATIO = "groups of several blocks come back, so the tokens of all candidates are estimated: a ratio, biased O(1/n)"
NORMALISERS = {"dapo": replace(DAPO_TOKENS, prompt_exact=False, reason=RATIO), "dr_grpo": DR_GRPO}
"""By ``loss_type``."""


@dataclass
class DPPOAsyncConfig(NamedFields, AsyncSettings, AsyncGRPOConfig):
    """Arguments of ``DPPOAsyncTrainer``: those below, and all of TRL's ``AsyncGRPOConfig``, with their meaning.

    A step is of ``per_device_train_batch_size * gradient_accumulation_steps * processes`` completions *as rolled out*,
    in whole groups of ``num_generations``.

    Raises:
        ConfigError: at construction, with all fields that are out of range, biased or not served by this trainer.
    """

    def __post_init__(self) -> None:
        checks.read_rates(self)
        problems = [DEEPSPEED] if self.deepspeed else []  # before transformers looks for the package
        self._refuse(*problems, *checks.setting_problems(self, checks.CHOICES, ranges_of(self)))
        self.method = self.method or DEFAULT_METHOD
        base = method_named(self.method)
        problems = checks.completed(self, base)
        super().__post_init__()
        self._refuse(*problems, *self._unserved(base))
        self._refuse(*checks.bias_problems(self, self.build_method().biases()))

    def build_method(self) -> Method:
        """The ``Method`` of a run: pruning from these arguments, the objective of TRL's asynchronous trainer."""
        method = replace(method_named(self.method), normaliser=NORMALISERS[self.loss_type])
        if not is_own(self.method):
            method = pruned(self, method, sampler_log_probs=True)
        return with_rollout_cost(method, 1.0 if self.rollout_cost is None else self.rollout_cost)

    def groups_per_step(self, processes: int) -> int:
        """Groups of an optimizer step; ``ConfigError`` if its completions are no whole groups."""
        size, each, calls = self.num_generations, self.per_device_train_batch_size, self.gradient_accumulation_steps
        completions = each * calls * processes
        if completions % size:
            unit = size // math.gcd(size, each * processes)
            step = f"per_device_train_batch_size={each} * gradient_accumulation_steps={calls} * {processes} processes"
            problem = f"a step has {step} = {completions} completions, no whole groups of num_generations={size}"
            self._refuse(f"{problem}. Write gradient_accumulation_steps: {math.ceil(calls / unit) * unit}.")
        return completions // size

    def _unserved(self, base: Method) -> Iterator[str]:
        """One sentence per option or part of the method that this trainer does not serve."""
        yield from (sentence for sentence, fine in served_in_rows(self).items() if not fine)
        if self.num_generations < 2:
            yield f"num_generations={self.num_generations}: a group of one has no advantage. Write num_generations: 8."
        if self.router_aux_loss_coef:
            mean = "TRL takes the mean over the forwarded tokens: those kept"
            yield f"router_aux_loss_coef={self.router_aux_loss_coef:g}: {mean}. Write router_aux_loss_coef: 0.0."
        if base.rounds is not None or base.sizes is not None:
            differs = "rolls prompts out in rounds" if base.rounds else "has groups of many sizes"
            ahead = "prompts are requested ahead, with num_generations completions each"
            yield f"method={self.method!r} {differs}, and {ahead}. Write method: dppo."
        if own := checks.own_objective(base):
            here = "TRL's asynchronous trainer has clipped ratios and advantages by the deviation in a group"
            yield f"method={self.method!r} has an objective of its own ({', '.join(own)}): {here}. Write method: dppo."


cast(Any, DPPOAsyncConfig).__doc__ = described(DPPOAsyncConfig, AsyncSettings)
