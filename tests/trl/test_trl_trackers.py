"""What a run tells others: a tracker, through TRL's own log, its last lines, and the card of its model."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_runs import length_reward
from trl_recorder_runs import make


@pytest.fixture
def known_soon(monkeypatch):
    """Costs of tokens are known after the second generation."""
    monkeypatch.setattr("dppo.costs.MEASURED_GENERATIONS", 1)


def trained(path, folder, tracker, **options):
    """A run of four generations that reports to a tracker; its last record of training."""
    trainer, _ = make(path, folder, report_to=tracker, max_steps=4, reward=length_reward, **options)
    trainer.train()
    records = [record for record in trainer.state.log_history if "saved/share" in record]
    assert records and "saved/share" not in trainer.state.log_history[0], "not before it is known"
    return trainer, records[-1]


def test_tensorboard_has_what_was_saved_and_kept(tiny_path, tmp_path, known_soon, monkeypatch):
    """As have other trackers: transformers gives each of them the same log."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    _, last = trained(tiny_path, tmp_path, "tensorboard")
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    for name in ("saved/seconds", "saved/share", "prune/kept_share", "prune/prompts_kept_share", "reward"):
        assert events.Scalars(f"train/{name}")[-1].value == pytest.approx(last[name], rel=1e-5), name


def test_a_plain_script_ends_with_what_was_pruned_and_saved(tiny_path, tmp_path, known_soon, capsys):
    trainer, last = trained(tiny_path, tmp_path, "none", prompt_prune_rate=0.0, completion_prune_rate=0.5)
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("dppo | ")][-3:]
    pruned, saved, more = said
    assert "completions were not trained on" in pruned and "not drawn" in pruned and "prompts" not in pruned
    assert saved.startswith(f"dppo | saved: {trainer.savings.metrics(trainer.session.costs)['saved/share']:.0%}, about")
    assert more.startswith("dppo | completions: completion_prune_rate: 0.5 ") and 0 < last["saved/share"] < 1


def test_the_card_of_a_saved_model_names_method_rates_biases_and_paper(tiny_path, tmp_path):
    trainer, _ = make(tiny_path, tmp_path, recorded=False, max_steps=1)
    trainer.save_model()
    card = (tmp_path / "README.md").read_text()
    assert card.count("## How it was trained: dppo") == 1 and "- dppo" in card
    assert f"| method | `{trainer.method.name}` |" in card and f"| paper | {trainer.method.paper} |" in card
    assert f"| completions pruned | {trainer.method.completions.rate:.0%} of those with a gradient |" in card
    trainer.save_model(str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere" / "README.md").exists()
