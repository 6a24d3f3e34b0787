"""Rates that a run chooses: how they are asked for, what the log says, and that a resumed run chooses the same."""

import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from refusals import refused, warned
from tiny_runs import CONFIG, SHORT, alike, first_half_reward, length_reward, logged, problems, scripted
from trl import TrlParser
from trl_recorder_runs import lines, make

from dppo.costs import MEASURED_GENERATIONS, PassCosts, Passes, Spent, TokenCosts
from dppo.errors import ConfigError, DataError
from dppo.files import sealed, unsealed
from dppo.methods import METHODS
from dppo.methods import from_settings as method_settings
from dppo.methods.from_settings import with_rollout_cost
from dppo.moment_samples import OtherTerms
from dppo.pruning import COMPLETION_AUTO, PROMPT_AUTO, Auto, MomentSamples, TokenPruning
from dppo.pruning.tokens import TOKEN_AUTO
from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.trl.checkpoints.files import OUR_STATE
from dppo.trl.grpo.lines import describe_steps
from dppo.trl.grpo.savings import CostMeter, trained_tokens
from dppo.trl.metrics import PhaseClock
from dppo.types import Work

BOTH = {"prompt_prune_rate": "auto", "completion_prune_rate": "auto"}
STEPS = 8


@pytest.fixture
def eager(monkeypatch):
    """Prompts are pruned from eight visits on, if that gains anything, and completions in batches of a few."""
    monkeypatch.setitem(method_settings.RATES, "prompt_prune_rate", Auto(fewest=8, least_gain=1.0))
    monkeypatch.setitem(method_settings.RATES, "completion_prune_rate", replace(COMPLETION_AUTO, fewest=4))


def test_both_levels_choose_up_to_a_rate():
    method = DPPOConfig(**CONFIG, **BOTH).build_method()
    assert (method.prompts.auto, method.completions.auto) == (PROMPT_AUTO, COMPLETION_AUTO)
    assert (method.prompts.rate, method.completions.rate) == (0.5, 0.9)
    assert (method.prompts.floor, method.completions.floor) == pytest.approx((0.3, 0.1))
    assert (method.prompts.least, method.completions.least) == (None, 0.02)
    asked = DPPOConfig(**CONFIG, **BOTH, prune_floor=0.2).build_method().completions
    assert (asked.rate, asked.floor, asked.least) == (0.6, 0.2, None), "a floor that is asked for is that of all"
    assert asked.fixed().floor == 0.2, "and of every rate that may be chosen"
    assert method.biases() == ()


# A run: four of eight problems have groups of differing rewards, and four a step are candidates.


def trained(path, folder, resume=None, **options):
    folder.mkdir(exist_ok=True)
    settings = BOTH | dict(reward=first_half_reward, max_steps=STEPS, save_strategy="steps", save_steps=1) | options
    trainer, _ = make(path, folder, **settings)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def steps_of(folder):
    """Records of optimizer steps."""
    return [record for record in lines(folder, "metrics.jsonl") if "loss" in record]


def resumed_without(path, folder, checkpoint, lose, **options):
    """A run from a checkpoint of which ``lose`` has changed the session."""
    file = checkpoint / OUR_STATE
    state = json.loads(file.read_text())
    session = unsealed(state["session"])
    lose(session)
    file.write_text(json.dumps(state | {"session": sealed(session)}))
    with warned(OUR_STATE):
        return trained(path, folder, resume=str(checkpoint), **options)


def test_a_run_chooses_says_so_and_resumes_bit_for_bit(eager, tiny_path, tmp_path, capsys):
    """The wrong twin: a checkpoint that has lost what prompts gave goes on without pruning."""
    trained(tiny_path, tmp_path / "a")
    said = [line for line in capsys.readouterr().out.splitlines() if " gain" in line]
    assert [line.split(":")[0] for line in said] == ["dppo | completions", "dppo | prompts"] * 2
    assert "completion_prune_rate: auto dropped " in said[2]
    assert "prompt_prune_rate: auto dropped " in said[3] and "dropped none" not in said[3]

    records = steps_of(tmp_path / "a")
    kept = [record["prune/prompts_kept_share"] for record in records]
    assert kept[:4] == [1.0] * 4 and kept[4] < 1.0, "two steps of visits make eight"
    assert sum(share < 1.0 for share in kept[4:]) >= 3
    assert all((record["prune/prompt_rate"] > 0) == (share < 1) for record, share in zip(records, kept, strict=True))
    assert "prune/prompt_ceiling" not in records[4] and records[-1]["prune/prompt_ceiling"] > 1.5
    assert all(record["prune/completion_ceiling"] >= 1.0 for record in records)

    for stop in (3, 6):
        trained(tiny_path, tmp_path / str(stop), resume=str(tmp_path / "a" / f"checkpoint-{stop}"))
        assert alike(tmp_path / "a", tmp_path / str(stop)), stop
    no_visits = MomentSamples.none().saved()
    checkpoint = tmp_path / "a" / "checkpoint-6"
    resumed_without(tiny_path, tmp_path / "lost", checkpoint, lambda saved: saved["source"].update(visits=no_visits))
    lost = [record["prune/prompts_kept_share"] for record in steps_of(tmp_path / "lost")]
    assert lost[-2:] == [1.0, 1.0] != kept[-2:]


def test_where_auto_drops_nothing_a_run_is_that_of_plain_grpo_bit_for_bit(eager, tiny_path, tmp_path):
    """Rollouts that dear leave nothing to gain. Where they are cheap something is dropped: the wrong twin."""
    options = dict(prompt_prune_rate=0.0, max_steps=4, save_steps=4)
    for name, fields in {
        "dear": {"rollout_cost": 1e6},
        "cheap": {"rollout_cost": 0.0},
        "plain": {"method": "grpo", "completion_prune_rate": 0.0, "rollout_cost": None},
    }.items():
        trained(tiny_path, tmp_path / name, **options | fields)
    assert alike(tmp_path / "dear", tmp_path / "plain") and not alike(tmp_path / "cheap", tmp_path / "plain")


# The cost of a rollout: read from a clock in the first generations, on one process, and never again.


def test_a_process_takes_the_seconds_that_the_first_one_measured():
    """Here it is the second of two; ``test_trl_savings.py`` has the first, and all sums."""
    of_first = torch.tensor([[4.0, 1.0, 1.0, 7.0, *[0.0] * 10]])
    group = SimpleNamespace(device="cpu", gather=lambda here: torch.cat([of_first, here]))
    clock = PhaseClock()
    meter = CostMeter(clock, group, SimpleNamespace(run=(Work(), Work())))
    clock.total["rollout"] += 1000.0
    assert meter.spent() == Spent(4.0, 1.0, 1.0, 7.0)


def test_tokens_are_counted_in_each_optimizer_step_that_trains_on_them():
    weight_UN = torch.tensor([[1.0, 0.0, 2.0, 1.0], [0.0, 0.0, 3.0, 1.0]])
    completions = SimpleNamespace(tokens_N=torch.tensor([10, 20, 30, 40]))
    assert trained_tokens(SimpleNamespace(completions=completions, weight_UN=weight_UN, token_draws=())) == 150.0


@pytest.mark.parametrize("used", [True, False])
def test_the_clock_waits_for_an_accelerator_that_this_process_uses(used, monkeypatch):
    """A run on the CPU beside a GPU makes no context on it."""
    waited = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: waited.append(True))
    with PhaseClock()("rollout"):
        pass
    assert len(waited) == (2 if used else 0)


def test_cuts_of_tokens_are_chosen_by_what_was_measured_as_completions_are():
    method = replace(METHODS["dppo"], tokens=TokenPruning(rate=0.9, auto=TOKEN_AUTO))
    one = Passes(1, 50, 1, 50, 1)
    passes = PassCosts().after(1.0, one).after(1.0, one)
    measured = TokenCosts(seconds=128.0, generated=200, trained=100, scoring=passes, training=passes).settled()
    levels = with_rollout_cost(method, measured.rollout_cost).tokens, method.tokens
    assert [level.auto.rollout_cost for level in levels] == [16.0, TOKEN_AUTO.rollout_cost]
    moment_NT = torch.tensor([900.0] * 10 + [1.0] * 40).repeat(64, 1)
    tokens = moment_NT, moment_NT > 0, torch.arange(64) // 4
    assert [level.at_chosen_rate(*tokens, rolled_out=6400.0).rate for level in levels] == [0.0, 0.7]


def seconds_of(monkeypatch, generated):
    """A clock by which each generation took so long to roll out, and its passes a hundredth of a second a token."""
    asked = iter(range(10**6))

    def so_far(meter):
        scored, trained = run = meter._forwards.run
        seconds = [generated * next(asked), 0.01 * scored.tokens, 0.01 * trained.tokens]
        return [*seconds, sum(seconds)], run

    monkeypatch.setattr(CostMeter, "_so_far", so_far)


@pytest.mark.parametrize(("stop", "steps"), [(3, 6), (MEASURED_GENERATIONS + 2, MEASURED_GENERATIONS + 4)])
def test_a_resumed_run_takes_its_checkpoints_costs_and_not_the_clocks(stop, steps, tiny_path, tmp_path, monkeypatch):
    """From a checkpoint before the end of the measurement too, which fixes the costs of both runs.

    The wrong twin: on a clock of its own the resumed run would choose by other costs.
    """
    options = dict(prompt_prune_rate=0.0, max_steps=steps, save_steps=stop, rollout_cost=None)
    seconds_of(monkeypatch, 64.0)
    whole = trained(tiny_path, tmp_path / "a", **options)
    dear = whole.session.costs
    assert dear.fixed and dear.rollout_cost >= 8.0 and whole.method.completions.auto.rollout_cost == dear.rollout_cost
    seconds_of(monkeypatch, 1e-3)
    resumed = trained(tiny_path, tmp_path / "b", resume=str(tmp_path / "a" / f"checkpoint-{stop}"), **options)
    assert resumed.session.costs.rollout_cost == dear.rollout_cost == resumed.method.completions.auto.rollout_cost
    assert alike(tmp_path / "a", tmp_path / "b")
    fresh = trained(tiny_path, tmp_path / "c", **options)
    assert fresh.session.costs.rollout_cost < 1.0


def test_a_checkpoint_that_leaves_nothing_to_measure_says_so(tiny_path, tmp_path, capsys):
    options = dict(prompt_prune_rate=0.0, max_steps=4, rollout_cost=None)
    for steps, told in ((1, True), (3, False)):
        trained(tiny_path, tmp_path / str(steps), save_steps=steps, **options)
        assert capsys.readouterr().out.count("fixes rollout_cost: 1 for the run") == told


# What the KL term weighs is learned from what was kept, and a resumed run knows it.


def test_the_weight_of_a_kl_term_is_learned_logged_and_resumed(tiny_path, tmp_path):
    options = dict(beta=0.5, max_steps=6, save_steps=3, prompt_prune_rate=0.0)
    whole = trained(tiny_path, tmp_path / "a", **options)
    known = [record["prune/other_terms"] for record in steps_of(tmp_path / "a")]
    assert known[0] == 0.0, "the policy is its reference"
    assert known[-1] > 0.0 and known[-1] == whole.session.others.advantage
    checkpoint = tmp_path / "a" / "checkpoint-3"
    resumed = trained(tiny_path, tmp_path / "b", resume=str(checkpoint), **options)
    assert resumed.session.others == whole.session.others
    assert alike(tmp_path / "a", tmp_path / "b")
    nothing = asdict(OtherTerms())
    lost = resumed_without(tiny_path, tmp_path / "c", checkpoint, lambda saved: saved.update(others=nothing), **options)
    assert lost.session.others != whole.session.others, "the wrong twin"


# Pass rates of a column.

PRIOR = {"column": "solve_rate", "completions": 4}


def test_a_column_of_pass_rates_prunes_the_first_generation(tiny_path, tmp_path):
    data = problems(8).add_column("solve_rate", [0.5, 1.0] * 4)
    options = SHORT | dict(prompt_prune_rate=0.5, prompt_prior=PRIOR, loss_type="dr_grpo", output_dir=str(tmp_path))
    config = DPPOConfig(**options | dict(per_device_train_batch_size=16))
    trainer = DPPOTrainer(tiny_path, length_reward, config, data, rollout_func=scripted)
    trainer.train()
    kept = logged(trainer, "prune/prompts_kept_share")
    assert kept[0] < 1.0 and trainer.biases == ()
    with refused(DataError, "prompt_prior", "'solve_rate'", "'answer'"):
        DPPOTrainer(tiny_path, length_reward, config, problems(8), rollout_func=scripted)


@pytest.mark.parametrize(
    ("options", "late"),
    [
        ({"prompt_prune_rate": 0.5}, "none is pruned in the first one"),
        ({"method": "dppo_history", "num_generations": 1}, "the first generation has no gradient"),
    ],
)
def test_without_known_pass_rates_the_plan_names_what_starts_later(options, late):
    for prior in (PRIOR, None):
        args = DPPOConfig(**CONFIG | options | dict(per_device_train_batch_size=8, prompt_prior=prior))
        told = " ".join(describe_steps(args, args.build_method(), prompts_in_dataset=8))
        assert (late in told) == (prior is None)


def test_flags_and_yaml_take_words_numbers_and_the_column(tmp_path):
    words = json.dumps(PRIOR)
    file = tmp_path / "config.yaml"
    file.write_text("output_dir: x\nuse_cpu: true\nbf16: false\nprompt_prune_rate: auto\nprompt_prior: " + words)
    (config,) = TrlParser((DPPOConfig,)).parse_args_and_config(["--config", str(file)])
    given = ["--output_dir", "x", "--use_cpu", "--bf16", "false", "--prompt_prune_rate", "0.5", "--prompt_prior", words]
    (flags,) = TrlParser((DPPOConfig,)).parse_args_and_config(given)
    assert (config.prompt_prune_rate, flags.prompt_prune_rate) == ("auto", 0.5)
    assert config.prompt_prior == flags.prompt_prior == PRIOR
    with refused(ConfigError, "prompt_prior", "completions"):
        DPPOConfig(**CONFIG, prompt_prune_rate=0.5, prompt_prior={"column": "solve_rate"})
    with refused(ConfigError, "prompt_prior", "prompt_prune_rate"):
        DPPOConfig(**CONFIG, prompt_prior=PRIOR)
    with refused(ConfigError, "prompt_prior", "prompt_values"):
        DPPOConfig(**CONFIG, method="dppo_history", prompt_prior=PRIOR, prompt_values="values.jsonl")
