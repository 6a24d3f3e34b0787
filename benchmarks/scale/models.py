"""Verdicts of packed rows, or of the self-check before them, on every causal type of transformers, tiny and random.

python -m benchmarks.scale.models [--only qwen3,llama] [--output benchmarks/results/models.json]

A type trains in rows, trains with padding (``layout: auto``), stops with the line to change (``STOPS``), is refused
because of its head, or cannot be made this small. ``wrong`` are rows that passed and are off; the reference for that is
the model's own logits in float32, one sequence at a time.
"""

import contextlib
import io
import sys
import warnings
from collections import Counter
from itertools import product
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging
from trl.trainer.utils import add_fused_lm_head

from benchmarks.shared import Record, options, write
from dppo.errors import first_line
from dppo.packing import build_row, choose_kernel
from dppo.packing.attention import unsupported, use_rows
from dppo.packing.check import check_head, check_rows
from dppo.packing.forward import row_log_probs
from dppo.packing.head import add_scored_head, unsupported_head

SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "max_position_embeddings"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok"), 4),
    **dict.fromkeys(("num_attention_heads", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 8),
    **dict(vocab_size=128, moe_intermediate_size=32, num_hidden_layers=2, num_key_value_heads=2, d_kv=16),
    **dict(pad_token_id=0, bos_token_id=2, eos_token_id=1),
}
"""Of every configuration that has these; a field that a type does not take is left out."""
LARGEST = 40_000_000
"""Parameters of a type that did not get small, which is passed over."""
STOPS = "asks for padding"
"""The self-check stops ``layout: rows`` with the line to change; ``layout: auto`` goes on with padding."""
WRONG = 0.05
"""Nats by which rows that passed in float32 may not be off."""


def tiny(name: str, **sizes: Any) -> Any:
    """A model of a type with few parameters; ``sizes`` go before those above."""
    kind = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name])
    text = kind.config_class().get_text_config()
    names = {*vars(text), *type(text).attribute_map, *getattr(text, "attribute_map", {})}
    given = {key: value for key, value in (SIZES | sizes).items() if key in names}
    if "qk_rope_head_dim" in given:  # multi-head latent attention: head_dim is that of the rotary part
        given |= {"head_dim": given["qk_rope_head_dim"], "num_key_value_heads": given["num_attention_heads"]}
    if layers := getattr(text, "layer_types", None):
        given["layer_types"] = list(layers)[: SIZES["num_hidden_layers"]]
    if any(isinstance(getattr(type(text), key, None), property) for key in ("layer_types", "layers_block_type")):
        given.pop("layer_types", None)  # follows from other fields
    config = type(text)(**given)
    torch.manual_seed(0)
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in kind(config).parameters())
    if count > LARGEST:
        raise ValueError(f"{count / 1e6:.0f} million parameters at the smallest sizes tried")
    model = kind(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
    return model.eval()


def verdict(name: str, dtype: torch.dtype) -> tuple[str, str]:
    """Treatment of a type in a run, and the reason."""
    try:
        model = tiny(name).to(dtype)
        with torch.no_grad():
            model(input_ids=torch.tensor([[3, 4, 5, 6]]), use_cache=False)
    except Exception as error:  # of a type that is not made to be tiny, or not for this library alone
        return "not built", _line(error)
    reason = unsupported(model)
    try:
        add_fused_lm_head(model)
        if not reason and not unsupported_head(model):
            add_scored_head(model)
        found = check_head(model, temperature=1.0)
    except Exception as error:
        return "refused", f"head: {_line(error)}"
    if not found.passed:
        return "refused", f"head: {found}"
    if reason:
        return "padded", reason
    kernel = choose_kernel(torch.device("cpu"), dtype, SIZES["head_dim"])
    use_rows(model)
    try:
        rows = check_rows(model, temperature=1.0, kernel=kernel)
    except Exception as error:
        return STOPS, _line(error)
    if not rows.passed:
        return STOPS, str(rows)
    off = difference(model, kernel) if dtype == torch.float32 else 0.0
    return "wrong" if off > WRONG else "rows", f"{off:.1e} nats"


@torch.no_grad()
def difference(model: Any, kernel: Any) -> float:
    """Largest difference, in nats, between rows of other sequences than the check's and the model's own logits."""
    draws = torch.Generator().manual_seed(5)
    prompts = [torch.randint(3, 100, (size,), generator=draws) for size in (3, 3, 12)]
    answers = [torch.randint(3, 100, (size,), generator=draws) for size in (20, 9, 14)]
    prompts[1] = prompts[0]
    found = row_log_probs(model, build_row(prompts, answers, [0, 0, 1]), 20, kernel=kernel)[0]
    worst = 0.0
    for prompt, answer, logp in zip(prompts, answers, found, strict=True):
        ids = torch.cat([prompt, answer])[None]
        own = model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(1)
        own = own.gather(1, ids[0, 1:, None])[len(prompt) - 1 :, 0]
        worst = max(worst, float((own - logp[: len(answer)]).abs().max()))
    return worst


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"[:160]


def main() -> int:
    """Print a table, write JSON; 1 if anything is wrong."""
    parser = options(__doc__)
    parser.add_argument("--only", help="types, such as qwen3,llama; all by default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    names = arguments.only.split(",") if arguments.only else sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    rows: list[Record] = []
    print("| type | dtype | verdict | why |\n|---|---|---|---|")
    for name, dtype in product(names, (torch.float32, torch.bfloat16)):
        if rows and rows[-1]["type"] == name and rows[-1]["verdict"] == "not built":
            continue
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            found = dict(zip(("verdict", "why"), verdict(name, dtype), strict=True))
        rows.append({"type": name, "dtype": str(dtype).removeprefix("torch."), **found})
        print("| {type} | {dtype} | {verdict} | {why} |".format(**rows[-1]), flush=True)
    print(f"\n{dict(Counter(found['verdict'] for found in rows))}")
    write(arguments.output, rows, seeds=[0, 5])
    return int(any(found["verdict"] == "wrong" for found in rows))


if __name__ == "__main__":
    sys.exit(main())
