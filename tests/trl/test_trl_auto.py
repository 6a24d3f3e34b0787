"""Rates that a run chooses: how they are asked for, what the log says, and that a resumed run chooses the same."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest_trl import CONFIG, first_half_reward
from safetensors.torch import load_file
from trl import TrlParser
from trl_recorder_runs import lines, make

from dppo.methods import METHODS
from dppo.methods import settings as method_settings
from dppo.pruning import COMPLETION_AUTO, PROMPT_AUTO, Auto, Evidence
from dppo.trl import DPPOConfig
from dppo.trl.grpo.plan import CeilingLines
from dppo_lab.runs.ceilings import run_ceilings
from dppo_lab.runs.reader import read_run

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
    assert method.prompts.rate == method.completions.rate == 0.8
    assert method.prompts.floor == method.completions.floor == pytest.approx(0.2)
    (reason,) = method.biases()
    assert reason.startswith("the dapo normaliser is biased under prompt pruning: " + method.normaliser.reason)
    plain = DPPOConfig(**CONFIG, prompt_prune_rate="0.25").build_method()
    assert plain.prompts.rate == 0.25 and plain.prompts.auto is None


@pytest.mark.parametrize(("spread", "off"), [(0.0, True), (1.0, False)])
def test_a_rate_that_can_save_nothing_is_to_be_turned_off(spread, off):
    """Sixty-four prompts alike: nothing to choose from, and each draw costs variance."""
    method, said = METHODS["dppo"].with_rates(prompt=0.3, completion=0.0), []
    visits = Evidence.known((1 + spread * torch.arange(64.0)).square(), torch.ones(64))
    plan = SimpleNamespace(figures={"prune/prompt_rate": 0.3}, completions=None, evidence=None)
    CeilingLines(said.append).tell(method, plan, visits)
    assert "here: the rate is 0.3" in said[0] and said[0].endswith("turn it off, prompt_prune_rate: 0") == off


def test_trls_own_parser_takes_words_and_numbers():
    words = ["--output_dir", "x", "--prompt_prune_rate", "auto", "--completion_prune_rate", "0.25"]
    (config,) = TrlParser((DPPOConfig,)).parse_args_and_config([*words, "--use_cpu", "--bf16", "false"])
    assert (config.prompt_prune_rate, config.completion_prune_rate) == ("auto", 0.25)


# A run: four of eight problems have groups of differing rewards, and four a step are candidates.


def trained(path, folder, resume=None, **options):
    folder.mkdir(exist_ok=True)
    settings = BOTH | dict(reward=first_half_reward, max_steps=STEPS, save_strategy="steps", save_steps=1) | options
    trainer, _ = make(path, folder, **settings)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(folder: Path) -> dict:
    return load_file(folder / f"checkpoint-{STEPS}" / "model.safetensors")


def equal(a: Path, b: Path) -> bool:
    a, b = weights(a), weights(b)
    return all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_chooses_says_so_and_resumes_bit_for_bit(eager, tiny_path, tmp_path, capsys):
    """The wrong twin: a checkpoint that has lost what prompts gave goes on without pruning."""
    trainer = trained(tiny_path, tmp_path / "a")
    said = [line for line in capsys.readouterr().out.splitlines() if "pruning can save at most" in line]
    assert len(said) == 2 and said[0].startswith("dppo | completion pruning can save at most ")
    assert "of the update, beside the 5" in said[0], "half of the prompts are flat"
    assert said[1].startswith("dppo | prompt pruning can save at most ") and ") here: a rate of 0." in said[1]

    records = [record for record in lines(tmp_path / "a", "metrics.jsonl") if "loss" in record]
    kept = [record["prune/prompts_kept_share"] for record in records]
    assert kept[:4] == [1.0] * 4 and max(kept[4:]) < 1.0, "two steps of visits make eight"
    assert all((record["prune/prompt_rate"] > 0) == (share < 1) for record, share in zip(records, kept, strict=True))
    assert "prune/prompt_ceiling" not in records[4] and records[-1]["prune/prompt_ceiling"] > 1.5
    assert all(record["prune/completion_ceiling"] >= 1.0 for record in records)

    visits = trainer.source.visits
    prompts, completions = run_ceilings([read_run(tmp_path / "a")])
    assert (prompts.level, prompts.units) == ("prompts", len(visits)) and completions.units == STEPS
    assert prompts.value == pytest.approx(records[-1]["prune/prompt_ceiling"], rel=1e-4), "the records say what it knew"

    for stop in (3, 6):
        trained(tiny_path, tmp_path / str(stop), resume=str(tmp_path / "a" / f"checkpoint-{stop}"))
        assert equal(tmp_path / "a", tmp_path / str(stop)), stop
    file = tmp_path / "a" / "checkpoint-6" / "dppo_state.json"
    state = json.loads(file.read_text())
    del state["position"]["visits"]
    file.write_text(json.dumps(state))
    trained(tiny_path, tmp_path / "lost", resume=str(tmp_path / "a" / "checkpoint-6"))
    assert not equal(tmp_path / "a", tmp_path / "lost")
