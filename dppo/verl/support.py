"""What the adapter serves: the range of verl, and every option that it refuses, with the reason and what to use."""

from collections.abc import Callable, Iterator
from typing import Any

from dppo.errors import ConfigError
from dppo.methods import Method
from dppo.pruning import needs_log_probs

OLDEST, BEFORE = (0, 9, 0), (0, 10, 0)
"""The supported range of verl: the bodies of the methods that are overridden were compared within it."""
OLDEST_ASYNC = (0, 9, 1)
"""The first verl whose asynchronous trainers count prompts in flight when they resume."""
ROW_LOSSES = ("vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "dro", "cispo", "bypass_mode")
"""Losses whose terms are of one row each, over a denominator of the whole mini-batch."""
WHY_NOT = {
    "clip_cov": "picks tokens by their covariance over all rows of a micro-batch",
    "kl_cov": "picks tokens by their covariance over all rows of a micro-batch",
    "geo_mean": "divides by the rows of each micro-batch",
}
MIXING_LOSSES = ("gspo",)
"""Those of ``ROW_LOSSES`` whose terms look at several tokens of a row, as ``mixes_tokens`` finds."""
ACTOR = "actor_rollout_ref.actor"
STRATEGIES = ("fsdp", "fsdp2", "megatron")
"""Engines of verl on which weights were checked."""
FILTER = "algorithm.filter_groups.enable"
"""verl's option that takes prompts until enough groups differ in reward."""
CORRECTIONS = ("algorithm.rollout_correction", f"{ACTOR}.policy_loss.rollout_correction")
"""Where verl's rollout correction is configured: for ratios to old log-probabilities, and for ``bypass_mode``."""
OFF = (None, False, 0, "")
"""Values by which an option of verl is off."""
GROUP_ESTIMATORS = ("grpo", "grpo_vectorized", "rloo", "rloo_vectorized")
"""Advantages that are one number per completion, from the rewards of its own group. ``opo`` divides by the tokens of a
group and ``grpo_passk`` wants two of each: the rows that verl pads with have none and may be one."""


def check_verl_version(installed: str, mode: str = "sync") -> None:
    """Return where ``installed`` is in the supported range of verl.

    Args:
        installed: its version.
        mode: verl's own trainer that is asked for.

    Raises:
        ConfigError: naming the installed version, the range, and the command that installs one from it.
    """
    numbers = tuple(int(part) for part in installed.split(".")[:3] if part.isdigit())
    first = OLDEST if mode == "sync" else OLDEST_ASYNC
    if not first <= numbers < BEFORE:
        oldest, before = (".".join(map(str, each)) for each in (first, BEFORE))
        raise ConfigError(
            f"verl {installed} is not supported: methods that are overridden were checked on {oldest} <= verl < "
            f"{before} only. Install one: pip install 'verl[verl-core]>={oldest},<{before}'"
        )


def waits_for(get: Callable[[str], Any]) -> str:
    """Why verl's passes must go over all rows before a step can be planned; empty where advantages need no pass."""
    if get("algorithm.use_kl_in_reward"):
        return "algorithm.use_kl_in_reward=True makes rewards of the reference's log-probabilities"
    return ""


def knows_probabilities(get: Callable[[str], Any]) -> bool:
    """Whether the probabilities of sampled tokens are there when a step is planned: the sampler's, or verl's own."""
    return bool(get("actor_rollout_ref.rollout.calculate_log_probs") or waits_for(get))


def unsupported_options(get: Callable[[str], Any], method: Method, mode: str = "sync") -> list[str]:
    """One sentence per option of verl that would be silently wrong here; empty when all are served.

    Args:
        get: the value of an option by its path in verl's configuration, None where there is none.
        method: of the run.
        mode: verl's own trainer: ``sync``, ``colocate_async`` or ``separate_async``.
    """
    return [
        *_loss_problems(get),
        *_advantage_problems(get, method),
        *_step_problems(get, mode),
        *(_ahead_problems(get, method, mode) if mode != "sync" else ()),
        *(_token_problems(get, method) if method.tokens.active else ()),
    ]


def _refused(get: Callable[[str], Any], *rules: tuple[str, tuple[Any, ...], str, str], part: str = "") -> Iterator[str]:
    """A sentence for each option of a part of the configuration whose value is not served.

    A rule is an option, its values that are served, why no other one is, and what to write.
    """
    for name, served, why, instead in rules:
        if (value := get(part + name)) not in served:
            yield f"{part}{name}={value}: {why}. Write {part}{name}={instead}."


def _token_problems(get: Callable[[str], Any], method: Method) -> Iterator[str]:
    """Why tokens cannot be left out of completions, one sentence each."""
    left_out = f"token_prune_rate={method.tokens.rate:g}"
    if method.tokens.needs_log_probs and not knows_probabilities(get):
        yield (
            f"{left_out} with actor_rollout_ref.rollout.calculate_log_probs=False: cuts are drawn by what the sampler "
            "was sure of. Write actor_rollout_ref.rollout.calculate_log_probs=True."
        )
    mode = get(f"{ACTOR}.policy_loss.loss_mode")
    if mode in MIXING_LOSSES:
        yield (
            f"{ACTOR}.policy_loss.loss_mode={mode} with {left_out}: its ratio is of a whole completion, and tokens are "
            f"left out. Write {ACTOR}.policy_loss.loss_mode=vanilla."
        )
    for where in CORRECTIONS:
        if get(f"{where}.rollout_is") == "sequence":
            yield (
                f"{where}.rollout_is=sequence with {left_out}: a ratio of whole completions, and tokens are left out. "
                f"Write {where}.rollout_is=token."
            )


def _loss_problems(get: Callable[[str], Any]) -> Iterator[str]:
    mode, aggregation = get(f"{ACTOR}.policy_loss.loss_mode") or "vanilla", get(f"{ACTOR}.loss_agg_mode")
    if mode not in ROW_LOSSES:
        why = WHY_NOT.get(mode, "is not one whose rows are known to be independent")
        yield (
            f"{ACTOR}.policy_loss.loss_mode={mode} {why}, so no weight of a row makes up for rows that are left out. "
            f"Write {ACTOR}.policy_loss.loss_mode=vanilla."
        )
    if mode == "sapo" and aggregation != "seq-mean-token-mean":
        yield (
            f"{ACTOR}.loss_agg_mode={aggregation} with loss_mode=sapo, which averages over sequences whatever it says: "
            f"its terms would be divided by two different numbers. Write {ACTOR}.loss_agg_mode=seq-mean-token-mean."
        )
    if aggregation == "seq-mean-token-sum-norm" and get(f"{ACTOR}.loss_scale_factor") is None:
        yield (
            f"{ACTOR}.loss_scale_factor=null with loss_agg_mode=seq-mean-token-sum-norm: the loss is divided by the "
            "longest row of each micro-batch, which pruning changes. Write "
            f"{ACTOR}.loss_scale_factor={get('data.max_response_length')}."
        )
    masked, divided = "it masks tokens that denominators still count", "it divides by a mean over the batch"
    yield from _refused(
        get,
        ("distillation.enabled", OFF, "its loss is not weighted", "False"),
        ("actor_rollout_ref.model.mtp.enable", OFF, "its loss is not weighted", "False"),
        (f"{ACTOR}.use_prefix_grouper", OFF, "it needs whole groups, of which rows are left out", "False"),
        *((f"{where}.rollout_rs", OFF, masked, "null") for where in CORRECTIONS),
        *((f"{where}.rollout_is_batch_normalize", OFF, divided, "False") for where in CORRECTIONS),
    )


def _advantage_problems(get: Callable[[str], Any], method: Method) -> Iterator[str]:
    estimator = get("algorithm.adv_estimator")
    estimator = getattr(estimator, "value", estimator)
    if estimator not in GROUP_ESTIMATORS:
        yield (
            f"algorithm.adv_estimator={estimator} is not one number per completion from its own group. Write "
            f"algorithm.adv_estimator=grpo; served are {', '.join(GROUP_ESTIMATORS)}."
        )
    elif method.advantages.from_history and estimator != "grpo":
        yield (
            f"algorithm.adv_estimator={estimator} with method={method.name}, which has advantages of its own. Write "
            "algorithm.adv_estimator=grpo."
        )
    if get("actor_rollout_ref.rollout.n") == 1 and not method.advantages.from_history:
        yield (
            "actor_rollout_ref.rollout.n=1: verl takes the raw reward of a group of one as its advantage. Write "
            "actor_rollout_ref.rollout.n=8, or method=dppo_history, whose baseline is from history."
        )
    if needs_log_probs(method.score) and not knows_probabilities(get):
        yield (
            "completion_score=uncertainty with actor_rollout_ref.rollout.calculate_log_probs=False: scores are made "
            "before verl computes probabilities. Write actor_rollout_ref.rollout.calculate_log_probs=True."
        )
    yield from _refused(get, ("critic.enable", OFF, "a critic is trained on whole batches", "False"))


def _ahead_problems(get: Callable[[str], Any], method: Method, mode: str) -> Iterator[str]:
    """Of trainers that ask for prompts ahead of the step that trains on them."""
    section = f"trainer.v1.{mode}"
    warm_up = get(f"{section}.num_warmup_batches")
    if isinstance(warm_up, bool) or not isinstance(warm_up, int | float) or warm_up < 0 or warm_up != int(warm_up):
        yield (
            f"{section}.num_warmup_batches={warm_up}: prompts are drawn in whole blocks of data.train_batch_size. "
            f"Write {section}.num_warmup_batches=1."
        )
    if mode == "colocate_async":
        return
    whole, part = get("data.train_batch_size"), get(f"{ACTOR}.ppo_mini_batch_size")
    updates = get(f"{section}.parameter_sync_step")
    if not part or not updates or whole != part * updates:
        yield (
            f"data.train_batch_size={whole} is not {section}.parameter_sync_step={updates} times "
            f"{ACTOR}.ppo_mini_batch_size={part}, as verl wants it. Write "
            f"data.train_batch_size={(part or 1) * (updates or 1)}."
        )
    if method.prompts.rate and get(f"{section}.hybrid_rollout.enable_switch"):
        yield (
            f"{section}.hybrid_rollout.enable_switch=True waits for a share of data.train_batch_size groups, which a "
            f"pruned block may not have. Write {section}.hybrid_rollout.enable_switch=False, or prompt_prune_rate=0."
        )


def _step_problems(get: Callable[[str], Any], mode: str) -> Iterator[str]:
    whole, part, strategy = get("data.train_batch_size"), get(f"{ACTOR}.ppo_mini_batch_size"), f"{ACTOR}.strategy"
    checked = "weights were checked on verl's FSDP and Megatron engines alone"
    yield from _refused(get, (strategy, STRATEGIES, checked, "fsdp2"))
    if get(strategy) == "megatron":
        yield from _refused(get, *MEGATRON, part=f"{ACTOR}.megatron.")
    if not get(f"{ACTOR}.use_dynamic_bsz"):
        yield (
            f"{ACTOR}.use_dynamic_bsz=False cuts rows into micro-batches of one size, and as many rows as are kept do "
            f"not divide by it. Write {ACTOR}.use_dynamic_bsz=True."
        )
    reference = "actor_rollout_ref.ref.log_prob_use_dynamic_bsz"
    if (get(f"{ACTOR}.use_kl_loss") or waits_for(get)) and get(reference) is False:
        yield f"{reference}=False: the rows kept do not divide by its micro-batches. Write {reference}=True."
    if not whole or not part or whole % part:
        yield (
            f"data.train_batch_size={whole} is not a multiple of {ACTOR}.ppo_mini_batch_size={part}. Write "
            + (f"{ACTOR}.ppo_mini_batch_size={whole}." if whole else "data.train_batch_size=256.")
        )
    epochs = get(f"{ACTOR}.ppo_epochs")
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        yield f"{ACTOR}.ppo_epochs={epochs} is no number of passes of at least 1. Write {ACTOR}.ppo_epochs=1."
    fetched = (None, 1) if get(FILTER) or mode != "sync" else (None, whole)
    instead = "True, or trainer.v1.trainer_mode=dynamic_pruning_separate_async"
    lagging = "samplers that lag behind would finish prompts of other steps"
    at_once = "an update takes all prompts of a step, and the next one would wait for more without an end"
    apart = (
        ("actor_rollout_ref.hybrid_engine", (None, True), lagging, instead),
        (f"trainer.v1.{mode}.parameter_sync_step", (None, 1), at_once, "1"),
    )
    yield from _refused(
        get,
        *(apart if mode != "separate_async" else ()),
        ("data.gen_batch_size", fetched, "prompts of a step are one block, chosen at once", "null"),
        ("trainer.critic_warmup", OFF, "there is no critic", "0"),
        (f"{ACTOR}.shuffle", OFF, "it deals rows to mini-batches anew, each of which has a draw of its own", "False"),
        ("trainer.v1.sampler.sync_refill_failed_groups", OFF, "it takes prompts that were not drawn", "False"),
        ("skip.rollout_tq.enable", OFF, "it trains on the rollouts of another run", "False"),
    )
    if get("trainer.v1.sampler.custom_sampler.path"):
        yield (
            "trainer.v1.sampler.custom_sampler.path is set: which prompts a step has is chosen here. Write "
            "trainer.v1.sampler.custom_sampler.path=null."
        )


_ROUTER = "the router's loss is made inside of the model, where no weight reaches it"
MEGATRON = (
    ("virtual_pipeline_model_parallel_size", (None, 1), "it wants more micro-batches than rows may be kept", "null"),
    ("dynamic_context_parallel", OFF, "it deals rows to ranks by itself, which was not checked", "False"),
    ("router_replay.mode", (None, "disabled"), "replayed routes are of rows and tokens left out, too", "disabled"),
    ("vanilla_mbridge", OFF, _ROUTER, "False"),
    ("override_transformer_config.moe_router_load_balancing_type", (None, "none"), _ROUTER, "none"),
    ("override_transformer_config.moe_z_loss_coeff", OFF, _ROUTER, "null"),
)
"""Rules of verl's Megatron engine: losses inside of the model, and what does not go with any number of rows."""


def filter_problems(settings: Any, base: Method) -> list[str]:
    """One sentence per option of ours that does not go with verl's filter of groups; ``base`` as it is named."""
    problems, advice = [], f"Write {FILTER}=False"
    if settings.prompt_prune_rate:
        problems.append(f"{FILTER}=True with prompt_prune_rate: it takes prompts that were not drawn. {advice}.")
    if base.advantages.from_history:
        problems.append(f"{FILTER}=True with method={base.name}, whose baseline needs every group. {advice}.")
    if not settings.accept_bias:
        problems.append(
            f"{FILTER}=True is biased: groups of equal rewards are replaced by others. {advice}, or "
            "+trainer.v1.sampler.sampler_kwargs.pruning.accept_bias=True to train with it on purpose."
        )
    return problems
