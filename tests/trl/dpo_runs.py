"""Short runs of the tiny model on pairs, by TRL's trainer and ours."""

import torch
from datasets import Dataset
from sft_runs import made, words
from tiny_runs import LOG_ALL
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

from dppo.trl import DPPODPOConfig, DPPODPOTrainer
from dppo.trl.rows.pairs import SERVED_LOSSES


def pairs(count=10):
    answers = [(words(i, 2 + i % 4), words(3 * i, 1 + i % 5), words(5 * i + 1, 1 + (i + 2) % 4)) for i in range(count)]
    return Dataset.from_list([{"prompt": each, "chosen": f" {a}", "rejected": f" {b}"} for each, a, b in answers])


def compared(kind, config, path, folder, *, data=None, own=None, near=0.9, **options):
    """A trainer with a reference that differs from the policy, by its weights times ``near``."""
    reference = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(near)
    own = {"ref_model": reference, **(own or {})}
    return made(kind, config, path, folder, data=pairs() if data is None else data, own=own, **{"beta": 0.5, **options})


def stock(path, folder, **options):
    return compared(DPOTrainer, DPOConfig, path, folder, **options)


def ours(path, folder, **options):
    return compared(DPPODPOTrainer, DPPODPOConfig, path, folder, **LOG_ALL | options)


def by_length(prompts, completions, **_):
    """A reward model that likes short answers."""
    return [-float(len(text.split())) for text in completions]


RPO = {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.3]}
LOSSES = {name: {"loss_type": name} for name in SERVED_LOSSES} | {
    "exo_pair": {"loss_type": "exo_pair", "label_smoothing": 1e-3},
    "robust": {"loss_type": "robust", "label_smoothing": 0.2},
    "several": {"loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0]},
    "forward_kl": {"f_divergence_type": "forward_kl"},
    "js_divergence": {"f_divergence_type": "js_divergence"},
    "alpha_divergence": {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.3},
    "ld_alpha": {"ld_alpha": 0.4},
    "ld_alpha, before": {"ld_alpha": 0.4, "precompute_ref_log_probs": True},
    "wpo": {"use_weighting": True},
    "wpo, ipo": {"use_weighting": True, "loss_type": "ipo"},
}
