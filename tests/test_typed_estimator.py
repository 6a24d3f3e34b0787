"""What the estimator's parts, the configuration and the trainer make of a wrong argument: an error that names it."""

import inspect
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset

import dppo.methods
import dppo.objective
import dppo.pruning
import dppo.step
from dppo.errors import CheckpointError, ConfigError, DataError, DPPOError, ShapeError
from dppo.methods import METHODS, ROW_METHODS, on_top_of
from dppo.objective import CENTRED, GROUP_SCALED, Tokens, clipped_surrogate
from dppo.pruning import PIVOTAL, Auto, Budget, Evidence, PromptHistory, PromptStream, PromptValues, RecordedScores
from dppo.report.page import write_report
from dppo.rng import step_streams
from dppo.step import Passes, PromptSource, RolledOut, StepPrompts, micro_batch_loss, plan_step, whole_block
from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.trl.checkpoint import RunState, read_state, write_state
from dppo.trl.prompts import prompt_source
from dppo.types import Block, Candidates, Completions, Draw, Rewards
from dppo.verification.tiny import exact_bias
from dppo.verification.verify import verify

WRONG = [None, 5, -1, "x", "", [], {}, [None], [5], ["x"], len, 1.5, True]
ONE_N = torch.ones(6, dtype=torch.float64)
GROUP_N = torch.tensor([0, 0, 0, 1, 1, 1])
REWARDS = Rewards(reward_NF=torch.arange(6.0).double()[:, None], group_N=GROUP_N)
DRAW = Draw(keep_N=ONE_N.bool(), prob_N=ONE_N, weight_N=ONE_N)
CANDIDATES = Candidates(row_P=torch.arange(6), signal_P=ONE_N, tokens_P=ONE_N, seen_P=ONE_N.bool())
BLOCK = Block(candidates=CANDIDATES, draw=DRAW)
COMPLETIONS = Completions(
    advantage_N=ONE_N, tokens_N=ONE_N, group_N=GROUP_N, live_N=ONE_N.bool(), confidence_N=ONE_N, averaged_N=ONE_N
)
LOGP = torch.zeros(2, 3)
TOKENS = Tokens(logp_BT=LOGP, old_logp_BT=LOGP, advantage_B=torch.ones(2), mask_BT=torch.ones(2, 3), ref_logp_BT=LOGP)
ROLLED_OUT = RolledOut(rewards=REWARDS, tokens_N=ONE_N.long())
PROMPTS = whole_block(2, 6)
EVIDENCE = Evidence.known(ONE_N, ONE_N, GROUP_N)
VALUES = PromptValues(value_P=ONE_N, count_P=ONE_N, mean_P=ONE_N, square_P=ONE_N)
SCORES = RecordedScores(np.arange(6, dtype=np.uint64), np.full(6, 3))
HISTORY, STREAM = PromptHistory(np.arange(8, dtype=np.uint64)), PromptStream(8, seed=0)


def of_fields(record, *names):
    """The arguments that make a record again."""
    return {name: getattr(record, name) for name in names or record.__dataclass_fields__}


BUDGET = {"score_N": ONE_N, "budget": Budget(rate=0.5, floor=0.1)}
CLIPS = {"ratio": dppo.objective.token_ratio, "clip_low": 0.2, "clip_high": 0.2}
SCORED = {"completions": COMPLETIONS}
CALLS = {
    "Passes": {"passes": 1, "shares": 1},
    "PromptSource": {"stream": STREAM, "history": HISTORY, "method": METHODS["dppo"], "prompts": 4, "fill": False}
    | {"weight_F": None, "difficulty": None, "values": None},
    "RolledOut": of_fields(ROLLED_OUT),
    "StepPrompts": of_fields(PROMPTS),
    "completions_of": {"method": METHODS["dppo"], "rolled_out": ROLLED_OUT, "live": None, "weight_N": None},
    "RowSource": {"scores": SCORES, "method": ROW_METHODS["dppo"], "seed": 0},
    "row_figures": {"candidates": SCORES.candidates(torch.arange(6)), "draw": DRAW},
    "RowMethod": of_fields(
        ROW_METHODS["dppo"], "name", "paper", "rows", "score", "per_epoch", "over_kept", "schedule", "deviations"
    ),
    "RecordedScores": {"identities": SCORES.identities, "tokens": SCORES.tokens},
    "mean_loss": {"logp_BT": LOGP, "mask_BT": LOGP},
    "margin_weights": {"margin_B": ONE_N, "centre": 0.0, "scale": 1.0, "lowest": 0.2, "highest": 1.8},
    "sigmoid_preference": {"margin_B": ONE_N, "beta": 0.1},
    "drawn_block": {"block": BLOCK, "generations": 3, "size_Q": None},
    "micro_batch_loss": {"method": METHODS["dppo"], "tokens": TOKENS, "weight_B": torch.ones(2), "denominator": 2.0}
    | {"all_tokens": 6.0, "entropy_BT": None, "router_loss": None, "all_attended": 0.0},
    "plan_step": {"method": METHODS["dppo"], "rolled_out": ROLLED_OUT, "prompts": PROMPTS, "max_tokens": 3}
    | {"streams": step_streams(0, 0), "passes": Passes(), "done": 0.0, "live": None},
    "signals": {"method": METHODS["dppo"], "rolled_out": ROLLED_OUT},
    "whole_block": {"groups": 2, "completions": 6},
    "Method": of_fields(METHODS["dapo"]),
    "in_words": {"function": clipped_surrogate},
    "on_top_of": {"base": METHODS["gspo"], "pruning": METHODS["dppo"]},
    "Auto": of_fields(Auto()),
    "Budget": of_fields(BUDGET["budget"]),
    "Design": of_fields(PIVOTAL),
    "DifficultyPredictor": {"features_PD": np.ones((8, 2)), "ranges": [(0.0, 1.0)], "discount": 0.9, "ridge": 1.0},
    "Evidence": of_fields(EVIDENCE),
    "PromptHistory": {"identities": HISTORY.identities, "decay": 0.9, "strength": 2.0, "half_life": 9.0},
    "PromptValues": of_fields(VALUES),
    "PromptPruning": of_fields(METHODS["infobatch"].prompts),
    "PromptStream": {"size": 8, "seed": 0, "shuffle": True},
    "GroupSizes": {"evenness": 0.3, "most": 16},
    "Pruning": of_fields(METHODS["dppo"].completions),
    "Rounds": of_fields(METHODS["greso"].rounds),
    "Weighting": of_fields(dppo.pruning.KEPT_MEAN),
    "absolute_advantage": SCORED,
    "advantage_with_confidence": SCORED,
    "advantage_with_length": SCORED,
    "uniform_score": SCORED,
    "column_features": {"columns": {"level": [1.0, 2.0]}},
    "length_features": {"prompts": ["a", "b"]},
    "ceiling_of": {"evidence": EVIDENCE},
    "choose": {"auto": Auto(), "evidence": EVIDENCE, "prob_at": lambda rate: ONE_N * (1 - rate), "largest": 0.8},
    "efficiency": {"prob_N": ONE_N, "value_N": ONE_N, "cost_N": ONE_N, "paid": 0.0},
    "selection_ceiling": {"value_N": ONE_N, "cost_N": ONE_N},
    "confidence": {"logp_BT": LOGP, "mask_BT": LOGP},
    "constant": {"done": 0.5, "until": 0.5},
    "stop": {"done": 0.5, "until": 0.5},
    "fade": {"done": 0.7, "until": 0.5},
    "effective_sample_size": {"weight_N": ONE_N},
    "relative_added_variance": {"prob_N": ONE_N, "norm_N": ONE_N},
    "inclusion_probabilities": {"size_N": ONE_N, "budget": 3.0, "floor": 0.1, "cost_N": None},
    "proportional": BUDGET,
    "threshold": BUDGET,
    "uniform": BUDGET,
    "AdvantageRule": of_fields(GROUP_SCALED),
    "Normaliser": of_fields(dppo.objective.DR_GRPO),
    "Statistics": of_fields(dppo.objective.WHOLE_GROUPS),
    "Tokens": of_fields(TOKENS),
    "token_ratio": {"tokens": TOKENS},
    "sequence_ratio": {"tokens": TOKENS},
    "clipped_surrogate": {"tokens": TOKENS, **CLIPS, "delta": None},
    "clipped_tokens": {"tokens": TOKENS, **CLIPS},
    "cispo": {"tokens": TOKENS, "ratio": dppo.objective.token_ratio, "ratio_max": 5.0},
    "sapo": {"tokens": TOKENS, "ratio": dppo.objective.token_ratio, "temperature_pos": 1.0, "temperature_neg": 1.0},
    "vespo": {"tokens": TOKENS, "k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0},
    "off_policy_masked": {"tokens": TOKENS, "loss": clipped_surrogate, "threshold": 0.1},
    "binary_tv": {"behaviour_logp": LOGP, "logp": LOGP},
    "binary_kl": {"behaviour_logp": LOGP, "logp": LOGP},
    "divergence_ppo": {
        **{"tokens": TOKENS, "divergence": dppo.objective.binary_tv},
        **{"delta_low": 0.15, "delta_high": 0.15, "ratio_max": 20.0},
    },
    "k3": {"tokens": TOKENS, "ratio": None},
    "weighted_sum": {"loss_BT": LOGP, "mask_BT": LOGP, "weight_B": torch.ones(2), "per_sequence": False},
    "group_advantages": {"rewards": REWARDS, "scale": "group", "ddof": 1, "eps": 1e-4},
    "advantage_regression": {"tokens": TOKENS},
    "squared_log_ratio": {"tokens": TOKENS},
    "optimal_value": {"reward_PG": torch.rand(2, 4), "beta": 0.5},
    "value_advantages": {"rewards": replace(REWARDS, value_Q=torch.zeros(2))},
    "history_advantages": {"rewards": REWARDS},
    "history_scaled_advantages": {"rewards": REWARDS, "eps": 0.1},
    "deviation": {"value_QG": LOGP, "ddof": 1},
    "powered": {"advantage": ONE_N, "power": 0.5},
    "emphasised": {"rule": GROUP_SCALED, "power": 0.5},
}
NOT_TRIED = {
    "Divergence",
    "Part",
    "Ratio",
    "TokenLoss",
    "Rule",
    "Schedule",
    "Score",
    "StepPlan",
    "Selection",
    "Skipping",
    "Request",
    "RowScore",
}
"""Types of functions and values, and records that the library makes."""
PARTS = (dppo.step, dppo.methods, dppo.pruning, dppo.objective)


def test_every_public_name_is_tried():
    names = {name for part in PARTS for name in part.__all__ if not name.isupper()}
    assert names - NOT_TRIED - {"Ceiling", "Choice"} == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_any_other_argument_works_or_is_an_error_of_this_library(name):
    function, given = next(getattr(part, name) for part in PARTS if name in part.__all__), CALLS[name]
    function(**given)
    for argument, right in given.items():
        # Of a function nobody can tell what it takes before it is called.
        for wrong in WRONG if not (callable(right) or right is None) else [x for x in WRONG if x is not len]:
            try:
                function(**{**given, argument: wrong})
            except DPPOError as error:
                assert str(error), (argument, wrong)


NAMED = {
    "no groups": (lambda: Rewards.of_groups(None), "reward_PG=None is NoneType, expected Tensor. Try Rewards.of_gro"),
    "a list": (lambda: Rewards.of_groups([[1.0, 0.0]]), "reward_PG=.* is list, expected Tensor"),
    "no rewards": (lambda: Rewards(reward_NF=None, group_N=GROUP_N), "reward_NF=None is NoneType"),
    "numbers with a point": (lambda: Rewards(reward_NF=ONE_N[:, None], group_N=ONE_N), "group_N is torch.float64"),
    "a method's name": (lambda: plan_step(**CALLS["plan_step"] | {"method": "grpo"}), "method='grpo' is str"),
    "a source's method": (lambda: PromptSource(STREAM, HISTORY, "grpo", prompts=4), "method='grpo' is str"),
    "on top of a name": (lambda: on_top_of("grpo"), "base='grpo' is str, expected Method"),
    "a history of a list": (lambda: PromptHistory([1, 2]), "expected ndarray. Try PromptHistory"),
    "a loss of nothing": (lambda: micro_batch_loss(**CALLS["micro_batch_loss"] | {"method": None}), "method=None"),
    "the bias of nothing": (lambda: exact_bias(None), "method=None is NoneType, expected Method"),
    "passes": (lambda: Passes(passes="2"), "passes='2' is str, expected a whole number. Try Passes"),
    "a rate": (lambda: METHODS["dppo"].with_rates(completion="0.5"), "completion='0.5' is str, expected a number"),
    "no rate": (lambda: dppo.pruning.Pruning(rate=None), "rate=None is NoneType"),
    "no selection": (lambda: replace(METHODS["dppo"], completions="x"), "completions='x' is str, expected Selection"),
    "nothing to verify": (lambda: verify(None, None), "subject=None is NoneType, expected Subject"),
    "no page": (lambda: write_report(None, None), "folders=None is NoneType"),
    "no rounds": (
        lambda: PromptSource(STREAM, HISTORY, METHODS["grpo"], prompts=4).rounds(0, len),
        r"method='grpo' has no rounds. Use source.block",
    ),
}


@pytest.mark.parametrize(("call", "message"), NAMED.values(), ids=NAMED)
def test_what_is_wrong_is_named(call, message):
    with pytest.raises((ConfigError, ShapeError), match=message):
        call()


@pytest.mark.parametrize("methods", [[], ["dppo"]])
def test_verify_needs_methods(methods, subject):
    with pytest.raises(ConfigError, match="are no methods, at least one"):
        verify(subject, methods)


class TestSteps:
    """A step whose parts do not belong together is refused before it is planned."""

    @pytest.mark.parametrize(
        ("prompts", "message"),
        [
            (lambda: whole_block(3, 6), "2 groups were rolled out of 3 prompts"),
            (lambda: whole_block(1, 6), "2 groups were rolled out of 1 prompts"),
            (lambda: whole_block(2, 60), "sequences=60, and the step has 6 completions. Try sequences=6"),
            (lambda: whole_block(2, 5), "sequences=5, and the step has 6"),
            (lambda: whole_block(0, 0), "groups=0 must be >= 1"),
            (lambda: replace(PROMPTS, sequences=-1), "sequences=-1: they do not fit"),
            (lambda: replace(PROMPTS, row_Q=torch.arange(3)), r"prob_Q has shape \(2,\), expected \(3,\)"),
            (lambda: replace(PROMPTS, candidates=CANDIDATES), "6 candidates, a draw of 2"),
        ],
    )
    def test_prompts_are_those_of_the_groups(self, prompts, message):
        with pytest.raises(ShapeError, match=message):
            plan_step(**CALLS["plan_step"] | {"prompts": prompts()})

    def test_more_is_counted_where_prompts_were_pruned(self):
        draw = Draw(keep_N=torch.arange(6) < 2, prob_N=ONE_N, weight_N=ONE_N)
        pruned = dppo.step.drawn_block(Block(candidates=CANDIDATES, draw=draw), 3)
        assert isinstance(pruned, StepPrompts)
        assert plan_step(**CALLS["plan_step"] | {"prompts": pruned}).prompts.sequences == 18

    @pytest.mark.parametrize("field", ["tokens_N", "attended_N", "confidence_N", "process_N"])
    def test_what_was_rolled_out_has_one_entry_per_completion(self, field):
        with pytest.raises(ShapeError, match=rf"RolledOut.{field} has shape \(5,\), expected \(6,\)"):
            replace(ROLLED_OUT, **{field: torch.ones(5)})

    def test_tokens_are_not_negative(self):
        with pytest.raises(DataError, match="tokens_N must be >= 0, and its smallest is -1"):
            replace(ROLLED_OUT, tokens_N=-ROLLED_OUT.tokens_N)

    def test_nothing_rolled_out_is_shared_among_several_steps(self):
        none = Rewards(reward_NF=torch.zeros(0, 1), group_N=torch.zeros(0, dtype=torch.int64))
        draw = Draw(keep_N=torch.zeros(6).bool(), prob_N=ONE_N / 2, weight_N=0 * ONE_N)
        prompts = dppo.step.drawn_block(Block(candidates=CANDIDATES, draw=draw), 3)
        given = {"rolled_out": RolledOut(rewards=none, tokens_N=torch.zeros(0)), "prompts": prompts}
        assert plan_step(**CALLS["plan_step"] | given | {"passes": Passes(shares=2)}).weight_UN.shape == (2, 0)

    @pytest.mark.parametrize(("groups", "message"), [(5, "round 0: 5 groups, expected 2"), (None, "=None is NoneType")])
    def test_rounds_get_the_groups_they_asked_for(self, groups, message):
        source = PromptSource(PromptStream(8, seed=0), HISTORY, METHODS["dapo"], prompts=2)
        with pytest.raises((ShapeError, ConfigError), match=message):
            source.rounds(0, lambda number, block: groups and Rewards.of_groups(torch.rand(groups, 3)))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (ONE_N * torch.nan, ConfigError, "'own' are not finite for 6 of 6"),
        (ONE_N / 0, ConfigError, "'own' are not finite"),
        (ONE_N[:2], ShapeError, r"'own' are torch.Size\(\[2\]\), expected a tensor \(6,\)"),
        ([0.0] * 6, ShapeError, r"'own' are \[0.0, .*expected a tensor \(6,\)"),
    ],
)
def test_a_rule_gives_a_number_per_completion(given, error, message):
    with pytest.raises(error, match=message):
        replace(CENTRED, name="own", compute=lambda rewards: given)(REWARDS)


CONFIG = {"output_dir": "unused", "report_to": [], "use_cpu": True, "bf16": False}
OWN = list(DPPOConfig.__annotations__)
READ = ("delta", "gradient_accumulation_steps", "steps_per_generation", "top_entropy_quantile", "num_iterations")
READ += ("generation_batch_size", "epsilon_high", "entropy_coef", "off_policy_mask_threshold", "router_aux_loss_coef")


class TestSettings:
    """Settings are checked by type and range before anything reads them."""

    @pytest.mark.parametrize("field", [*OWN, *READ])
    def test_any_value_works_or_is_an_error_of_this_library(self, field):
        hint = str(inspect.get_annotations(DPPOConfig).get(field, "float"))
        for wrong in [*WRONG, 0, "0.5", 2.5, ["dppo"], float("nan")]:
            refused = None
            try:
                DPPOConfig(**CONFIG | {field: wrong})
            except DPPOError as error:
                refused = str(error)
            except ValueError as error:  # TRL's own
                assert "divisible" in str(error) or "generation" in str(error), (field, wrong)
                refused = "TRL"
            if "str" not in hint and "list" not in hint and isinstance(wrong, str | list):
                assert refused and f"{field}={wrong!r} is {type(wrong).__name__}, expected" in refused, wrong

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (dict(method=["dppo"]), r"method=\['dppo'\] is list, expected text. Try leaving it out"),
            (dict(loss_type=["grpo"]), "loss_type=.* is list"),
            (dict(scale_rewards=[1]), "scale_rewards=.* is list"),
            (dict(epsilon=-1), "epsilon=-1 must be >= 0. Try leaving it out"),
            (dict(epsilon="x"), "epsilon='x' is str, expected a number"),
            (dict(delta="x"), "delta='x' is str, expected a number or None"),
            (dict(delta=0.0), "delta=0 must be greater than 0"),
            (dict(method="dapo", max_rounds=2.5), "max_rounds=2.5 is float, expected a whole number or None"),
            (dict(method="dapo", max_rounds=-1), "max_rounds=-1 must be >= 0"),
            (dict(method="dapo", round_factor=0.0), "round_factor=0 must be greater than 0"),
            (dict(record_completions=2.5), "record_completions=2.5 is float, .* Try record_completions: 16"),
            (dict(accept_bias="no"), "accept_bias='no' is str, expected bool. Try accept_bias: False"),
            (dict(prune_until=None), "prune_until=None is NoneType, expected a number. Try prune_until: 0.875"),
            (dict(prune_until=1.5), r"prune_until=1.5 must be in \[0, 1\]"),
            (dict(advantage_power=-1.0), "advantage_power=-1 must be greater than -1"),
            (dict(gradient_accumulation_steps=0), "gradient_accumulation_steps=0 must be >= 1"),
            (dict(steps_per_generation=0), "steps_per_generation=0 must be >= 1"),
            (dict(epsilon=-1, delta="x"), "2 problems"),
        ],
    )
    def test_field_value_and_what_works_are_named(self, options, message):
        with pytest.raises(ConfigError, match=message):
            DPPOConfig(**CONFIG | options)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((None, len), "model=None is NoneType, expected text or Module"),
            (("m", 3), "reward_funcs=3 is int, expected text or a function"),
            (("m", [None]), "reward_funcs=None is NoneType"),
        ],
    )
    def test_the_trainer_names_what_it_was_given(self, arguments, message):
        with pytest.raises(ConfigError, match=message):
            DPPOTrainer(*arguments, DPPOConfig(**CONFIG))


STATE = RunState(generation=1, calls=0, position=None, skipped=0, settings={})


@pytest.mark.parametrize(
    "damage",
    [{"settings": []}, {"position": []}, {"calls": None}, {"generation": "x"}, {"skipped": -1}, {"more": 1}],
)
def test_a_damaged_state_is_no_bare_error(damage, tmp_path: Path):
    write_state(tmp_path, STATE)
    assert read_state(tmp_path) == STATE
    path = tmp_path / "dppo_state.json"
    for text in (json.dumps(json.loads(path.read_text()) | damage), "[]", "{not"):
        path.write_text(text)
        with pytest.raises(CheckpointError, match=r"dppo_state.json is damaged \(.*There is no other checkpoint"):
            read_state(tmp_path)


def test_a_place_among_prompts_that_is_none_is_named():
    with pytest.raises(DPPOError, match=r"state=.* is list, expected dict"):
        STREAM.load_state_dict([])


class TestDatasets:
    """What a run cannot start with is said when it is made."""

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"prompt": []}, "the dataset has 0 prompts"),
            ({"question": ["a"] * 9}, r"no column 'prompt', but \['question'\].*rename_column"),
        ],
    )
    def test_the_dataset_is_named(self, columns, message):
        with pytest.raises(DataError, match=message):
            self.made(Dataset.from_dict(columns), environment=False)

    def test_an_environment_may_give_the_prompts(self):
        assert self.made(Dataset.from_dict({"question": ["a"] * 9}), environment=True).stream.size == 9

    def made(self, dataset, *, environment):
        args = DPPOConfig(**CONFIG)
        return prompt_source(dataset, args, METHODS["grpo"], weight_F=torch.ones(1), environment=environment)
