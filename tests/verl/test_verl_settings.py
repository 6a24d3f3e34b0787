"""Options of a run on verl: each refused one stops its start, by name, value and a line that works."""

import importlib

import pytest
from refusals import refused

from dppo.errors import ConfigError
from dppo.pruning import SCORES
from dppo.verl.checkpoint import settings_to_save
from dppo.verl.settings import NORMALISERS, PruningSettings, keeps_all, lines, method_of, read_settings
from dppo.verl.support import (
    ACTOR,
    FILTER,
    GROUP_ESTIMATORS,
    LOG_PROBS,
    ROW_LOSSES,
    check_verl_version,
    unsupported_options,
)

SERVED = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.rollout.n": 8,
    f"{ACTOR}.strategy": "fsdp2",
    f"{ACTOR}.ppo_epochs": 1,
    f"{ACTOR}.ppo_mini_batch_size": 4,
    f"{ACTOR}.use_dynamic_bsz": True,
    f"{ACTOR}.loss_agg_mode": "token-mean",
    f"{ACTOR}.policy_loss.loss_mode": "vanilla",
    "data.train_batch_size": 8,
    "data.max_response_length": 1024,
    "actor_rollout_ref.rollout.calculate_log_probs": True,
}
"""Options of verl that are served as they are."""


def method(name="dppo", mode="token-mean", penalty=0.0, entropy=0.0, known=True, **options):
    of_verl = {"loss_agg_mode": mode, "use_kl_loss": penalty > 0, "kl_loss_coef": penalty, "entropy_coeff": entropy}
    get = ({f"{ACTOR}.{option}": value for option, value in of_verl.items()} | {LOG_PROBS: known}).get
    return method_of(read_settings({"method": name, **options}), get)


def problems(changed, name="dppo", mode="sync", **options):
    return unsupported_options((SERVED | changed).get, method(name, **options), mode)


def said_by(served, optimizer_steps=1, **options):
    return "\n".join(lines(served, prompts=8, generations=8, optimizer_steps=optimizer_steps, **options))


BYPASS = f"{ACTOR}.policy_loss.rollout_correction"
REF_BATCHES = "actor_rollout_ref.ref.log_prob_use_dynamic_bsz"
REFUSED = [
    ({f"{ACTOR}.policy_loss.loss_mode": "clip_cov"}, "loss_mode=clip_cov", "loss_mode=vanilla"),
    ({f"{ACTOR}.policy_loss.loss_mode": "sapo"}, "loss_agg_mode=token-mean", "seq-mean-token-mean"),
    ({f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm"}, "loss_scale_factor=null", "scale_factor=1024."),
    ({f"{ACTOR}.use_dynamic_bsz": False}, "use_dynamic_bsz=False", "use_dynamic_bsz=True"),
    ({f"{ACTOR}.strategy": "veomni"}, "strategy=veomni", "strategy=fsdp2"),
    ({f"{ACTOR}.shuffle": True}, "shuffle=True", "shuffle=False"),
    ({f"{ACTOR}.ppo_mini_batch_size": 3}, "ppo_mini_batch_size=3", "ppo_mini_batch_size=8"),
    ({f"{ACTOR}.use_prefix_grouper": True}, "use_prefix_grouper=True", "=False"),
    ({"algorithm.adv_estimator": "opo"}, "adv_estimator=opo", "adv_estimator=grpo"),
    ({f"{ACTOR}.use_kl_loss": True, REF_BATCHES: False}, f"{REF_BATCHES}=False", "dynamic_bsz=True"),
    ({"algorithm.use_kl_in_reward": True, REF_BATCHES: False}, f"{REF_BATCHES}=False", "dynamic_bsz=True"),
    ({"trainer.v1.sync.parameter_sync_step": 2}, "parameter_sync_step=2", "parameter_sync_step=1"),
    ({"actor_rollout_ref.rollout.n": 1}, "rollout.n=1", "method=dppo_history"),
    ({"algorithm.rollout_correction.rollout_rs": "token"}, "rollout_rs=token", "rollout_rs=null"),
    ({f"{BYPASS}.rollout_is_batch_normalize": True}, "rollout_is_batch_normalize=True", "batch_normalize=False"),
    ({"data.gen_batch_size": 2}, "data.gen_batch_size=2", "gen_batch_size=null"),
    ({"trainer.critic_warmup": 5}, "trainer.critic_warmup=5", "critic_warmup=0"),
    ({"critic.enable": True}, "critic.enable=True", "critic.enable=False"),
    ({"distillation.enabled": True}, "distillation.enabled=True", "=False"),
    ({"actor_rollout_ref.model.mtp.enable": True}, "mtp.enable=True", "=False"),
    ({"actor_rollout_ref.hybrid_engine": False}, "hybrid_engine=False", "hybrid_engine=True"),
    ({"trainer.v1.sampler.sync_refill_failed_groups": True}, "sync_refill_failed_groups=True", "=False"),
    ({"trainer.v1.sampler.custom_sampler.path": "mine.py"}, "custom_sampler.path=mine.py", "path=null"),
    ({"skip.rollout_tq.enable": True}, "rollout_tq.enable=True", "=False"),
]


@pytest.mark.parametrize(("changed", "what", "instead"), REFUSED, ids=[what for _, what, _ in REFUSED])
def test_what_would_be_silently_wrong_is_refused_in_one_line_with_one_that_works(changed, what, instead):
    (problem,) = problems(changed)
    assert what in problem and instead in problem and "\n" not in problem


COLOCATE, SEPARATE = "trainer.v1.colocate_async", "trainer.v1.separate_async"
SWITCH = f"{SEPARATE}.hybrid_rollout.enable_switch"
AHEAD = {f"{COLOCATE}.num_warmup_batches": 1, f"{SEPARATE}.num_warmup_batches": 2.0}
AHEAD |= {f"{SEPARATE}.parameter_sync_step": 2, SWITCH: False}
MEGATRON = {
    "virtual_pipeline_model_parallel_size": (2, "=null."),
    "dynamic_context_parallel": (True, "=False."),
    "router_replay.mode": ("R3", "=disabled."),
    "vanilla_mbridge": (True, "=False."),
    "override_transformer_config.moe_router_load_balancing_type": ("aux_loss", "=none."),
    "override_transformer_config.moe_z_loss_coeff": (1e-3, "=null."),
}


@pytest.mark.parametrize("name", MEGATRON)
def test_megatron_is_served_without_losses_inside_of_the_model_and_for_any_number_of_rows(name):
    value, instead = MEGATRON[name]
    option = {f"{ACTOR}.megatron.{name}": value}
    (problem,) = problems({f"{ACTOR}.strategy": "megatron"} | option)
    assert f"megatron.{name}={value}" in problem and instead in problem
    assert not problems({f"{ACTOR}.strategy": "megatron"}) and not problems(option)  # of no other engine


@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
def test_asynchronous_trainers_as_they_are_have_no_problem(mode):
    assert not problems(AHEAD, mode=mode, prompt_prune_rate=0.3)
    assert not problems(AHEAD | {"data.gen_batch_size": 1, FILTER: True}, mode=mode)
    apart = AHEAD | {"actor_rollout_ref.hybrid_engine": False}
    assert bool(problems(apart, mode=mode)) == (mode == "colocate_async")  # the other is made for samplers apart


@pytest.mark.parametrize(
    ("mode", "changed", "what", "instead"),
    [
        ("colocate_async", {f"{COLOCATE}.num_warmup_batches": 1.5}, "num_warmup_batches=1.5", "num_warmup_batches=1."),
        ("separate_async", {f"{SEPARATE}.num_warmup_batches": -1}, "num_warmup_batches=-1", "num_warmup_batches=1."),
        ("separate_async", {f"{SEPARATE}.num_warmup_batches": None}, "num_warmup_batches=null", "warmup_batches=1."),
        ("separate_async", {f"{SEPARATE}.parameter_sync_step": 4}, "parameter_sync_step=4", "train_batch_size=16."),
        ("separate_async", {SWITCH: True}, "enable_switch=True", "False, or prompt_prune_rate=0."),
        ("colocate_async", {"data.gen_batch_size": 8}, "data.gen_batch_size=8", "data.gen_batch_size=null"),
        ("colocate_async", {"actor_rollout_ref.hybrid_engine": False}, "hybrid_engine=False", "hybrid_engine=True"),
        ("colocate_async", {f"{COLOCATE}.parameter_sync_step": 2}, "parameter_sync_step=2", "sync_step=1"),
    ],
)
def test_what_cannot_be_asked_for_ahead_is_refused(mode, changed, what, instead):
    (problem,) = problems(AHEAD | changed, mode=mode, prompt_prune_rate=0.3)
    assert what in problem and instead in problem
    if "switch" in what:
        assert not problems(AHEAD | changed, mode=mode)  # nothing is missing of a block that is not pruned


SILENT = {"actor_rollout_ref.rollout.calculate_log_probs": False}
CUT = method(token_prune_rate=0.5)
REFUSED_WITH_CUTS = [
    ({f"{ACTOR}.policy_loss.loss_mode": "gspo"}, "its ratio is of a whole completion", "loss_mode=vanilla"),
    ({"algorithm.rollout_correction.rollout_is": "sequence"}, "its ratio is of a whole completion", "rollout_is=token"),
    ({f"{BYPASS}.rollout_is": "sequence"}, "its ratio is of a whole completion", "rollout_is=token"),
]


@pytest.mark.parametrize(("changed", "what", "instead"), REFUSED_WITH_CUTS)
def test_what_mixes_tokens_is_refused_where_some_are_left_out_and_only_there(changed, what, instead):
    (problem,) = unsupported_options((SERVED | changed).get, CUT)
    assert what in problem and instead in problem and "\n" not in problem
    assert not problems(changed) and not unsupported_options(SERVED.get, CUT)


def test_cuts_need_probabilities_unless_they_do_not_look_at_them_and_old_ones_will_do():
    silent = SERVED | SILENT
    cut, uniform = method(token_prune_rate=0.5, known=False), method("nat_rpc", known=False)
    (problem,) = unsupported_options(silent.get, cut)
    assert "token_prune_rate=0.5" in problem and "Write actor_rollout_ref.rollout.calculate_log_probs=True." in problem
    (problem,) = problems(SILENT, completion_score="uncertainty")
    assert "calculate_log_probs=True" in problem
    assert not unsupported_options(silent.get, uniform)
    assert not unsupported_options((silent | {"algorithm.use_kl_in_reward": True}).get, cut)


def test_cuts_take_the_place_of_the_level_of_completions_and_the_start_says_so():
    assert CUT.tokens.rate == 0.5 and CUT.completions.rate == 0 and not keeps_all(CUT)
    assert "tokens: 0.5 of the tokens behind a cut" in said_by(CUT)
    chosen = method(token_prune_rate="auto", rollout_cost=2.0).tokens
    assert chosen.auto is not None and chosen.auto.rollout_cost == 2.0


@pytest.mark.parametrize("loss_mode", ROW_LOSSES)
def test_losses_of_rows_and_advantages_of_groups_are_served(loss_mode):
    served = {f"{ACTOR}.policy_loss.loss_mode": loss_mode}
    if loss_mode == "sapo":
        served[f"{ACTOR}.loss_agg_mode"] = "seq-mean-token-mean"
    for estimator in GROUP_ESTIMATORS:
        assert not problems(served | {"algorithm.adv_estimator": estimator}), estimator


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"loss_agg_mode": "bogus"}, "loss_agg_mode=bogus"),
        ({"use_kl_loss": True}, "kl_loss_coef=null"),
        ({"use_kl_loss": True, "kl_loss_coef": "much"}, "kl_loss_coef=much"),
        ({"entropy_coeff": "some"}, "entropy_coeff=some"),
        ({"policy_loss.dro_beta": True}, "dro_beta=True"),
    ],
)
def test_what_a_method_is_made_of_must_be_readable(changed, what):
    options = SERVED | {f"{ACTOR}.{name}": value for name, value in changed.items()}
    with refused(ConfigError, what, f"Write {ACTOR}.", "1 problem"):
        method_of(read_settings({}), options.get)
    assert method_of(read_settings({}), SERVED.get).beta == 0


def test_a_penalty_is_that_of_the_kl_loss_and_of_dro():
    options = SERVED | {f"{ACTOR}.kl_loss_coef": 0.1, f"{ACTOR}.policy_loss.dro_beta": 0.5}
    with_kl, dro = {f"{ACTOR}.use_kl_loss": True}, {f"{ACTOR}.policy_loss.loss_mode": "dro"}
    for changed, beta in (({}, 0.0), (with_kl, 0.1), (dro, 0.5), (with_kl | dro, 0.6)):
        assert method_of(read_settings({}), (options | changed).get).beta == pytest.approx(beta)
    assert method(entropy=0.1).entropy_coef == 0.1


def test_several_passes_and_a_filter_of_groups_are_served_and_the_filter_is_declared_biased():
    filtered = SERVED | {f"{ACTOR}.ppo_epochs": 4, FILTER: True, "data.gen_batch_size": 1}
    served = method_of(read_settings({"accept_bias": True}), filtered.get)
    assert not unsupported_options(filtered.get, served)
    assert unsupported_options((filtered | {"data.gen_batch_size": 2}).get, served)
    (reason,) = served.biases()
    assert "rounds are biased" in reason and "BIASED" in said_by(served)
    for options, words in (
        ({}, ["biased", "accept_bias=True"]),
        ({"accept_bias": True, "prompt_prune_rate": 0.3}, ["prompts that were not drawn"]),
        ({"accept_bias": True, "method": "dppo_history"}, ["every group"]),
    ):
        with refused(ConfigError, FILTER, f"Write {FILTER}=False", *words):
            method_of(read_settings(options), filtered.get)


def test_a_baseline_from_history_serves_groups_of_one_and_wants_verls_plain_advantages():
    assert not problems({"actor_rollout_ref.rollout.n": 1}, "dppo_history")
    (problem,) = problems({"algorithm.adv_estimator": "rloo"}, "dppo_history")
    assert "has advantages of its own" in problem


def test_versions_outside_of_the_range_are_refused():
    for served in ("0.9.0", "0.9.1.post1", "0.9.7"):
        check_verl_version(served)
    for other in ("0.8.0", "0.10.0"):
        with refused(ConfigError, other, "pip install"):
            check_verl_version(other)
    # The first verl that counts prompts in flight when it resumes.
    check_verl_version("0.9.1", "colocate_async")
    with refused(ConfigError, "verl 0.9.0", "0.9.1 <= verl < 0.10.0"):
        check_verl_version("0.9.0", "colocate_async")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"completion_rate": 0.5}, "completion_rate"),
        ({"completion_prune_rate": 1.0}, "completion_prune_rate=1"),
        ({"completion_prune_rate": "half"}, "completion_prune_rate=half"),
        ({"method": "dapo"}, "rounds"),
        ({"method": "gspo"}, "objective"),
        ({"method": "grpo", "token_prune_rate": 0.5}, "token_prune_rate=0.5"),
        ({"head_prune_rate": 0.5}, "head_prune_rate=0.5"),
        ({"method": "nat_urs"}, "head_prune_rate=0.5"),
        ({"method": "pods", "accept_bias": True}, "objective"),
        ({"method": "dppo_deterministic"}, "accept_bias=True"),
        ({"method": "grpo", "completion_prune_rate": 0.5}, "completion_prune_rate=0.5"),
        ({"prune_floor": 0.9}, "prune_floor=0.9"),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_refused(options, named):
    with refused(ConfigError, named):
        read_settings(options)


def test_options_left_out_are_those_of_dppo_and_of_the_method():
    assert read_settings({}) == PruningSettings()
    assert read_settings({"prompt_prune_rate": 0}).prompt_prune_rate == 0.0
    assert [read_settings(each, seed=3).seed for each in ({}, {"seed": 0})] == [3, 0], "data.seed, or ours"
    assert method("grpo").completions.rate == 0 and method("infobatch").prompts.rate == 0.5
    assert method().score is SCORES["uncertainty"] and method(completion_score="length").score is SCORES["length"]


def test_what_drops_nothing_is_left_to_verl():
    assert keeps_all(method("grpo")) and not keeps_all(method("grpo_history"))
    assert not keeps_all(method("dppo", completion_prune_rate=0.0))


@pytest.mark.parametrize("mode", NORMALISERS)
def test_a_token_mean_is_biased_where_prompts_are_pruned_and_no_other_mode_is(mode):
    both = method(mode=mode, prompt_prune_rate=0.3)
    assert bool(both.biases()) == (mode == "token-mean") and not method(mode=mode).biases()


def test_the_start_says_what_is_dropped_and_what_is_biased():
    said = said_by(method(prompt_prune_rate=0.3), optimizer_steps=2)
    assert "gradient BIASED" in said and said.count("biased: ") == 2
    assert "own mini-batches" in said_by(method("grpo")) and "each step chooses the share" in said_by(method())
    assert "50% of the others are kept" in said_by(method(completion_prune_rate=0.5))
    assert method("dppo_deterministic", accept_bias=True).selection_bias


def test_prompts_drawn_once_for_several_updates_are_declared_biased():
    unpruned = method(mode="seq-mean-token-mean")
    pruned = method(mode="seq-mean-token-mean", prompt_prune_rate=0.3)
    once = "biased: prompts are drawn once"
    assert once in said_by(pruned, ahead=2.0) and once in said_by(pruned, optimizer_steps=4)
    assert once in said_by(pruned, optimizer_steps=4, parts=2)
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


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The module of ``OWN``, in the current folder."""
    (tmp_path / "own_of_verl.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return importlib.import_module("dppo.methods.own").method_named("own_of_verl:mine")


def test_the_pruning_of_a_method_of_ones_own_is_used_as_it_is(own):
    found = method("own_of_verl:mine", mode="seq-mean-token-sum-norm", penalty=0.2)
    assert (found.completions, found.prompts, found.name) == (own.completions, own.prompts, "mine")
    assert found.normaliser is NORMALISERS["seq-mean-token-sum-norm"] and found.beta == 0.2
    settings = read_settings({"method": "own_of_verl:mine"})
    assert (settings.completion_prune_rate, settings.prompt_prune_rate) == (0.5, 0.25)
    assert not keeps_all(found) and keeps_all(method("own_of_verl:nothing"))
    assert method("own_of_verl:history").advantages.from_history and not keeps_all(method("own_of_verl:history"))
    remembered = settings_to_save(settings, {}.get, ranks=1)
    assert remembered["method"] == "mine (own)" and "method.completions" in remembered


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mine", {"completion_prune_rate": 0.3}, ["completion_prune_rate=0.3", "'mine'", "with_rates(completion=0.3)"]),
        ("biased", {}, ["biased", "accept_bias=True"]),
        ("normalised", {}, ["normaliser", "verl's options", "replace(method, normaliser="]),
        ("penalised", {}, ["beta", "use_kl_loss"]),
        ("objective", {}, ["objective of its own", "token_loss"]),
        ("absent", {}, ["own_of_verl:absent", "cannot be imported"]),
    ],
)
def test_what_a_method_of_ones_own_cannot_have_on_verl_is_refused(name, options, words, own):
    with refused(ConfigError, *words):
        read_settings({"method": f"own_of_verl:{name}", **options})
