"""A method as a value: prompts, plan, loss, metrics and checkpoints read the one that the trainer was given."""

import json
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
from refusals import refused
from tiny_runs import SHORT, length_reward, logged, problems, scripted
from value_files import write_values

from dppo.errors import ConfigError
from dppo.lab.frozen.lines import unpruned_method
from dppo.methods import METHODS
from dppo.methods.from_settings import with_rollout_cost
from dppo.objective import DR_GRPO, cispo, clipped_surrogate, k3, off_policy_masked, sequence_ratio, token_ratio
from dppo.pruning import COMPLETION_AUTO, PromptPruning, advantage_with_uncertainty
from dppo.step import plan_step
from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.trl.checkpoints.files import OUR_STATE

DPPO, HISTORY = METHODS["dppo"], METHODS["dppo_history"]


def own_score(completions):
    """A score that no table has."""
    return completions.advantage_N.abs() / (1 + completions.tokens_N)


MINE = replace(DPPO, name="mine", completions=replace(DPPO.completions, score=own_score))
UNCERTAIN = replace(MINE, completions=replace(MINE.completions, score=advantage_with_uncertainty))
args_of = partial(DPPOConfig, **SHORT, output_dir="unused")


def make(path, folder, value, rollout=scripted, **options):
    settings = SHORT | dict(output_dir=str(folder), per_device_train_batch_size=16, rollout_cost=1.0) | options
    settings |= {"max_completion_length": 12}
    named = {} if value is None else {"method": value}
    return DPPOTrainer(path, length_reward, DPPOConfig(**settings), problems(8), rollout_func=rollout, **named)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.advantages.from_values])
def test_every_method_of_the_registry_trains_as_a_value_and_says_its_biases(name, tiny_path, tmp_path, capsys):
    method = METHODS[name]
    trainer = make(tiny_path, tmp_path, method, accept_bias=True, num_train_epochs=9)
    trainer.train()
    assert trainer.method == method and trainer.state.global_step == 3
    assert len(losses := logged(trainer, "loss")) == 3 and all(abs(loss) < 1e3 for loss in losses)
    assert (trainer.ref_model is not None) == (trainer.beta > 0) == (method.beta > 0)
    assert ("gradient BIASED" in capsys.readouterr().out) == bool(trainer.biases)


class TestFaults:
    """Each came of a second copy of the method; the tests fail where one is."""

    def test_prompts_and_baseline_are_those_of_the_method(self, tiny_path, tmp_path):
        method = replace(HISTORY.with_rates(completion=0.0), prompts=PromptPruning(rate=0.5))
        trainer = make(tiny_path, tmp_path, method, max_steps=4)
        trainer.train()
        assert logged(trainer, "prune/prompts_kept_share") == [1.0, 1.0, 0.5, 0.5]
        assert trainer.args.prompt_prune_rate == 0.5 and not hasattr(trainer.session.source, "method")
        plan = trainer.in_use.plan
        assert plan.prompts.context.expected is not None
        alone = method.advantages(plan.rewards, replace(plan.prompts.context, expected=None))
        assert not torch.allclose(plan.completions.advantage_N, alone), "the wrong twin: leave-one-out"

    def test_a_biased_part_must_be_accepted_and_no_other_method_is_assigned(self, tiny_path, tmp_path, capsys):
        method = replace(DPPO, name="mine", completions=METHODS["cppo"].completions)
        with refused(ConfigError, "method='mine' is biased", "accept_bias=True"):
            make(tiny_path, tmp_path, method)
        trainer = make(tiny_path, tmp_path, method, accept_bias=True)
        assert trainer.biases and "method: mine (" in (said := capsys.readouterr().out) and "gradient BIASED" in said
        with refused(ConfigError, "trainer.method", "'mine'", "DPPOTrainer(..., method=mine)"):
            trainer.method = MINE

    def test_a_checkpoint_remembers_the_method_and_a_resume_without_it_says_so(self, tiny_path, tmp_path):
        make(tiny_path, tmp_path, MINE, save_strategy="steps", save_steps=2).train()
        folder = tmp_path / "checkpoint-2"
        assert json.loads((folder / OUR_STATE).read_text())["settings"]["method"] == "mine (own)"

        def said(method):
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                make(tiny_path, tmp_path / "other", method).train(str(folder))
            told = [str(each.message) for each in found if "resumed with method" in str(each.message)]
            return [each.split(";")[0] for each in told]

        assert said(MINE) == [] and said(None) == ["resumed with method: 'mine (own)' -> 'dppo'"]
        (changed,) = said(UNCERTAIN)
        assert "method.completions: " in changed


class TestFields:
    """A value is used as it is: fields that were left out get its values, others must agree."""

    def test_what_is_left_out_is_the_methods_and_trl_reads_the_same(self, tiny_path, tmp_path):
        loss = partial(off_policy_masked, loss=partial(cispo, ratio_max=3.0), threshold=0.5)
        method = replace(MINE, token_loss=loss, beta=0.1, entropy_coef=0.01, kl=partial(k3, ratio=token_ratio))
        args = args_of()
        own = args.with_method(method)
        assert own.build_method(method) == method and args.method == "dppo", "the configuration is as it was"
        fields = {"loss_type": "cispo", "epsilon_high": 3.0, "beta": 0.1, "entropy_coef": 0.01}
        fields |= {"off_policy_mask_threshold": 0.5, "use_bias_correction_kl": True, "completion_prune_rate": 0.5}
        assert {name: getattr(own, name) for name in fields} == fields and own.method == "mine"
        trainer = make(tiny_path, tmp_path, replace(MINE, beta=0.1))
        assert trainer.beta == 0.1 and trainer.ref_model is not None

    @pytest.mark.parametrize(
        ("field", "value", "how"),
        [
            ("completion_prune_rate", 0.3, "method.with_rates(completion=0.3)"),
            ("completion_prune_rate", "auto", "dppo docs extending"),
            ("beta", 0.1, "replace(method, beta=0.1)"),
            ("loss_type", "dr_grpo", "'grpo'"),
            ("importance_sampling_level", "sequence", "'token'"),
            ("scale_rewards", "none", "'group'"),
            ("delta", 2.0, "delta"),
            ("completion_score", "length", "complete"),
            ("advantage_power", 0.5, "complete"),
        ],
    )
    def test_what_contradicts_it_is_refused_by_name(self, field, value, how):
        with refused(ConfigError, f"{field}={value!r}", "'mine'", how, "Leave it out"):
            args_of(**{field: value}).with_method(MINE)

    def test_values_that_were_set_on_the_configuration_later_are_given_ones(self):
        args = args_of()
        args.beta = 0.1
        with refused(ConfigError, "beta=0.1", "'mine'"):
            args.with_method(MINE)

    def test_what_agrees_is_taken(self):
        method = replace(MINE, normaliser=DR_GRPO, token_loss=partial(clipped_surrogate, ratio=sequence_ratio))
        agreeing = {"loss_type": "dr_grpo", "importance_sampling_level": "sequence", "epsilon": 0.2, "beta": 0.0}
        agreeing |= {"completion_prune_rate": 0.5, "router_aux_loss_coef": 0.0}
        assert args_of(**agreeing).with_method(method).build_method(method) == method

    def test_a_name_is_a_starting_point_that_the_fields_complete(self):
        given = {"completion_prune_rate": 0.3, "loss_type": "dr_grpo"}
        args, before = args_of(**given), args_of(**given, method="dppo_threshold")
        named = args.with_method("dppo_threshold")
        assert named.build_method().describe() == before.build_method().describe()
        assert named.build_method().normaliser is DR_GRPO and named.completion_prune_rate == 0.3
        with refused(ConfigError, "method='gspo'", "args.method='dppo_threshold'"):
            before.with_method("gspo")
        with refused(ConfigError, "method='dpo'", "not known"):
            args.with_method("dpo")
        with refused(ConfigError, "'mine'", "DPPOTrainer(..., method=mine)"):
            args_of(method=MINE)


class TestNamed:
    """``package.module:name`` in a configuration."""

    @pytest.mark.parametrize("name", ["a_star_po", "dppo_a_star_po"])
    def test_a_method_trains_by_its_dotted_name(self, name, tiny_path, tmp_path, monkeypatch):
        module = f"named_{name}"
        (tmp_path / f"{module}.py").write_text(f"from dppo.methods import METHODS\nmine = METHODS[{name!r}]\n")
        monkeypatch.syspath_prepend(tmp_path)
        named = {"method": f"{module}:mine", "prompt_values": write_values(tmp_path / "values.jsonl", problems(8))}
        trainer = make(tiny_path, tmp_path, None, accept_bias=True, **named)
        trainer.train()
        assert trainer.state.global_step == 3 and trainer.ref_model is not None
        assert trainer.method == METHODS[name]

    def test_the_current_folder_is_looked_at_first(self, tmp_path, monkeypatch):
        text = "from dataclasses import replace\nfrom dppo.methods import OBJECTIVES, SCHEMES, combined\n"
        text += "mine = replace(combined(OBJECTIVES['dr_grpo'], SCHEMES['dppo']), name='mine')\nthing = 3\n"
        (tmp_path / "methods_of_mine.py").write_text(text)
        monkeypatch.chdir(tmp_path)
        args = args_of(method="methods_of_mine:mine")
        assert (args.loss_type, args.completion_prune_rate) == ("dr_grpo", 0.5)
        assert args.build_method().name == "mine" and unpruned_method(args, "grpo").name == "grpo"
        assert unpruned_method(args, args.method).completions.rate == 0
        for named, *told in (
            ("methods_of_mine:minne", "'methods_of_mine:minne'", "cannot be imported"),
            ("no_such_module:mine", "'no_such_module:mine'", "package.module:name"),
            ("methods_of_mine:thing", "methods_of_mine:thing", "int", "Method"),
        ):
            with refused(ConfigError, *told):
                args_of(method=named)
        with refused(ConfigError, "completion_prune_rate=0.2", "'mine'"):
            args_of(method="methods_of_mine:mine", completion_prune_rate=0.2)


class TestCosts:
    """Rates that are chosen go by measured costs, through the same method."""

    CHOOSING = replace(MINE, completions=replace(DPPO.completions, rate=0.8, auto=COMPLETION_AUTO))

    def test_costs_change_what_the_method_chooses_by_and_nothing_else(self, tiny_path, tmp_path):
        trainer = make(tiny_path, tmp_path, self.CHOOSING, rollout_cost=4.0)
        assert trainer.args.completion_prune_rate == "auto"
        auto = replace(COMPLETION_AUTO, rollout_cost=4.0)
        assert trainer.method == replace(MINE, completions=replace(self.CHOOSING.completions, auto=auto))

    def test_measured_costs_reach_prompts_and_plan_alike(self, tiny_path, tmp_path, monkeypatch):
        trainer = make(tiny_path, tmp_path, self.CHOOSING, rollout_cost=None)
        session, of_prompts, of_plans = trainer.session, [], []

        def noting(methods, function):
            def noted(method, *args, **options):
                methods.append(method)
                return function(method, *args, **options)

            return noted

        monkeypatch.setattr(session.source, "block", noting(of_prompts, session.source.block))
        monkeypatch.setattr("dppo.session.plan_step", noting(of_plans, plan_step))
        dear = with_rollout_cost(self.CHOOSING, 8.0)
        monkeypatch.setattr(session, "_at_costs", lambda costs: setattr(session, "method", dear))
        trainer.train()
        assert of_prompts == of_plans and of_plans[0] == self.CHOOSING
        assert of_plans[-1] == trainer.method == dear != self.CHOOSING

    def test_a_score_of_the_method_is_not_replaced(self, tiny_path, tmp_path):
        def silent(prompts, trainer):
            return scripted(prompts, trainer) | {"logprobs": None}

        with refused(ConfigError, "log-probabilities"):
            make(tiny_path, tmp_path, UNCERTAIN, rollout=silent).train()
