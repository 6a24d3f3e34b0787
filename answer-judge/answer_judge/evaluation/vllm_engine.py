"""Generation by vLLM, imported only when asked for."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from packaging.version import Version
from transformers import AutoConfig, GenerationConfig

from answer_judge.errors import ConfigError, EvaluationError, in_one_line
from answer_judge.evaluation.engines import Engine, Generated, ModelSpec, Request, end_tokens, finished
from answer_judge.evaluation.prompts import load_tokenizer, prompt_format
from answer_judge.evaluation.sampling import Sampling

OLDEST, BEFORE = "0.22", "0.31"
"""Versions of vLLM that this was written for; of these 0.30 was run."""
BATCH_SIZE = 2048
"""Requests handed over at once; vLLM fills its own batches from them."""


def load(spec: ModelSpec) -> Engine:
    """The engine with its model loaded; its kernels may round differently in batches of another size.

    ``ConfigError``: vLLM is not installed or not supported, or a model or tokenizer cannot be loaded.
    """
    vllm = _module()
    folder = Path(spec.model).expanduser()
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise ConfigError(
            f"model {spec.model} is an adapter without its model. Leave --engine vllm out, or save it merged "
            "(peft's merge_and_unload)."
        )
    tokenizer = load_tokenizer(spec)
    template = prompt_format(tokenizer, spec.chat_options)
    options = {"trust_remote_code": spec.trust_remote_code, "seed": 0, **spec.engine_options}
    known = {"tokenizer": spec.tokenizer or spec.model, "revision": spec.revision, "dtype": _dtype(spec)}
    try:
        llm = vllm.LLM(model=spec.model, **known, **options)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise ConfigError(f"model {spec.model} cannot be loaded by vLLM: {in_one_line(error)}") from error
    ends = end_tokens(tokenizer, _generation_config(spec))

    def generate(requests: Sequence[Request], sampling: Sampling) -> list[Generated]:
        prompts = [{"prompt_token_ids": list(request.prompt)} for request in requests]
        settings = [vllm.SamplingParams(**_settings(request, sampling, ends, template.stop)) for request in requests]
        try:
            outputs = [output.outputs[0] for output in llm.generate(prompts, settings, use_tqdm=False)]
        except Exception as error:  # vLLM raises many types; its engine has ended
            raise EvaluationError(
                f"vLLM failed while it generated ({in_one_line(error)}). The same command goes on from there."
            ) from error
        return [finished(out.text, len(out.token_ids), out.finish_reason == "stop", template.stop) for out in outputs]

    return Engine(
        name="vllm",
        encode=template.encode,
        generate=generate,
        batch_size=spec.batch_size or BATCH_SIZE,
        longest=llm.llm_engine.model_config.max_model_len,
        facts={**spec.identity, **template.facts, "vllm": vllm.__version__},
        notes=template.notes,
    )


def _dtype(spec: ModelSpec) -> str:
    """``auto`` is what the model was saved as; vLLM's own ``auto`` turns float32 into bfloat16 without a word."""
    if spec.dtype != "auto":
        return spec.dtype
    try:
        config = AutoConfig.from_pretrained(
            spec.model, revision=spec.revision or "main", trust_remote_code=spec.trust_remote_code
        )
    except Exception:  # of remote code, too
        return "auto"  # vLLM may know what transformers does not
    return str(config.dtype).removeprefix("torch.") if config.dtype is not None else "auto"


def _settings(request: Request, sampling: Sampling, ends: list[int], stop: str | None) -> dict[str, Any]:
    """The arguments of ``SamplingParams`` for one request: all of them, so that no default of the model's applies."""
    return {
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": sampling.max_new_tokens,
        "seed": request.seed,
        "stop": [stop] if stop else None,
        "stop_token_ids": ends,
        "skip_special_tokens": True,
    }


def _generation_config(spec: ModelSpec) -> Any:
    """The model's generation defaults, for its end tokens; None where it has none."""
    try:
        return GenerationConfig.from_pretrained(spec.model, revision=spec.revision or "main")
    except OSError:
        return None


def _module() -> Any:
    """The module ``vllm``, of a version that this was written for."""
    line = f"pip install 'vllm>={OLDEST},<{BEFORE}', or --engine transformers"
    try:
        vllm: Any = import_module("vllm")
    except ImportError as error:
        raise ConfigError(f"--engine vllm: vLLM is not installed ({error}): {line}") from error
    numbered = vllm.__version__[:1].isdigit()  # builds from a checkout may have no number
    if numbered and not Version(OLDEST) <= Version(Version(vllm.__version__).base_version) < Version(BEFORE):
        raise ConfigError(f"--engine vllm: vLLM {vllm.__version__} is not supported: {line}")
    return vllm
