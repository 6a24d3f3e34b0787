"""Trainers on rows under TRL's options: each is served as TRL serves it, or refused with what to use."""

import shutil
from functools import partial

import dpo_runs as dpo
import pytest
import torch
from cases import one_in
from datasets import Dataset, DatasetDict
from peft import LoraConfig, PromptTuningConfig
from refusals import refused
from resumed_runs import trainer
from sft_runs import as_trl, ours, solutions, stock, texts
from tiny_runs import WORDS, logged
from transformers import AutoTokenizer

from dppo.errors import ConfigError, DataError, OutOfMemoryError
from dppo.trl import DPPOSFTConfig, DPPOSFTTrainer, DPPOTrainer
from dppo.trl.layouts import RowLayout

TURNS = (
    "{% for m in messages %}w{{ loop.index }} {% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }} <eos>"
    "{% endgeneration %}{% else %}{{ m['content'] }}{% endif %} {% endfor %}"
)
"""A chat template that says which words are the assistant's."""
ADAPTER = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
VIRTUAL = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)


def said(start, words):
    return " ".join(WORDS[(start + j) % 28] for j in range(words))


def turns(i):
    """Two of the user's and two of the assistant's, of different lengths."""
    spoken = (said(i, 3), said(i + 5, 1 + i % 3), said(i + 2, 2), said(3 * i, 1 + i % 4))
    return [{"role": role, "content": text} for role, text in zip(("user", "assistant") * 2, spoken, strict=True)]


def ids(count=10):
    return Dataset.from_list([{"input_ids": [3 + (i + j) % 28 for j in range(3 + i % 4)]} for i in range(count)])


SERVED = {
    "rows": {},
    "packed": {"only": {"layout": "packed"}},
    "padded": {"only": {"layout": "padded"}},
    "small rows": {"only": {"max_tokens_per_row": 12}},
    "dft": {"loss_type": "dft"},
    "in order": {"train_sampling_strategy": "sequential"},
    "prompts too": {"completion_only_loss": False},
    "checkpointing": {"gradient_checkpointing": True},
    "texts": {"data": texts()},
    "accumulated": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2},
    "logged every second step": {"logging_steps": 2, "max_steps": 4, "only": {"layout": "padded"}},
    "last batch left out": {"dataloader_drop_last": True},
    "shuffled, another order": {"shuffle_dataset": True, "data_seed": 7},
    "dispatched": {"accelerator_config": {"dispatch_batches": True}},
    "cut at the start": {"max_length": 5, "truncation_mode": "keep_end"},
    "three calls a step": {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 2, "max_steps": 2},
    "an adapter": {"own": {"peft_config": ADAPTER}},
    "tokens before every sequence": {"own": {"peft_config": VIRTUAL}},
    "as tensors": {"data": solutions().with_format("torch")},
    "ids, not prepared": {"data": ids(), "dataset_kwargs": {"skip_prepare_dataset": True}},
}


@pytest.mark.parametrize("layout", ["rows", "padded"])
def test_only_what_the_assistant_says_is_trained_on(layout, tiny_path, tmp_path):
    """Two turns: between them are tokens that are attended to and carry no loss."""
    path = shutil.copytree(tiny_path, tmp_path / "chat")
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = TURNS
    tokenizer.save_pretrained(path)
    options = {"data": Dataset.from_list([{"messages": turns(i)} for i in range(10)]), "assistant_only_loss": True}
    us, _ = as_trl(stock, ours, str(path), tmp_path, only={"layout": layout}, **options)
    scored = us.read(us.train_dataset[1]).sequences[0].scored.tolist()
    assert scored[0] and scored[-1] and not all(scored)


OF_PAIRS = {
    "small rows": {"only": {"max_tokens_per_row": 20}},
    "rows": {},
    "reference computed before": {"precompute_ref_log_probs": True},
    "logged every second step": {"logging_steps": 2, "max_steps": 4, "only": {"layout": "padded"}},
    "cut": {"max_length": 6},
    "checkpointing": {"gradient_checkpointing": True},
    "with sft": dpo.RPO,
    "an adapter": {"own": {"ref_model": None, "peft_config": ADAPTER}},
    "an adapter, before": {"own": {"ref_model": None, "peft_config": ADAPTER}, "precompute_ref_log_probs": True},
    "a reference that follows": {"sync_ref_model": True, "ref_model_sync_steps": 1},
    "no reference given": {"own": {"ref_model": None}},
    "three calls a step": {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 2, "max_steps": 2},
    "columns that precomputing would write": {
        "data": dpo.pairs().map(lambda row: {"ref_chosen_logps": 0.0, "ref_rejected_logps": 0.0})
    },
}


CASES = {name: (stock, ours, options) for name, options in SERVED.items()}
CASES |= {f"{name}, pairs": (dpo.stock, dpo.ours, options) for name, options in OF_PAIRS.items()}


@pytest.mark.filterwarnings("ignore:The `'keep_end'` truncation mode:FutureWarning")
@pytest.mark.parametrize("case", one_in(3, CASES))
def test_options_are_trls(case, tiny_path, tmp_path):
    theirs, mine, options = case
    as_trl(theirs, mine, tiny_path, tmp_path, **options)


def test_evaluation_between_steps_is_trls(tiny_path, tmp_path):
    """In padded batches, while training is in rows; the tokens trained on are known to it."""
    every = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 3}
    for make, theirs, rows in ((ours, stock, solutions(7)), (dpo.ours, dpo.stock, dpo.pairs(7))):
        us, _ = as_trl(theirs, make, tiny_path, tmp_path / make.__module__, own={"eval_dataset": rows}, **every)
        assert len(logged(us, "eval_loss")) == 3 and logged(us, "num_tokens")[-1] > 0


def test_processes_that_share_rows_are_refused(tiny_path, tmp_path, monkeypatch):
    for kind, make in ((DPPOSFTTrainer, ours), (DPPOTrainer, partial(trainer, seen=[]))):
        monkeypatch.setattr(kind, "get_cp_size", lambda self: 2)
        with refused(ConfigError, "sequence parallelism"):
            make(tiny_path, tmp_path)


def test_datasets_of_which_nothing_is_left_say_why(tiny_path, tmp_path):
    for make in (ours, dpo.ours):
        with refused(DataError, "10 rows", "max_length=2"):
            make(tiny_path, tmp_path, max_length=2)
    with refused(ConfigError, "DatasetDict", "dataset['test']"):
        ours(tiny_path, tmp_path, data=DatasetDict(test=solutions()))
    with refused(ConfigError, "list", "Dataset.from_list"):
        ours(tiny_path, tmp_path, data=[{"text": "w1"}])
    with refused(ConfigError, "`train_dataset` is required", "Dataset.from_list"):
        DPPOSFTTrainer(model=tiny_path, args=DPPOSFTConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False))


@pytest.mark.parametrize(("make", "what"), [(ours, "one completion"), (dpo.ours, "one prompt with its answers")])
def test_what_does_not_fit_alone_names_a_setting_that_is_there(make, what, tiny_path, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    trainer = make(tiny_path, tmp_path, per_device_train_batch_size=1)
    trainer.forwards.check_once()
    monkeypatch.setattr(RowLayout, "forward", full)
    with refused(OutOfMemoryError, "max_length", what):
        trainer.train()
