"""Generation by ``model.generate``: runs wherever transformers does, on a CPU too."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from answer_judge.errors import ConfigError, EvaluationError, in_one_line
from answer_judge.evaluation.engines import Engine, Generated, ModelSpec, Request, end_tokens, finished
from answer_judge.evaluation.prompts import load_tokenizer, prompt_format
from answer_judge.evaluation.sampling import Sampling, generator

BATCH_SIZE = 32


def load(spec: ModelSpec) -> Engine:
    """The engine with its model on the accelerator if there is one; ``ConfigError``: it cannot be loaded."""
    tokenizer = load_tokenizer(spec)
    known = {"dtype": spec.dtype, "revision": spec.revision, "trust_remote_code": spec.trust_remote_code}
    try:
        model = AutoModelForCausalLM.from_pretrained(spec.model, **known, **spec.engine_options)
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"model {spec.model} cannot be loaded: {in_one_line(error)}") from error
    if "device_map" not in spec.engine_options and torch.accelerator.is_available():
        cast(Any, model).to(torch.accelerator.current_accelerator())
    known = {"batch_size": spec.batch_size, "chat_options": spec.chat_options}
    return of_model(model, tokenizer, identity=spec.identity, **known)


def of_model(
    model: Any,
    tokenizer: Any,
    *,
    batch_size: int | None = None,
    chat_options: Any = None,
    identity: Any = None,
) -> Engine:
    """The engine of a model in memory, whose mode stays; ``identity`` is the model's among the engine's facts."""
    template = prompt_format(tokenizer, chat_options)
    ends = end_tokens(tokenizer, model.generation_config)
    notes = () if ends else ("the model has no end token: every completion runs to its limit",)

    def generate(requests: Sequence[Request], sampling: Sampling) -> list[Generated]:
        with _for_generation(model):
            rows = _tokens(model, requests, sampling, ends)
        texts = tokenizer.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        ended = [bool(row) and row[-1] in ends for row in rows]
        return [finished(text, len(row), end, template.stop) for text, row, end in zip(texts, rows, ended, strict=True)]

    return Engine(
        name="transformers",
        encode=template.encode,
        generate=generate,
        batch_size=batch_size or BATCH_SIZE,
        longest=getattr(model.config.get_text_config(), "max_position_embeddings", None),
        facts={**(identity or {}), **template.facts, "transformers": transformers.__version__},
        notes=(*template.notes, *notes),
    )


def _tokens(model: Any, requests: Sequence[Request], sampling: Sampling, ends: list[int]) -> list[list[int]]:
    """Token ids of each completion, up to and with its end token."""
    width = max(len(request.prompt) for request in requests)
    pad = ends[0] if ends else 0
    ids = torch.tensor([[pad] * (width - len(r.prompt)) + list(r.prompt) for r in requests], device=model.device)
    mask = torch.tensor([[0] * (width - len(r.prompt)) + [1] * len(r.prompt) for r in requests], device=model.device)
    # The choice is made by the processor: what generate adds to it must be nothing.
    chosen = LogitsProcessorList([ChooseTokens([request.seed for request in requests], sampling, width)])
    fixed = {"do_sample": False, "use_cache": True, "eos_token_id": ends or None, "pad_token_id": pad}
    settings = GenerationConfig(max_new_tokens=sampling.max_new_tokens, **fixed)
    try:
        out = model.generate(input_ids=ids, attention_mask=mask, generation_config=settings, logits_processor=chosen)
    except torch.OutOfMemoryError as error:
        raise EvaluationError(
            f"{len(requests)} completions of up to {width} + {sampling.max_new_tokens} tokens do not fit into memory: "
            f"--batch_size {max(1, len(requests) // 2)} goes on from here"
        ) from error
    rows = out[:, width:].tolist()
    return [row[: next((place for place, token in enumerate(row) if token in ends), len(row)) + 1] for row in rows]


class ChooseTokens(LogitsProcessor):
    """Leaves the one token that each completion's own random numbers choose, independent of the rest of the batch.

    There is one seed per completion; ``prompt_tokens`` is the width of the padded prompts.
    """

    def __init__(self, seeds: Sequence[int], sampling: Sampling, prompt_tokens: int) -> None:
        draws = [generator(seed).random(sampling.max_new_tokens) for seed in seeds]
        self.uniform_BT = torch.from_numpy(np.stack(draws))
        self.sampling, self.prompt_tokens = sampling, prompt_tokens

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """(B, V) scores that are 0 at each row's token and -inf elsewhere. ``EvaluationError``: NaN logits."""
        if bool(scores.isnan().any()):
            raise EvaluationError("the model gives logits that are not numbers: try --dtype float32")
        precise = torch.float32 if scores.device.type == "mps" else torch.float64
        if self.sampling.temperature == 0:
            token_B1 = scores.argmax(1, keepdim=True)
        else:
            uniform_B1 = self.uniform_BT[:, input_ids.shape[1] - self.prompt_tokens, None].to(scores.device, precise)
            token_B1 = draw(scores.to(precise) / self.sampling.temperature, uniform_B1, self.sampling)
        return torch.full_like(scores, -torch.inf).scatter_(1, token_B1, 0.0)


def draw(logits_BV: Tensor, uniform_B1: Tensor, sampling: Sampling) -> Tensor:
    """(B, 1) the token that each uniform number falls on, of (B, V) logits that are divided by the temperature already.

    The number, in [0, 1), is compared with the running sum of the probabilities: over the vocabulary in its order, or
    from the most likely token down where ``top_p`` or ``top_k`` leave tokens out.
    """
    prob_BV = logits_BV.softmax(1)
    order_BV = None
    if sampling.top_p < 1 or sampling.top_k:
        prob_BV, order_BV = prob_BV.sort(dim=1, descending=True, stable=True)
        before_BV = prob_BV.cumsum(1) - prob_BV
        prob_BV = prob_BV.masked_fill(before_BV >= sampling.top_p, 0.0)
        if sampling.top_k:
            prob_BV[:, sampling.top_k :] = 0.0
    sum_BV = prob_BV.cumsum(1)
    total_B1 = sum_BV[:, -1:]
    # Below the total, which rounding could reach: beyond it stand tokens that were left out.
    target_B1 = torch.minimum(uniform_B1 * total_B1, torch.nextafter(total_B1, torch.zeros_like(total_B1)))
    place_B1 = torch.searchsorted(sum_BV, target_B1, right=True)
    return place_B1 if order_BV is None else order_BV.gather(1, place_B1)


@contextmanager
def _for_generation(model: PreTrainedModel) -> Iterator[None]:
    """The model in evaluation mode, without gradients, and without the sampling defaults of its folder."""
    training, defaults = model.training, model.generation_config
    model.eval()
    model.generation_config = GenerationConfig()
    try:
        with torch.no_grad():
            yield
    finally:
        model.generation_config = defaults
        model.train(training)
