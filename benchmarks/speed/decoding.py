"""Rollouts by transformers: CPU seconds where a prompt is read once for each completion, and once for its group.

python -m benchmarks.speed.decoding MODEL [--repetitions 3] [--output benchmarks/results/decoding.json]

MODEL is a folder with a chat model. 64 completions of 24 tokens: 8 completions of each of 8 questions, in turns.
"""

import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from benchmarks.shared import Record, in_turns, options, seconds_of, spread_with_ends, write
from dppo.environment import one_thread
from dppo.trl.generation import prompts_read_once

QUESTIONS, GROUP, TOKENS = 8, 8, 24


def generated(model: Any, tokenizer: Any, *, shared: bool) -> None:
    """Sample completions of ``TOKENS`` tokens; ``shared`` reads each question once."""
    asked = [[{"role": "user", "content": f"What is {number} + 7?"}] for number in range(QUESTIONS)]
    texts = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer([text for text in texts for _ in range(GROUP)], return_tensors="pt", padding=True)
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = GenerationConfig(max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=True, top_k=0, **ends)
    trainer = SimpleNamespace(model=model, accelerator=Accelerator(cpu=True))
    with torch.no_grad(), prompts_read_once(trainer) if shared else nullcontext():
        model.generate(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], generation_config=config)


def measured(folder: Path, repetitions: int) -> list[Record]:
    """A row for each way."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ways = {"once for each completion": False, "once for its group": True}
    runs = {
        name: partial(seconds_of, partial(generated, model, tokenizer, shared=shared), time.process_time)
        for name, shared in ways.items()
    }
    return [
        {"prompts_are_read": name, "unit": "CPU s", **spread_with_ends(taken)}
        for name, taken in in_turns(runs, repetitions).items()
    ]


def main() -> int:
    """Measure, print and write."""
    parser = options(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--repetitions", type=int, default=3)
    given = parser.parse_args()
    with one_thread():
        rows = measured(given.model, given.repetitions)
    for row in rows:
        print(f"{row['prompts_are_read']}: {row['median']:.1f} CPU s [{row['lowest']:.1f}, {row['highest']:.1f}]")
    write(given.output, rows, [])
    return 0


if __name__ == "__main__":
    sys.exit(main())
