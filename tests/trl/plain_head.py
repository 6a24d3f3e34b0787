"""Log-probabilities by plain torch in place of TRL 1.15's own kernel, which needs Triton and a GPU."""

from types import SimpleNamespace

import torch
from torch.nn.functional import linear
from trl.trainer import utils


def log_probs(hidden, weight, bias, targets, temperature, chunk_size, softcap=None, logit_scale=1.0, outputs=()):
    """What TRL's kernel returns: log-probabilities, entropies, log of summed squares, mean logit, argmax or not."""
    logits = linear(hidden, weight, bias).float() * logit_scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logits = logits / temperature
    log_p = logits.log_softmax(-1)
    found = {
        "entropy": lambda: -(log_p.exp() * log_p).sum(-1),
        "log_sum_sq_probs": lambda: (2 * log_p).logsumexp(-1).detach(),
        "mean_logits": lambda: logits.mean(-1).detach(),
        "is_top1": lambda: logits.argmax(-1) == targets,
    }
    chosen = log_p.gather(-1, targets[:, None])[:, 0]
    return (chosen, *(value() if name in outputs else None for name, value in found.items()))


def put_in_place():
    """Give TRL this head where it found no kernel of its own; newer versions have one for the CPU."""
    if utils._ChunkedLogProbFunction is None:
        utils._ChunkedLogProbFunction = SimpleNamespace(apply=log_probs)
