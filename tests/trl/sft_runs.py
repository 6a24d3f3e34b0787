"""Short supervised runs of the tiny model, by TRL's trainer and ours on the same rows."""

import torch
from conftest_trl import WORDS, GradientRecorder
from datasets import Dataset
from transformers import AutoTokenizer, Qwen3ForCausalLM
from trl import SFTConfig, SFTTrainer

from dppo.trl import DPPOSFTConfig, DPPOSFTTrainer


def solutions(count=10, answers=1):
    """Prompts with completions of different lengths, each prompt as often as it has answers."""
    return Dataset.from_list(
        [
            {
                "prompt": " ".join(WORDS[j % 28] for j in range(i, i + 2 + i % 4)),
                "completion": " " + " ".join(WORDS[(3 * i + 5 * j + k) % 28] for j in range(1 + (i + 2 * k) % 6)),
            }
            for i in range(count)
            for k in range(answers)
        ]
    )


def texts(count=10):
    """The same as plain texts, of which every token is trained on."""
    return solutions(count).map(lambda row: {"text": row["prompt"] + row["completion"]}).select_columns(["text"])


def made(kind, config, path, folder, *, data=None, callbacks=(), **options):
    settings = dict(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        max_steps=3,
        learning_rate=1e-2,
        max_grad_norm=0.0,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        seed=3,
    )
    settings.update(options)
    return kind(
        model=Qwen3ForCausalLM.from_pretrained(path),
        args=config(**settings),
        train_dataset=solutions() if data is None else data,
        processing_class=AutoTokenizer.from_pretrained(path),
        callbacks=list(callbacks),
    )


def stock(path, folder, **options):
    return made(SFTTrainer, SFTConfig, path, folder, **options)


def ours(path, folder, **options):
    return made(DPPOSFTTrainer, DPPOSFTConfig, path, folder, **options)


def trained(make, path, folder, **options):
    """Gradients of every step, and the trainer."""
    recorder = GradientRecorder()
    trainer = make(path, folder, callbacks=[recorder], **options)
    trainer.train()
    return recorder.steps, trainer


def flat(gradient):
    return torch.cat([g.double().flatten() for _, g in sorted(gradient.items())])
