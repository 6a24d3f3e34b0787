"""A run with vLLM in its process: what it was asked, what it gave, and how far its log-probabilities are from ours.

    python training.py FOLDER MODEL [--checkpoint CHECKPOINT] [--steps N] [--head stale]
"""

import argparse
import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
import trl.generation.vllm_generation as vllm_generation
import vllm._custom_ops
from datasets import Dataset

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


def build(model: str, folder: Path, steps: int) -> DPPOTrainer:
    args = DPPOConfig(
        str(folder / "run"),
        use_vllm=True,
        vllm_gpu_memory_utilization=0.05,
        prompt_prune_rate=0.5,
        completion_prune_rate=0.5,
        completion_score="confidence",
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
    )
    rows = [{"prompt": [{"role": "user", "content": f"{i}+{i % 3}=?"}]} for i in range(8)]
    return DPPOTrainer(model, reward, args=args, train_dataset=Dataset.from_list(rows))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("model")
    parser.add_argument("--checkpoint")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--head", choices=("tied", "stale"), default="tied")
    given = parser.parse_args()

    vllm._custom_ops._supports_onednn = False  # oneDNN keeps copies of the weights, which a sync does not reach
    vllm_generation.LLM = partial(vllm_generation.LLM, dtype="float32", enforce_eager=True)
    trainer = build(given.model, given.folder, given.steps)
    seen, engine = watched(trainer), trainer.vllm_generation
    if given.head == "stale":
        sampler = engine.llm.llm_engine.model_executor.driver_worker.model_runner.model
        sampler.lm_head = copy.deepcopy(sampler.lm_head)
    trainer.train(resume_from_checkpoint=given.checkpoint)
    engine.sync_weights()
    engine.generate(seen[-1]["prompts"], None, GROUP)  # after the last step, which no generation follows
    logged = [row for row in trainer.state.log_history if "loss" in row]
    (given.folder / "result.json").write_text(json.dumps({"seen": seen, "logged": logged}))


if __name__ == "__main__":
    main()
