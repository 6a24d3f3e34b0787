"""``DPPOConfig``: every TRL ``GRPOConfig`` field plus ours, checked before anything is loaded."""

from dataclasses import dataclass, field, replace
from functools import partial

from trl.trainer.grpo_config import GRPOConfig

from dppo.errors import raise_problems
from dppo.methods import METHODS, PER_TOKEN_SCORES, Method
from dppo.objective import (
    ADVANTAGE_RULES,
    NORMALISERS,
    TokenLoss,
    cispo,
    clipped_surrogate,
    emphasised,
    gspo,
)
from dppo.pruning import (
    DESIGNS,
    PIVOTAL,
    SCHEDULES,
    SCORES,
    Pruning,
    Rounds,
    Schedule,
    Score,
    constant,
)
from dppo.pruning.schedules import FULL_SHARE
from dppo.trl.fields import AUTO, field_problems
from dppo.trl.support import unsupported_options

DEFAULT_FLOOR = 0.2
"""Keeps weights at 5 or less per level at little cost in variance: docs/log.md."""


@dataclass
class DPPOConfig(GRPOConfig):
    """Arguments of ``DPPOTrainer``. TRL's fields keep their meaning; these come on top.

    Raises:
        ConfigError: at construction, listing every field that is out of range, biased without ``accept_bias``,
            or a TRL option this trainer does not serve (with what to use instead).
    """

    method: str = field(
        default="dppo",
        metadata={
            "help": "How completions and prompts are pruned: `dppo` (probability proportional to the score, unbiased), "
            "`dppo_threshold` (the paper's rule, unbiased), `dppo_deterministic` (the paper's Algorithm 1, biased), "
            "`infobatch` (prompts only, unbiased), `cppo`, `cppo_trl`, `cppo_verl`, `pods` (biased), `dapo` (rounds of "
            "rollouts until enough groups have rewards that differ, biased), `greso` (such rounds without prompts that "
            "gave nothing time after time, biased), `greso_compat` (as in its code, for rewards of 0, 0.1 and 1), or "
            "`grpo` (nothing is pruned). The loss itself is set by TRL's fields; names such as `dppo_gspo` check them."
        },
    )
    completion_prune_rate: float | None = field(
        default=None,
        metadata={
            "help": "Share of the completions with a gradient that is not trained on, in [0, 1). Completions without "
            "a gradient (zero advantage, beta=0) are always skipped: that is exact. Default: the method's, 0.5 for "
            "those that prune completions."
        },
    )
    prompt_prune_rate: float | None = field(
        default=None,
        metadata={
            "help": "Share of the candidate prompts with a history that is not rolled out, in [0, 1). Prompts never "
            "seen are always rolled out, so this does nothing in the first epoch. Default: the method's, 0 for all "
            "but `infobatch`, which has 0.5."
        },
    )
    prune_schedule: str = field(
        default=AUTO,
        metadata={
            "help": "How the rates change over the run: `constant`, `stop` (0 after prune_until), `fade` (down to 0 "
            "in a straight line from prune_until to the end), or `auto`: the method's own, `stop` for `infobatch` "
            "and `constant` for all others."
        },
    )
    prune_until: float = field(
        default=FULL_SHARE,
        metadata={"help": "Share of the run, in [0, 1], with the full rates where prune_schedule is not `constant`."},
    )
    advantage_power: float = field(
        default=0.0,
        metadata={
            "help": "p > -1 in A * abs(A)^p, which takes the place of the advantage A; above 0 it stresses rare "
            "outcomes. That is another objective than the reward's; pruning it is as unbiased as pruning its own."
        },
    )
    prompt_mode: str = field(
        default="thin",
        metadata={
            "help": "`thin`: a block is the usual number of prompts and fewer are rolled out, so steps are cheaper. "
            "`fill`: blocks are longer and rollout batches stay full; a run takes as many steps and sees more prompts "
            "(`candidates/epoch` counts its epochs)."
        },
    )
    max_rounds: int | None = field(
        default=None,
        metadata={
            "help": "Most rounds of rollouts per generation where the method has rounds, >= 0; 0 is no limit. There "
            "`dapo` saves the run and stops, `greso` trains on the groups there are. Default: the method's, 10."
        },
    )
    round_factor: float | None = field(
        default=None,
        metadata={
            "help": "Prompts of a round as a multiple of those of a generation, > 0, where the method has rounds. "
            "Default: the method's, 1 for `dapo` (3 in its paper), 1.5 for `greso`, whose later rounds are smaller."
        },
    )
    prune_floor: float | None = field(
        default=None,
        metadata={
            "help": "Smallest probability of keeping a prompt or completion, in (0, 1 - rate]; no weight exceeds one "
            "over it per level. Default: 0.2, or half of 1 - rate where that is smaller."
        },
    )
    completion_score: str = field(
        default=AUTO,
        metadata={
            "help": "What completions are ranked by: `advantage`, `length` (abs(A) * sqrt(tokens)), `confidence` "
            "(abs(A) * sqrt(sum (1 - p)^2), needs the sampler's log-probabilities), `uniform` (all alike: the control "
            "that shows what a score is worth), or `auto`: the score of the "
            "method's paper, and for `dppo` `confidence` where rollouts come with log-probabilities (vLLM, "
            "rollout_func), otherwise `length`, or `advantage` where the loss is a mean over tokens (grpo)."
        },
    )
    completion_budget: str = field(
        default="rows",
        metadata={"help": "What completion_prune_rate is a share of: `rows` or `tokens` (long rows then cost more)."},
    )
    sampling_design: str = field(
        default="pivotal",
        metadata={
            "help": "How completions are drawn given their probabilities: `pivotal`, `systematic` or `poisson`. "
            "Prompts are always drawn with a fixed size."
        },
    )
    history_half_life: float | None = field(
        default=None,
        metadata={
            "help": "Generations after which half of a prompt's remembered signal has faded to the prior, > 0. "
            "Default: those of three epochs, since a prompt comes back once an epoch."
        },
    )
    max_tokens_per_row: int | None = field(
        default=None,
        metadata={
            "help": "Tokens of one forward pass, >= 1: what bounds memory, whatever per_device_train_batch_size is. "
            "Default: per_device_train_batch_size times the longest sequence of the batch, which is what TRL itself "
            "would forward at once. How to choose it: docs/packing.md."
        },
    )
    layout: str = field(
        default="rows",
        metadata={
            "help": "How kept completions are forwarded. `rows`: dense, nothing padded, shared prompts once; a model "
            "that rows cannot serve is padded, and the run says so. `packed`: the same without sharing prompts. "
            "`auto`: `rows`, and padded too if the self-check at the start fails, which otherwise stops the run. "
            "`padded`: length-sorted padding."
        },
    )
    reward_time_limit: float | None = field(
        default=None,
        metadata={"help": "Seconds a reward function may take for one batch before the run stops with an error, > 0."},
    )
    record_completions: int = field(
        default=16,
        metadata={
            "help": "Most completions that a logged step writes to completions.jsonl, >= 0, in whole groups (one group "
            "at least where it is not 0)."
        },
    )
    accept_bias: bool = field(
        default=False,
        metadata={"help": "Must be set to train with a method whose expected gradient is not the full batch's."},
    )

    def __post_init__(self) -> None:
        self.generation_batch_given = self.generation_batch_size is not None  # TRL fills it in for this process count
        super().__post_init__()
        base = METHODS.get(self.method, METHODS["grpo"])
        if self.completion_prune_rate is None:
            self.completion_prune_rate = base.completions.rate
        if self.prompt_prune_rate is None:
            self.prompt_prune_rate = base.prompts.rate
        raise_problems("DPPOConfig", field_problems(self) or unsupported_options(self))
        method = self.build_method()
        if method.selection_bias and not self.accept_bias:
            raise_problems(
                "DPPOConfig",
                [
                    f"method={self.method!r} is biased: {'; '.join(method.selection_bias)}. "
                    "Use method='dppo', or set accept_bias=True to train with it on purpose."
                ],
            )

    def build_method(self, *, sampler_log_probs: bool = False) -> Method:
        """The ``Method`` these arguments describe: pruning from ours, loss and normaliser from TRL's fields.

        Args:
            sampler_log_probs: whether rollouts come with log-probabilities, which ``completion_score: auto`` uses.
        """
        base = METHODS[self.method]
        method = replace(
            base,
            advantages=emphasised(ADVANTAGE_RULES[self.scale_rewards], self.advantage_power),
            token_loss=self._token_loss(),
            normaliser=NORMALISERS[self.loss_type],
            beta=self.beta,
            rounds=self._rounds(base.rounds),
        )
        if not (base.completions.rate or base.prompts.rate):
            return method
        return replace(
            method,
            completions=self._pruned(
                replace(base.completions, score=self._score(base, sampler_log_probs)),
                self.completion_prune_rate or 0.0,
                self.completion_budget,
            ),
            prompts=self._pruned(base.prompts, self.prompt_prune_rate or 0.0, "rows", fixed_size=True),
        )

    def _rounds(self, rounds: Rounds | None) -> Rounds | None:
        if rounds is None:
            return None
        limit = rounds.limit if self.max_rounds is None else self.max_rounds
        return replace(rounds, limit=limit, factor=self.round_factor or rounds.factor)

    def _score(self, base: Method, sampler_log_probs: bool) -> Score:
        """The score asked for; ``auto`` leaves a paper's own score alone and picks the best at hand for ours."""
        if self.completion_score != AUTO:
            return SCORES[self.completion_score]
        if base.completions.score not in {*PER_TOKEN_SCORES, *PER_TOKEN_SCORES.values()}:
            return base.completions.score
        if sampler_log_probs:
            return SCORES["confidence"]
        # Of a mean over tokens, dividing by the length loses more than it gains: the tables of dppo verify.
        return SCORES["advantage" if NORMALISERS[self.loss_type].per_sequence else "length"]

    def _pruned(self, pruning: Pruning, rate: float, budget: str, *, fixed_size: bool = False) -> Pruning:
        floor = min(DEFAULT_FLOOR, (1 - rate) / 2) if self.prune_floor is None else self.prune_floor
        design = DESIGNS[self.sampling_design] if pruning.design.unbiased else pruning.design
        if fixed_size and not design.fixed_size:
            design = PIVOTAL  # a random number of prompts may be none at all, and does not divide over ranks
        schedule = self._schedule(pruning)
        return replace(pruning, rate=rate, floor=floor, budget=budget, design=design, schedule=schedule)

    def _schedule(self, pruning: Pruning) -> Schedule:
        schedule = pruning.schedule if self.prune_schedule == AUTO else SCHEDULES[self.prune_schedule]
        return schedule if schedule is constant else partial(schedule, until=self.prune_until)

    def _token_loss(self) -> TokenLoss:
        high = self.epsilon if self.epsilon_high is None else self.epsilon_high
        if self.loss_type == "cispo":
            return partial(cispo, ratio_max=high)
        surrogate = gspo if self.importance_sampling_level == "sequence" else clipped_surrogate
        return partial(surrogate, clip_low=self.epsilon, clip_high=high, delta=self.delta)
