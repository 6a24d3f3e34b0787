"""Generation by transformers that reads a prompt once for all its completions.

Prompts go through the model once, without their last token; ``generate`` goes on from their keys and values, repeated
for each completion (transformers, "Reuse a cache for multiple generations"). Logits are equal to rounding, and random
numbers are drawn as before.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from accelerate.utils import DistributedType
from torch import Tensor
from transformers import DynamicCache, GenerationConfig
from transformers.cache_utils import DynamicLayer


def prompts_read_once(trainer: Any) -> AbstractContextManager[Any]:
    """A context in which ``generate`` of a trainer's model reads equal prompts of neighbouring rows once.

    No effect with sharded weights, pictures, or another cache than one of all keys and values.
    """
    model, kind = trainer.accelerator.unwrap_model(trainer.model), trainer.accelerator.distributed_type
    # Ranks with shards call the model together: one more call on one rank would hang.
    sharded = kind in (DistributedType.FSDP, DistributedType.DEEPSPEED)
    dynamic = getattr(model, "_supports_default_dynamic_cache", lambda: False)()
    if sharded or model.config.is_encoder_decoder or not dynamic:
        return nullcontext()
    if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=model.config).layers):
        return nullcontext()
    return patch.object(model, "generate", partial(_generate, model.generate))


def _generate(generate: Callable[..., Tensor], **inputs: Any) -> Tensor:
    if inputs.keys() != {"input_ids", "attention_mask", "generation_config"}:  # a prompt with pictures has more
        return generate(**inputs)
    config: GenerationConfig = inputs["generation_config"]
    usual_cache = config.use_cache is not False and config.cache_implementation is None
    one_each = config.num_beams in (None, 1) and config.num_return_sequences in (None, 1)
    rows = _repeated(inputs["input_ids"], inputs["attention_mask"]) if usual_cache and one_each else None
    if rows is None:
        return generate(**inputs)
    first_P, prompt_B = rows
    cache = DynamicCache()
    # The token that it writes is not used: the call below draws the first one.
    generate(
        input_ids=inputs["input_ids"][first_P, :-1],
        attention_mask=inputs["attention_mask"][first_P, :-1],
        generation_config=GenerationConfig(
            max_new_tokens=1, do_sample=False, pad_token_id=config.pad_token_id, eos_token_id=config.eos_token_id
        ),
        past_key_values=cache,
    )
    cache.batch_select_indices(prompt_B)
    return generate(**inputs, past_key_values=cache)


def _repeated(ids_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor] | None:
    """(P,) the first row of each run of equal prompts, and (B,) the run of each row; None if no two are equal."""
    if ids_BT.shape[1] < 2:
        return None
    _, run_B = torch.unique_consecutive(torch.stack([ids_BT, mask_BT], 1), return_inverse=True, dim=0)
    count = int(run_B[-1]) + 1
    if count == len(run_B):
        return None
    return torch.searchsorted(run_B, torch.arange(count, device=run_B.device)), run_B
