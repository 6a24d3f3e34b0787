"""What a saved model says of its training, and what a script is told of a tokenizer without a chat template."""

from datasets import Dataset
from refusals import refused
from tiny_runs import length_reward
from trl_recorder_runs import make

from dppo.errors import ConfigError
from dppo.trl import DPPOConfig, DPPOTrainer


def test_the_card_of_a_saved_model_names_method_rates_biases_and_paper(tiny_path, tmp_path):
    trainer, _ = make(tiny_path, tmp_path, recorded=False, max_steps=1)
    trainer.save_model()
    card = (tmp_path / "README.md").read_text()
    assert card.count("## How it was trained: dppo") == 1 and "- dppo" in card
    assert f"| method | `{trainer.method.name}` |" in card and f"| paper | {trainer.method.paper} |" in card
    assert f"| completions pruned | {trainer.method.completions.rate:.0%} of those with a gradient |" in card
    trainer.save_model(str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere" / "README.md").exists()


def test_a_conversation_without_a_chat_template_is_our_error(tiny_path, tmp_path):
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": f"w{i} w1"}]} for i in range(8)])
    args = DPPOConfig(
        str(tmp_path), use_cpu=True, bf16=False, num_generations=4, per_device_train_batch_size=8, report_to="none"
    )
    with refused(ConfigError, "chat template"):
        DPPOTrainer(tiny_path, length_reward, args, rows)
    text = rows.map(lambda row: {"prompt": row["prompt"][-1]["content"]})
    assert DPPOTrainer(tiny_path, length_reward, args, text).train_dataset is not None
