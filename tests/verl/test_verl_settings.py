"""Options of a run on verl: each refused one stops its start, by name, value and a line that works."""

import pytest
from refusals import refused

from dppo.errors import ConfigError
from dppo.methods.own import method_named
from dppo.pruning import SCORES
from dppo.verl import support
from dppo.verl.checkpoint import settings_to_save
from dppo.verl.settings import NORMALISERS, PruningSettings, keeps_all, lines, method_of, read_settings
from dppo.verl.support import ACTOR, AGGREGATION, CORRECTIONS, FILTER, GROUP_ESTIMATORS, LOG_PROBS, LOSS, ROW_LOSSES

SERVED = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.rollout.n": 8,
    f"{ACTOR}.strategy": "fsdp2",
    f"{ACTOR}.ppo_epochs": 1,
    f"{ACTOR}.ppo_mini_batch_size": 4,
    f"{ACTOR}.use_dynamic_bsz": True,
    AGGREGATION: "token-mean",
    LOSS: "vanilla",
    "data.train_batch_size": 8,
    "data.max_response_length": 1024,
    LOG_PROBS: True,
}
"""Options of verl that are served as they are."""


def method(name="dppo", mode="token-mean", penalty=0.0, entropy=0.0, known=True, **options):
    of_verl = {"loss_agg_mode": mode, "use_kl_loss": penalty > 0, "kl_loss_coef": penalty, "entropy_coeff": entropy}
    get = ({f"{ACTOR}.{option}": value for option, value in of_verl.items()} | {LOG_PROBS: known}).get
    return method_of(read_settings({"method": name, **options}), get)


def problems(changed, name="dppo", trainer="sync", **options):
    return support.unsupported_options((SERVED | changed).get, method(name, **options), trainer)


def said_by(served, optimizer_steps=1, **options):
    return "\n".join(lines(served, prompts=8, generations=8, optimizer_steps=optimizer_steps, **options))


STRATEGY = f"{ACTOR}.strategy"
BYPASS = f"{ACTOR}.policy_loss.rollout_correction"
REF_BATCHES = "actor_rollout_ref.ref.log_prob_use_dynamic_bsz"
HYBRID = "actor_rollout_ref.hybrid_engine"
COLOCATE, SEPARATE = "trainer.v1.colocate_async", "trainer.v1.separate_async"
SWITCH = f"{SEPARATE}.hybrid_rollout.enable_switch"
AHEAD = {f"{COLOCATE}.num_warmup_batches": 1, f"{SEPARATE}.num_warmup_batches": 2.0}
AHEAD |= {f"{SEPARATE}.parameter_sync_step": 2, SWITCH: False}
MEGATRON = [
    ("virtual_pipeline_model_parallel_size", 2, "null."),
    ("dynamic_context_parallel", True, "False."),
    ("router_replay.mode", "R3", "disabled."),
    ("vanilla_mbridge", True, "False."),
    ("override_transformer_config.moe_router_load_balancing_type", "aux_loss", "none."),
    ("override_transformer_config.moe_z_loss_coeff", 1e-3, "null."),
]
REFUSED = [
    (LOSS, "clip_cov", "vanilla", {}),
    (AGGREGATION, "token-mean", "seq-mean-token-mean", {LOSS: "sapo"}),
    (f"{ACTOR}.loss_scale_factor", None, "1024.", {AGGREGATION: "seq-mean-token-sum-norm"}),
    (f"{ACTOR}.use_dynamic_bsz", False, "True", {}),
    (STRATEGY, "veomni", "fsdp2", {}),
    (f"{ACTOR}.shuffle", True, "False", {}),
    (f"{ACTOR}.ppo_mini_batch_size", 3, "8", {}),
    (f"{ACTOR}.use_prefix_grouper", True, "False", {}),
    ("algorithm.adv_estimator", "opo", "grpo", {}),
    (REF_BATCHES, False, "True", {f"{ACTOR}.use_kl_loss": True}),
    (REF_BATCHES, False, "True", {"algorithm.use_kl_in_reward": True}),
    ("trainer.v1.sync.parameter_sync_step", 2, "1", {}),
    ("actor_rollout_ref.rollout.n", 1, "8, or method=dppo_history", {}),
    ("algorithm.rollout_correction.rollout_rs", "token", "null", {}),
    (f"{BYPASS}.rollout_is_batch_normalize", True, "False", {}),
    ("data.gen_batch_size", 2, "null", {}),
    ("trainer.critic_warmup", 5, "0", {}),
    ("critic.enable", True, "False", {}),
    ("distillation.enabled", True, "False", {}),
    ("actor_rollout_ref.model.mtp.enable", True, "False", {}),
    (HYBRID, False, "True", {}),
    ("trainer.v1.sampler.sync_refill_failed_groups", True, "False", {}),
    ("trainer.v1.sampler.custom_sampler.path", "mine.py", "null", {}),
    ("skip.rollout_tq.enable", True, "False", {}),
    *((f"{ACTOR}.megatron.{name}", value, instead, {STRATEGY: "megatron"}) for name, value, instead in MEGATRON),
]
REFUSED_AHEAD = [
    ("colocate_async", f"{COLOCATE}.num_warmup_batches", 1.5, "1.", {}),
    ("separate_async", f"{SEPARATE}.num_warmup_batches", -1, "1.", {}),
    ("separate_async", f"{SEPARATE}.num_warmup_batches", None, "1.", {}),
    ("separate_async", "data.train_batch_size", 8, "16.", {f"{SEPARATE}.parameter_sync_step": 4}),
    ("separate_async", SWITCH, True, "False, or prompt_prune_rate=0.", {}),
    ("colocate_async", "data.gen_batch_size", 8, "null", {}),
    ("colocate_async", HYBRID, False, "True", {}),
    ("colocate_async", f"{COLOCATE}.parameter_sync_step", 2, "1", {}),
]
"""A trainer or none, an option, a value that is refused, one that works, and what it is refused beside."""


@pytest.mark.parametrize(
    ("mode", "option", "value", "instead", "beside"), [*(("sync", *case) for case in REFUSED), *REFUSED_AHEAD], ids=str
)
def test_what_would_be_silently_wrong_is_refused_in_one_line_with_one_that_works(mode, option, value, instead, beside):
    (problem,) = problems(AHEAD | beside | {option: value}, trainer=mode, prompt_prune_rate=0.3)
    assert problem.startswith(f"{option}={'null' if value is None else value}: ") and "\n" not in problem
    assert f"Write {option}={instead}" in problem


CUT = method(token_prune_rate=0.5)
MIXING = [(LOSS, "gspo", "vanilla"), *((f"{at}.rollout_is", "sequence", "token") for at in CORRECTIONS)]
SERVED_TOO = [
    *({LOSS: loss, "algorithm.adv_estimator": of} for loss in ROW_LOSSES if loss != "sapo" for of in GROUP_ESTIMATORS),
    {LOSS: "sapo", AGGREGATION: "seq-mean-token-mean"},
    {STRATEGY: "megatron"},
    *({f"{ACTOR}.megatron.{name}": value} for name, value, _ in MEGATRON),  # of no other engine
    *({option: value} for option, value, _ in MIXING),  # without cuts
]


def test_what_is_right_is_served_and_by_trainers_that_ask_ahead_too():
    assert [changed for changed in SERVED_TOO if problems(changed)] == []
    assert not problems({"actor_rollout_ref.rollout.n": 1}, "dppo_history"), "its baseline needs no siblings"
    (problem,) = problems({"algorithm.adv_estimator": "rloo"}, "dppo_history")
    assert "has advantages of its own" in problem
    for mode in ("colocate_async", "separate_async"):
        assert not problems(AHEAD, trainer=mode, prompt_prune_rate=0.3)
        assert not problems(AHEAD | {"data.gen_batch_size": 1, FILTER: True}, trainer=mode)
    assert not problems(AHEAD | {HYBRID: False}, trainer="separate_async"), "made for samplers apart"
    assert not problems(AHEAD | {SWITCH: True}, trainer="separate_async"), "nothing is missing of a block that is whole"


@pytest.mark.parametrize(("option", "value", "instead"), MIXING)
def test_what_mixes_tokens_is_refused_where_some_are_left_out(option, value, instead):
    (problem,) = support.unsupported_options((SERVED | {option: value}).get, CUT)
    assert f"{option}={value}: its ratio is of a whole completion" in problem and f"={instead}." in problem
    assert "\n" not in problem and not support.unsupported_options(SERVED.get, CUT)


def test_cuts_and_scores_need_probabilities_unless_they_do_not_look_at_them_and_old_ones_will_do():
    silent, old = {LOG_PROBS: False}, {LOG_PROBS: False, "algorithm.use_kl_in_reward": True}
    for options, what in (
        ({"token_prune_rate": 0.5}, "token_prune_rate=0.5"),
        ({"completion_score": "uncertainty"}, ""),
    ):
        (problem,) = problems(silent, known=False, **options)
        assert what in problem and f"Write {LOG_PROBS}=True." in problem
        assert not problems(old, known=False, **options)
    assert not problems(silent, "nat_rpc", known=False)


@pytest.mark.parametrize(
    ("option", "value", "beside"),
    [
        ("loss_agg_mode", "bogus", {}),
        ("kl_loss_coef", None, {f"{ACTOR}.use_kl_loss": True}),
        ("kl_loss_coef", "much", {f"{ACTOR}.use_kl_loss": True}),
        ("entropy_coeff", "some", {}),
        ("policy_loss.dro_beta", True, {}),
    ],
)
def test_what_a_method_is_made_of_must_be_readable(option, value, beside):
    options, shown = SERVED | beside | {f"{ACTOR}.{option}": value}, "null" if value is None else value
    with refused(ConfigError, f"{ACTOR}.{option}={shown}: ", f"Write {ACTOR}.{option}=", "1 problem"):
        method_of(read_settings({}), options.get)


def test_a_penalty_is_that_of_the_kl_loss_and_of_dro():
    options = SERVED | {f"{ACTOR}.kl_loss_coef": 0.1, f"{ACTOR}.policy_loss.dro_beta": 0.5}
    with_kl, dro = {f"{ACTOR}.use_kl_loss": True}, {LOSS: "dro"}
    for changed, beta in (({}, 0.0), (with_kl, 0.1), (dro, 0.5), (with_kl | dro, 0.6)):
        assert method_of(read_settings({}), (options | changed).get).beta == pytest.approx(beta)
    assert method(entropy=0.1).entropy_coef == 0.1


def test_several_passes_and_a_filter_of_groups_are_served_and_the_filter_is_declared_biased():
    filtered = SERVED | {f"{ACTOR}.ppo_epochs": 4, FILTER: True, "data.gen_batch_size": 1}
    served = method_of(read_settings({"accept_bias": True}), filtered.get)
    assert not support.unsupported_options(filtered.get, served)
    assert support.unsupported_options((filtered | {"data.gen_batch_size": 2}).get, served)
    (reason,) = served.biases()
    assert "rounds are biased" in reason and "BIASED" in said_by(served)
    for options, words in (
        ({}, ["biased", "accept_bias=True"]),
        ({"accept_bias": True, "prompt_prune_rate": 0.3}, ["prompts that were not drawn"]),
        ({"accept_bias": True, "method": "dppo_history"}, ["every group"]),
    ):
        with refused(ConfigError, FILTER, f"Write {FILTER}=False", *words):
            method_of(read_settings(options), filtered.get)


def test_versions_outside_of_the_range_are_refused():
    for served in (("0.9.0",), ("0.9.1.post1",), ("0.9.7",), ("0.9.1", "colocate_async")):
        support.check_verl_version(*served)
    for version, mode, word in (
        ("0.8.0", "sync", "0.8.0"),
        ("0.10.0", "sync", "0.10.0"),
        ("0.9.0", "colocate_async", "0.9.1 <= verl < 0.10.0"),  # the first that counts prompts in flight
    ):
        with refused(ConfigError, word, "pip install"):
            support.check_verl_version(version, mode)


def test_options_left_out_are_those_of_dppo_and_of_the_method():
    assert read_settings({}) == PruningSettings()
    assert read_settings({"prompt_prune_rate": 0}).prompt_prune_rate == 0.0
    assert [read_settings(each, seed=3).seed for each in ({}, {"seed": 0})] == [3, 0], "data.seed, or ours"
    assert method("grpo").completions.rate == 0 and method("infobatch").prompts.rate == 0.5
    assert method().score is SCORES["uncertainty"] and method(completion_score="length").score is SCORES["length"]
    assert CUT.tokens.rate == 0.5 and CUT.completions.rate == 0
    assert method(token_prune_rate="auto", rollout_cost=2.0).tokens.auto.rollout_cost == 2.0


def test_what_drops_nothing_is_left_to_verl():
    assert keeps_all(method("grpo")) and not keeps_all(method("grpo_history")) and not keeps_all(CUT)
    assert not keeps_all(method("dppo", completion_prune_rate=0.0))


def test_the_start_says_what_is_dropped_and_what_is_biased():
    said = said_by(method(prompt_prune_rate=0.3), optimizer_steps=2)
    assert "gradient BIASED" in said and said.count("biased: ") == 2
    assert "own mini-batches" in said_by(method("grpo")) and "each step chooses the share" in said_by(method())
    assert "50% of the others are kept" in said_by(method(completion_prune_rate=0.5))
    assert "tokens: 0.5 of the tokens behind a cut" in said_by(CUT)
    assert method("dppo_deterministic", accept_bias=True).selection_bias
    for mode in NORMALISERS:
        pruned = method(mode=mode, prompt_prune_rate=0.3)
        assert bool(pruned.biases()) == (mode == "token-mean") and not method(mode=mode).biases(), mode


def test_prompts_drawn_once_for_several_updates_are_declared_biased():
    unpruned = method(mode="seq-mean-token-mean")
    pruned = method(mode="seq-mean-token-mean", prompt_prune_rate=0.3)
    for options in ({"ahead": 2.0}, {"optimizer_steps": 4}, {"optimizer_steps": 4, "parts": 2}):
        assert "biased: prompts are drawn once" in said_by(pruned, **options)
    unbiased = said_by(pruned), said_by(unpruned, ahead=2.0), said_by(pruned, optimizer_steps=4, parts=4)
    assert "biased: " not in "".join(unbiased) and "prompts are drawn for each of 4 mini-batches" in unbiased[-1]


OWN = """
from dataclasses import replace
from dppo.methods import METHODS, OBJECTIVES, SCHEMES, combined
from dppo.objective import DR_GRPO

DPPO = METHODS["dppo"].with_rates(prompt=0.25)
mine = replace(DPPO, name="mine", completions=replace(DPPO.completions, score=lambda each: each.advantage_N.abs()))
history = replace(METHODS["dppo_history"], name="history")
nothing = replace(METHODS["grpo"], name="nothing")
biased = replace(DPPO, name="biased", completions=METHODS["cppo"].completions)
normalised = replace(DPPO, name="normalised", normaliser=DR_GRPO)
penalised = replace(DPPO, name="penalised", beta=0.1)
objective = combined(OBJECTIVES["gspo"], SCHEMES["dppo"])
"""
"""A module of methods of one's own."""


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    """The module of ``OWN``, in the current folder."""
    (tmp_path / "own_of_verl.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)


def test_the_pruning_of_a_method_of_ones_own_is_used_as_it_is():
    mine = method_named("own_of_verl:mine")
    found = method("own_of_verl:mine", mode="seq-mean-token-sum-norm", penalty=0.2)
    assert (found.completions, found.prompts, found.name) == (mine.completions, mine.prompts, "mine")
    assert found.normaliser is NORMALISERS["seq-mean-token-sum-norm"] and found.beta == 0.2
    settings = read_settings({"method": "own_of_verl:mine"})
    assert (settings.completion_prune_rate, settings.prompt_prune_rate) == (0.5, 0.25)
    assert not keeps_all(found) and keeps_all(method("own_of_verl:nothing"))
    assert method("own_of_verl:history").advantages.from_history and not keeps_all(method("own_of_verl:history"))
    remembered = settings_to_save(settings, {}.get, ranks=1)
    assert remembered["method"] == "mine (own)" and "method.completions" in remembered


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"completion_rate": 0.5}, ["completion_rate"]),
        ({"completion_prune_rate": 1.0}, ["completion_prune_rate=1"]),
        ({"completion_prune_rate": "half"}, ["completion_prune_rate=half"]),
        ({"method": "dapo"}, ["rounds"]),
        ({"method": "gspo"}, ["objective"]),
        ({"method": "grpo", "token_prune_rate": 0.5}, ["token_prune_rate=0.5"]),
        ({"head_prune_rate": 0.5}, ["head_prune_rate=0.5"]),
        ({"method": "nat_urs"}, ["head_prune_rate=0.5"]),
        ({"method": "pods", "accept_bias": True}, ["objective"]),
        ({"method": "dppo_deterministic"}, ["accept_bias=True"]),
        ({"method": "grpo", "completion_prune_rate": 0.5}, ["completion_prune_rate=0.5"]),
        ({"prune_floor": 0.9}, ["prune_floor=0.9"]),
        (
            {"method": "own_of_verl:mine", "completion_prune_rate": 0.3},
            ["completion_prune_rate=0.3", "'mine'", "with_rates(completion=0.3)"],
        ),
        ({"method": "own_of_verl:biased"}, ["biased", "accept_bias=True"]),
        ({"method": "own_of_verl:normalised"}, ["normaliser", "verl's options", "replace(method, normaliser="]),
        ({"method": "own_of_verl:penalised"}, ["beta", "use_kl_loss"]),
        ({"method": "own_of_verl:objective"}, ["objective of its own", "token_loss"]),
        ({"method": "own_of_verl:absent"}, ["own_of_verl:absent", "cannot be imported"]),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_refused(options, words):
    with refused(ConfigError, *words):
        read_settings(options)
