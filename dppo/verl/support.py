"""The supported range of verl, and each refused option with the reason and a line that works."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from dppo.environment import check_version
from dppo.hooked import changed
from dppo.methods import Method
from dppo.pruning.probabilities import stated
from dppo.typed import is_number

Get = Callable[[str], Any]
"""The value of an option by its path in verl's configuration, None if there is none."""
Rule = tuple[str, tuple[Any, ...], str, Any]
"""An option, its served values, the reason why no other is served, and a value that works."""

OLDEST, BEFORE = "0.9.0", "0.10.0"
"""The supported range of verl: the bodies of the overridden methods were compared within it."""
OLDEST_ASYNC = "0.9.1"
"""The first verl whose asynchronous trainers count prompts in flight when they resume."""
HOOKED = Path(__file__).with_name("hooked.json")
"""Methods and functions of verl that we override or call."""

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
LOSS, AGGREGATION = f"{ACTOR}.policy_loss.loss_mode", f"{ACTOR}.loss_agg_mode"
MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"
ROW_ENGINES = {"fsdp": "dppo_rows_fsdp", "fsdp2": "dppo_rows_fsdp2"}
"""The engine for ``layout=rows`` by verl's own, as ``strategy`` names them."""
LOG_PROBS, BLOCK, ESTIMATOR = f"{ROLLOUT}.calculate_log_probs", "data.train_batch_size", "algorithm.adv_estimator"
FILTER = "algorithm.filter_groups.enable"
"""verl's option that takes prompts until enough groups differ in reward."""
KL_REWARD = "algorithm.use_kl_in_reward"
"""verl's option that delays the plan of a step until verl's passes over all of its rows."""
CORRECTIONS = ("algorithm.rollout_correction", f"{ACTOR}.policy_loss.rollout_correction")
"""verl's rollout correction: of ratios to old log-probabilities, and of ``bypass_mode``."""

OFF, NEVER = (None, False, 0, ""), ()
"""Served values: those by which an option is off; and none, for an option whose value was found to be wrong."""
ROW_LOSSES = ("vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "dro", "cispo", "bypass_mode")
"""Losses whose terms are of one row each, over a denominator of the whole mini-batch."""
MIXING_LOSSES = ("gspo",)
"""Those of ``ROW_LOSSES`` whose terms depend on several tokens of a row, as ``mixes_tokens`` finds."""
GROUP_ESTIMATORS = ("grpo", "grpo_vectorized", "rloo", "rloo_vectorized")
"""Advantages that are one number per completion, from the rewards of its own group. ``opo`` divides by the tokens of a
group and ``grpo_passk`` needs two rows of each: verl's padding rows have no tokens, and may be alone in a group."""

_UNWEIGHTED = "its loss is not weighted"
_NO_ROUTER = "no weight reaches the router's loss, which is computed inside the model"
ALWAYS: tuple[Rule, ...] = (
    ("critic.enable", OFF, "a critic is trained on whole batches", False),
    ("trainer.critic_warmup", OFF, "there is no critic", 0),
    ("distillation.enabled", OFF, _UNWEIGHTED, False),
    ("actor_rollout_ref.model.mtp.enable", OFF, _UNWEIGHTED, False),
    (f"{ACTOR}.use_prefix_grouper", OFF, "it needs whole groups, and rows are left out", False),
    (f"{ACTOR}.strategy", ("fsdp", "fsdp2", "megatron"), "weights were checked on FSDP and Megatron alone", "fsdp2"),
    (f"{ACTOR}.shuffle", OFF, "it deals rows to other mini-batches than those they were drawn for", False),
    (f"{ACTOR}.use_dynamic_bsz", (True,), "the number of kept rows is no multiple of a micro-batch size", True),
    ("trainer.v1.sampler.sync_refill_failed_groups", OFF, "it takes prompts that were not drawn", False),
    ("trainer.v1.sampler.custom_sampler.path", OFF, "the prompts of a step are chosen here", "null"),
    ("skip.rollout_tq.enable", OFF, "it trains on the rollouts of another run", False),
    *((f"{at}.rollout_rs", OFF, "it masks tokens that denominators still count", "null") for at in CORRECTIONS),
    *((f"{at}.rollout_is_batch_normalize", OFF, "it divides by a mean over the batch", False) for at in CORRECTIONS),
)
MEGATRON: tuple[Rule, ...] = (
    ("virtual_pipeline_model_parallel_size", (None, 1), "it needs more micro-batches than there may be rows", "null"),
    ("dynamic_context_parallel", OFF, "it deals rows to ranks by itself, which was not checked", False),
    ("router_replay.mode", (None, "disabled"), "replayed routes include rows and tokens that are left out", "disabled"),
    ("vanilla_mbridge", OFF, _NO_ROUTER, False),
    ("override_transformer_config.moe_router_load_balancing_type", (None, "none"), _NO_ROUTER, "none"),
    ("override_transformer_config.moe_z_loss_coeff", OFF, _NO_ROUTER, "null"),
)
"""Rules under ``actor.megatron``, if that is the engine."""
_REF = "actor_rollout_ref.ref"
ROWS: tuple[Rule, ...] = (
    (f"{ACTOR}.strategy", tuple(ROW_ENGINES), "layout=rows is in the FSDP engines alone", "fsdp2"),
    *(
        (f"{where}.ulysses_sequence_parallel_size", (None, 1), "attention over rows is not sharded", 1)
        for where in (ACTOR, f"{ACTOR}.fsdp_config", _REF, f"{_REF}.fsdp_config")
    ),
    ("actor_rollout_ref.model.use_fused_kernels", OFF, "rows have a head of their own, which makes no logits", False),
    (f"{ACTOR}.calculate_sum_pi_squared", OFF, "the head of layout=rows makes no logits", False),
    *((f"{where}.pad_to_length", OFF, "rows have no padding", False) for where in (ACTOR, f"{ACTOR}.fsdp_config")),
)
"""Rules for ``layout=rows``."""


def check_verl_version(installed: str, mode: str = "sync", *, megatron: bool = False) -> None:
    """Raise ``ConfigError`` for a verl before the range of a trainer ``mode``, or after it with changed methods."""
    served = {"oldest": OLDEST if mode == "sync" else OLDEST_ASYNC, "before": BEFORE}
    used = partial(changed, HOOKED, lambda path: megatron or ".megatron." not in path)
    check_version("verl[verl-core]", installed, **served, changed=used)


def has_log_probs(get: Get) -> bool:
    """True if log-probabilities of sampled tokens are known when a step is planned."""
    return bool(get(LOG_PROBS) or get(KL_REWARD))


def order_lines(method: Method, get: Get) -> list[str]:
    if get(KL_REWARD):
        reason = f"{KL_REWARD}=True makes rewards of the reference's log-probabilities"
        return [f"order: verl's passes go over all rows, then the draw: {reason}"]
    order = "order: rewards, draw, then old log-probabilities, reference and update over the kept rows"
    score = f"score {method.score_name}: samplers return no log-probabilities. {LOG_PROBS}=True gives a better one"
    return [order, score] if method.completions.rate and not get(LOG_PROBS) else [order]


def refusals(get: Get, rules: Iterable[Rule]) -> list[str]:
    """One sentence for each option whose value is not served."""
    return [
        f"{name}={'null' if value is None else value}: {why}. Write {name}={instead}."
        for name, served, why, instead in rules
        if (value := getattr(get(name), "value", get(name))) not in served  # some of verl's are enumerations
    ]


def unsupported_options(get: Get, method: Method, mode: str = "sync", *, rows: bool = False) -> list[str]:
    """One sentence per option of verl that would be silently wrong with its trainer ``mode``; empty if all are served.

    ``rows`` is True for ``layout=rows``. Modes are ``sync``, ``colocate_async`` and ``separate_async``.
    """
    rules: list[Rule] = [*ALWAYS, *_objective_rules(get, method), *_step_rules(get, mode)]
    if get(f"{ACTOR}.strategy") == "megatron":
        rules += [(f"{ACTOR}.megatron.{name}", served, why, instead) for name, served, why, instead in MEGATRON]
    rules += ROWS if rows else ()
    if mode != "sync":
        rules += _ahead_rules(get, method, f"trainer.v1.{mode}")
    return refusals(get, rules)


def _objective_rules(get: Get, method: Method) -> Iterator[Rule]:
    mode = get(LOSS)
    why = "its rows are not known to be independent, so no weight makes up for rows that are left out"
    yield LOSS, (None, "", *ROW_LOSSES), why, "vanilla"
    if mode == "sapo":
        averaged = "seq-mean-token-mean"
        yield AGGREGATION, (averaged,), "loss_mode=sapo always averages over sequences, and two means mix", averaged
    if get(AGGREGATION) == "seq-mean-token-sum-norm" and get(scale := f"{ACTOR}.loss_scale_factor") is None:
        longest = get("data.max_response_length")
        yield scale, NEVER, "the loss is divided by the longest row of a micro-batch, which pruning changes", longest
    if method.advantages.from_history:
        yield ESTIMATOR, ("grpo",), f"method={method.name} has advantages of its own", "grpo"
    else:
        why = f"advantages must be one number per completion from its own group: {', '.join(GROUP_ESTIMATORS)}"
        yield ESTIMATOR, GROUP_ESTIMATORS, why, "grpo"
        if get(f"{ROLLOUT}.n") == 1:
            instead = "8, or method=dppo_history, whose baseline is from history"
            yield f"{ROLLOUT}.n", NEVER, "verl takes the raw reward of a group of one as its advantage", instead
    if stated(method.score).needs_log_probs and not has_log_probs(get):
        yield LOG_PROBS, NEVER, "completion_score=uncertainty needs the sampler's log-probabilities", True
    if not method.tokens.active:
        return
    left_out = f"token_prune_rate={method.tokens.rate:g} leaves tokens out"
    if method.tokens.needs_log_probs and not has_log_probs(get):
        yield LOG_PROBS, NEVER, f"{left_out} by the sampler's log-probabilities", True
    if get(LOSS) in MIXING_LOSSES:
        yield LOSS, NEVER, f"its ratio is of a whole completion, and {left_out}", "vanilla"
    for name in (f"{where}.rollout_is" for where in CORRECTIONS):
        if get(name) == "sequence":
            yield name, NEVER, f"its ratio is of a whole completion, and {left_out}", "token"


def _ahead_rules(get: Get, method: Method, section: str) -> Iterator[Rule]:
    warm_up = get(name := f"{section}.num_warmup_batches")
    if not is_number(warm_up) or warm_up < 0 or warm_up != int(warm_up):
        yield name, NEVER, f"prompts are drawn in whole blocks of {BLOCK}", 1
    if section.endswith("colocate_async"):
        return
    part, updates = get(MINI_BATCH), get(f"{section}.parameter_sync_step")
    if not part or not updates or get(BLOCK) != part * updates:
        why = f"verl needs {section}.parameter_sync_step={updates} times {MINI_BATCH}={part}"
        yield BLOCK, NEVER, why, (part or 1) * (updates or 1)
    if method.prompts.rate:
        why = f"it waits for a share of {BLOCK} groups, which a pruned block may not have"
        yield f"{section}.hybrid_rollout.enable_switch", OFF, why, "False, or prompt_prune_rate=0"


def _step_rules(get: Get, mode: str) -> Iterator[Rule]:
    whole, part, epochs = get(BLOCK), get(MINI_BATCH), get(f"{ACTOR}.ppo_epochs")
    if not whole:
        yield BLOCK, NEVER, "a step needs prompts", 256
    elif not part or whole % part:
        yield MINI_BATCH, NEVER, f"{BLOCK}={whole} must be a multiple of it", whole
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        yield f"{ACTOR}.ppo_epochs", NEVER, "it must be a whole number >= 1", 1
    if get(f"{ACTOR}.use_kl_loss") or get(KL_REWARD):
        name, why = "actor_rollout_ref.ref.log_prob_use_dynamic_bsz", "the kept rows do not divide by its micro-batches"
        yield name, (None, True), why, True
    # One prompt at a time is how the filter and the asynchronous trainers take prompts in verl itself.
    at_once = 1 if get(FILTER) or mode != "sync" else whole
    yield "data.gen_batch_size", (None, at_once), "the prompts of a step are one block, drawn at once", "null"
    if mode != "separate_async":
        why = "samplers that lag behind would finish prompts of other steps"
        instead = "True, or trainer.v1.trainer_mode=dynamic_pruning_separate_async"
        yield "actor_rollout_ref.hybrid_engine", (None, True), why, instead
        why = "an update takes all prompts of a step, and the next one would wait for ever"
        yield f"trainer.v1.{mode}.parameter_sync_step", (None, 1), why, 1
