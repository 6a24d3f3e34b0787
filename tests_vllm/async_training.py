"""The asynchronous trainer with a server and TRL's worker process: requests out, whole groups back, weights by file.

python async_training.py FOLDER MODEL --server URL
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoTokenizer
from trl.experimental.async_grpo.vllm_client import VLLMClient
from weights_by_file import numbered

from dppo.trl import DPPOAsyncConfig, DPPOAsyncTrainer
from dppo.trl.async_grpo import steps

GROUP, TOKENS, STEPS = 4, 12, 5
RESPONSES = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<assistant>",
    "fields": {"content": {"close_pattern": r"<eos>\s*|$", "content": "text"}},
}
"""How TRL's worker reads an answer: it knows the templates of public chat models alone."""


class ByFile:
    """TRL's weight transfer with files in place of NCCL."""

    def __init__(self, client: VLLMClient, folder: Path) -> None:
        self.client, self.folder, self.files = client, folder, numbered(folder)

    def init_weight_transfer(self) -> None:
        self.client.wait_for_server_ready()
        self.client.init_weight_transfer_engine({"folder": str(self.folder)})

    def pause(self) -> None:
        self.client.pause()

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        weights = {name: value.clone().contiguous() for name, value in iterator}
        save_file(weights, next(self.files))
        self.client.start_weight_update()
        shapes = [list(value.shape) for value in weights.values()]
        dtypes = [str(value.dtype).split(".")[-1] for value in weights.values()]
        self.client.update_weights({"names": list(weights), "dtype_names": dtypes, "shapes": shapes})
        self.client.finish_weight_update()

    def resume(self) -> None:
        self.client.resume()

    def destroy(self) -> None:
        pass


def reward(completions: list, **columns: Any) -> list[float]:
    """Of each completion, the share of its tokens that are a one; it runs in the worker's process."""
    return [completion[0]["content"].count("1") / TOKENS for completion in completions]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("model")
    parser.add_argument("--server", required=True)
    given = parser.parse_args()
    args = DPPOAsyncConfig(
        str(given.folder / "run"),
        vllm_server_base_url=given.server,
        completion_prune_rate=0.3,
        log_metrics="all",
        num_generations=GROUP,
        per_device_train_batch_size=2 * GROUP,
        gradient_accumulation_steps=2,
        max_completion_length=TOKENS,
        max_staleness=1,
        learning_rate=1e-3,
        max_steps=STEPS,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
    )
    rows = [{"prompt": [{"role": "user", "content": f"{i}+{i % 3}=?"}]} for i in range(12)]
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    tokenizer.response_template = RESPONSES
    trainer = DPPOAsyncTrainer(
        given.model,
        reward,
        processing_class=tokenizer,
        args=args,
        train_dataset=Dataset.from_list(rows),
        weight_transfer=ByFile(VLLMClient(given.server), given.folder),
    )
    groups, original = [], steps.planned

    def look(session: Any, requested: Any, found: list, number: int, done: float) -> Any:
        for group, row in zip(found, requested.prompts.row_Q.tolist(), strict=True):
            prompts = {tuple(s.input_ids[: int((s.completion_mask == 0).sum())].tolist()) for s in group.samples}
            groups.append({"step": number, "row": row, "completions": len(group.completions), "prompts": len(prompts)})
        return original(session, requested, found, number, done)

    steps.planned = look
    trainer.train()
    logged = [row for row in trainer.state.log_history if "loss" in row]
    (given.folder / "result.json").write_text(json.dumps({"groups": groups, "logged": logged}))


if __name__ == "__main__":
    main()
