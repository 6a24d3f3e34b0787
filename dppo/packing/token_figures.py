"""What is measured of the distribution at each scored token, without a gradient: by blocks, as the head itself."""

import torch
from torch import Tensor
from torch.nn import functional as F

TOKEN_FIGURES = ("entropy", "is_top1", "mean_logits", "log_sum_sq_probs")
"""In nats; whether the token is the likeliest; over the vocabulary the mean of the logits, and the log of the sum of
squared probabilities. The names are those of TRL's fused head."""


@torch.no_grad()
def token_figures(
    hidden_LD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, target_L: Tensor, *, block: int
) -> dict[str, Tensor]:
    """(L,) of each of ``TOKEN_FIGURES``, float32 or more; ``is_top1`` is bool.

    Args:
        hidden_LD: (L, D) what the head is applied to.
        weight_VD: (V, D) of the head.
        bias_V: (V,) or None.
        target_L: (L,) int64 tokens.
        block: tokens whose logits exist at one time, >= 1.
    """

    def of_block(hidden: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        logits = F.linear(hidden, weight_VD, bias_V)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        logp = logits.log_softmax(1)
        entropy = -(logp.exp() * logp).sum(1)
        return entropy, logits.argmax(1) == target, logits.mean(1), (2 * logp).logsumexp(1)

    blocks = [of_block(*each) for each in zip(hidden_LD.split(block), target_L.split(block), strict=True)]
    return {name: torch.cat(parts) for name, parts in zip(TOKEN_FIGURES, zip(*blocks, strict=True), strict=True)}
