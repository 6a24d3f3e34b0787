"""What a run on verl may ask for: everything else is refused at its start, by name, value and a line that works."""

from typing import ClassVar

import pytest
import torch
from refusals import refused

from dppo.errors import ConfigError, raise_problems
from dppo.methods import METHODS
from dppo.pruning import SCORES
from dppo.verl.settings import (
    NORMALISERS,
    PruningSettings,
    keeps_all,
    lines,
    method_of,
    read_settings,
    unreadable_options,
)
from dppo.verl.support import GROUP_ESTIMATORS, ROW_LOSSES, check_verl_version, unsupported_options

ACTOR = "actor_rollout_ref.actor"
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
}
"""Options of verl that are served as they are."""


def method(name="dppo", mode="token-mean", penalty=0.0, entropy=0.0, **options):
    settings = read_settings({"method": name, **options})
    return method_of(settings, loss_agg_mode=mode, penalty=penalty, entropy_coef=entropy)


def problems(changed, name="dppo"):
    return unsupported_options((SERVED | changed).get, method(name))


def test_a_run_of_verl_as_it_is_has_no_problem():
    assert not problems({}) and not problems({f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean"})


REFUSED = [
    (f"{ACTOR}.policy_loss.loss_mode", "clip_cov", "loss_mode=vanilla"),
    (f"{ACTOR}.policy_loss.loss_mode", "kl_cov", "loss_mode=vanilla"),
    (f"{ACTOR}.policy_loss.loss_mode", "geo_mean", "loss_mode=vanilla"),
    (f"{ACTOR}.policy_loss.loss_mode", "mine", "loss_mode=vanilla"),
    (f"{ACTOR}.policy_loss.loss_mode", "sapo", "seq-mean-token-mean"),
    (f"{ACTOR}.loss_agg_mode", "seq-mean-token-sum-norm", f"{ACTOR}.loss_scale_factor=1024."),
    (f"{ACTOR}.ppo_epochs", 2, "ppo_epochs=1"),
    (f"{ACTOR}.use_dynamic_bsz", False, "use_dynamic_bsz=True"),
    (f"{ACTOR}.strategy", "megatron", "strategy=fsdp2"),
    (f"{ACTOR}.shuffle", True, "shuffle=False"),
    (f"{ACTOR}.ppo_mini_batch_size", 3, "ppo_mini_batch_size=8"),
    (f"{ACTOR}.use_prefix_grouper", True, "use_prefix_grouper=False"),
    ("algorithm.adv_estimator", "gae", "adv_estimator=grpo"),
    ("algorithm.adv_estimator", "reinforce_plus_plus", "adv_estimator=grpo"),
    ("actor_rollout_ref.rollout.n", 1, "method=dppo_history"),
    ("algorithm.filter_groups.enable", True, "enable=False"),
    ("algorithm.rollout_correction.rollout_rs", "token", "rollout_rs=null"),
    ("data.gen_batch_size", 2, "gen_batch_size=null"),
    ("trainer.critic_warmup", 5, "critic_warmup=0"),
    ("critic.enable", True, "critic.enable=False"),
    ("distillation.enabled", True, "enabled=False"),
    ("actor_rollout_ref.model.mtp.enable", True, "mtp.enable=False"),
    ("actor_rollout_ref.hybrid_engine", False, "hybrid_engine=True"),
    ("trainer.v1.sampler.sync_refill_failed_groups", True, "sync_refill_failed_groups=False"),
    ("trainer.v1.sampler.custom_sampler.path", "mine.py", "path=null"),
    ("skip.rollout_tq.enable", True, "enable=False"),
]


@pytest.mark.parametrize(("option", "value", "instead"), REFUSED)
def test_what_would_be_silently_wrong_is_refused_in_one_line_with_one_that_works(option, value, instead):
    (problem,) = problems({option: value})
    assert "\n" not in problem
    with refused(ConfigError, "1 problem", option.rsplit(".")[-1], instead):
        raise_problems("verl", [problem])


@pytest.mark.parametrize("loss_mode", [loss for loss in ROW_LOSSES if loss != "sapo"])
@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS)
def test_losses_of_rows_and_advantages_of_groups_are_served(loss_mode, estimator):
    assert not problems({f"{ACTOR}.policy_loss.loss_mode": loss_mode, "algorithm.adv_estimator": estimator})


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"loss_agg_mode": "bogus"}, "loss_agg_mode=bogus is not one of token-mean"),
        ({"use_kl_loss": True}, "kl_loss_coef=null with use_kl_loss=True"),
        ({"use_kl_loss": True, "kl_loss_coef": "much"}, "kl_loss_coef='much' is no number"),
        ({"entropy_coeff": "some"}, "entropy_coeff='some' is no number"),
    ],
)
def test_what_a_method_is_made_of_must_be_readable(changed, what):
    options = {"loss_agg_mode": "token-mean"} | changed
    (said,) = unreadable_options(lambda path: options.get(path.removeprefix("actor_rollout_ref.actor.")))
    assert what in said and "Write actor_rollout_ref.actor." in said
    assert unreadable_options(lambda path: {"actor_rollout_ref.actor.loss_agg_mode": "token-mean"}.get(path)) == []


def test_all_problems_are_said_at_once():
    assert len(problems({f"{ACTOR}.ppo_epochs": 2, f"{ACTOR}.shuffle": True, "algorithm.adv_estimator": "gae"})) == 3


def test_a_baseline_from_history_serves_groups_of_one_and_wants_verls_plain_advantages():
    assert not problems({"actor_rollout_ref.rollout.n": 1}, "dppo_history")
    (problem,) = problems({"algorithm.adv_estimator": "rloo"}, "dppo_history")
    assert "has advantages of its own" in problem


def test_versions_in_the_range_are_served_and_others_refused():
    for installed in ("0.9.0", "0.9.1", "0.9.1.post1", "0.9.7"):
        check_verl_version(installed)
    for installed in ("0.8.0", "0.10.0", "1.0"):
        with refused(ConfigError, installed, "pip install"):
            check_verl_version(installed)


class TestOptions:
    WRONG: ClassVar = [
        ({"completion_rate": 0.5}, "completion_rate"),
        ({"completion_prune_rate": 1.0}, "completion_prune_rate=1"),
        ({"completion_prune_rate": "half"}, "completion_prune_rate=half"),
        ({"method": "dapo"}, "rounds"),
        ({"method": "gspo"}, "objective"),
        ({"method": "pods", "accept_bias": True}, "objective"),
        ({"method": "dppo_deterministic"}, "accept_bias=True"),
        ({"method": "grpo", "completion_prune_rate": 0.5}, "completion_prune_rate=0.5"),
    ]
    """Ranges and choices of all of them are gone through in ``tests/test_settings.py``."""

    @pytest.mark.parametrize(("options", "named"), WRONG, ids=[str(options) for options, _ in WRONG])
    def test_an_option_that_cannot_be_is_refused(self, options, named):
        with refused(ConfigError, named):
            read_settings(options)

    def test_the_others_are_those_of_dppo_with_every_probability_known(self):
        assert read_settings({}) == PruningSettings()
        assert read_settings({"prompt_prune_rate": 0}).prompt_prune_rate == 0.0
        assert method("dppo_deterministic", accept_bias=True).selection_bias, "accepted"
        assert method("grpo").completions.rate == 0 and method("infobatch").prompts.rate == 0.5, "no more than its own"
        assert method().score is SCORES["confidence"] and method(completion_score="length").score is SCORES["length"]


@pytest.mark.parametrize("mode", NORMALISERS)
def test_a_token_mean_is_biased_where_prompts_are_pruned_and_no_other_mode_is(mode):
    both = method(mode=mode, prompt_prune_rate=0.3)
    assert bool(both.biases()) == (mode == "token-mean") and not method(mode=mode).biases()


def test_with_a_penalty_completions_without_an_advantage_have_a_gradient():
    zero = torch.zeros(2)
    assert not method().live(zero).any()
    assert method(penalty=0.1).live(zero).all() and method(entropy=0.1).live(zero).all()


def test_what_drops_nothing_is_left_to_verl():
    assert keeps_all(method("grpo")) and not keeps_all(method("grpo_history"))
    assert not keeps_all(method("dppo", completion_prune_rate=0.0))
    assert {name for name in METHODS if keeps_all(METHODS[name])} >= {"grpo"}


def test_the_plan_says_what_is_dropped_and_what_is_biased():
    said = lines(method(prompt_prune_rate=0.3), prompts=8, generations=4, optimizer_steps=2)
    assert "gradient BIASED" in said[0] and any("block of 8, 4 each" in line for line in said)
    assert sum(line.startswith("biased: ") for line in said) == 2
    assert "its whole batch" in lines(method("grpo"), prompts=8, generations=4, optimizer_steps=1)[1]
