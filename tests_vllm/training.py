"""A run with vLLM in its process: what it was asked, what it gave, and how far its log-probabilities are from ours.

python training.py FOLDER MODEL [--checkpoint CHECKPOINT] [--steps N] [--head stale] [--server URL]
"""

import argparse
import copy
import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
import trl.generation.vllm_generation as vllm_generation
from datasets import Dataset
from weights_by_file import send_by_file

from dppo.trl import DPPOConfig, DPPOTrainer

GROUP, TOKENS = 4, 16


def largest_difference(model: Any, prompts: list, completions: list, logprobs: list) -> float:
    """Of the sampler's log-probabilities to those of a plain forward pass of each sequence by itself, in nats."""
    found = 0.0
    for prompt, completion, sampled in zip(prompts, completions, logprobs, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
        ours = logits.float().log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]
        found = max(found, float((ours - torch.tensor([each[0] for each in sampled])).abs().max()))
    return found


def shifted(logprobs: list) -> list:
    """Every log-probability in the place of the token after its own."""
    return [[*sequence[-1:], *sequence[:-1]] for sequence in logprobs]


def watched(trainer: DPPOTrainer) -> list[dict[str, Any]]:
    """What every call of vLLM will have been, once it was made."""
    engine, seen = trainer.vllm_generation, []
    generate = engine.generate

    def look(prompts: list, *args: Any, **kwargs: Any) -> tuple:
        output = generate(prompts, *args, **kwargs)
        _, completions, logprobs, _ = output
        difference = partial(largest_difference, trainer.model, prompts, completions)
        seen.append(
            {
                "steps_taken": trainer.state.global_step,
                "prompts": prompts,
                "completions": completions,
                "difference": difference(logprobs),
                "difference_shifted": difference(shifted(logprobs)),
            }
        )
        return output

    engine.generate = look
    return seen


def reward(completions: list, **columns: Any) -> list[float]:
    return [completion[0]["content"].count("1") / TOKENS for completion in completions]


def build(model: str, folder: Path, steps: int, **options: Any) -> DPPOTrainer:
    args = DPPOConfig(
        str(folder / "run"),
        use_vllm=True,
        vllm_gpu_memory_utilization=0.05,
        prompt_prune_rate=0.5,
        completion_prune_rate=0.5,
        completion_score="uncertainty",
        loss_type="dr_grpo",
        num_generations=GROUP,
        per_device_train_batch_size=4 * GROUP,
        max_completion_length=TOKENS,
        learning_rate=1e-2,
        max_steps=steps,
        save_strategy="steps",
        save_steps=1,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
        **options,
    )
    rows = [{"prompt": [{"role": "user", "content": f"{i}+{i % 3}=?"}]} for i in range(8)]
    return DPPOTrainer(model, reward, args=args, train_dataset=Dataset.from_list(rows))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("model")
    parser.add_argument("--checkpoint")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--head", choices=("tied", "stale"), default="tied")
    parser.add_argument("--sampler_dtype", choices=("float32", "auto"), default="float32")
    parser.add_argument("--server", help="its address; by default vLLM runs in this process")
    return parser.parse_args()


def main() -> None:
    given, options = parsed(), {}
    if given.server:
        send_by_file(given.folder)
        options = {"vllm_mode": "server", "vllm_server_base_url": given.server}
    vllm_generation.LLM = partial(vllm_generation.LLM, dtype=given.sampler_dtype, enforce_eager=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = build(given.model, given.folder, given.steps, **options)
    seen, engine = watched(trainer), trainer.vllm_generation
    if given.head == "stale":
        sampler = engine.llm.llm_engine.model_executor.driver_worker.model_runner.model
        sampler.lm_head = copy.deepcopy(sampler.lm_head)
    trainer.train(resume_from_checkpoint=given.checkpoint)

    # After the last step, which no generation follows: once with the weights from before it, and once synced.
    prompts = seen[-1]["prompts"]
    engine.generate(prompts, None, GROUP)
    behind = seen.pop()["difference"]
    engine.sync_weights()
    engine.generate(prompts, None, GROUP)
    logged = [row for row in trainer.state.log_history if "loss" in row]
    said = [str(warning.message) for warning in caught]
    found = {"seen": seen, "difference_one_step_behind": behind, "logged": logged, "warned": said}
    (given.folder / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
