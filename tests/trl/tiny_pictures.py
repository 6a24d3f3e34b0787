"""Problems with pictures for tiny vision-language models, and scripted rollouts."""

import hashlib
import json

import numpy as np
from datasets import Dataset, Features, Image, List, Value
from tiny_runs import GENERATIONS
from trl_gradients import dppo_run, trl_run

from benchmarks.swap.pictures import FIRST_WORD, VOCABULARY, WORDS, picture, seeded


def saved_model(kind: str, path):
    """The path of a tiny model on disk, and its processor."""
    model, processor = seeded(kind)
    model.save_pretrained(path)
    return str(path), processor


def seen_problems(count: int, *, alone: bool = False) -> Dataset:
    """Problems of which the text is one of two, with no picture, one or two; or ``alone``, one of a size."""
    rows = [
        {
            "prompt": [{"role": "user", "content": " ".join(WORDS[: 2 + i % 2])}],
            "images": [picture(3 * i)] if alone else [picture(10 * i + j) for j in range((i + 1) % 3)],
            "answer": str(i),
        }
        for i in range(count)
    ]
    message = {"role": Value("string"), "content": Value("string")}
    features = Features({"prompt": List(message), "images": List(Image()), "answer": Value("string")})
    return Dataset.from_list(rows, features=features)


def written(prompts, trainer):
    """Completions by the prompt with its pictures and the place in the group, nothing else."""
    seen, ids = {}, trainer._tokenize_prompts(prompts)[0]
    output = {"prompt_ids": [list(each) for each in ids], "completion_ids": [], "logprobs": []}
    for prompt in prompts:
        key = json.dumps(prompt, default=lambda value: hashlib.md5(value.tobytes()).hexdigest())
        ordinal = seen[key] = seen.get(key, -1) + 1
        digest = hashlib.blake2b(f"{key}/{ordinal % GENERATIONS}".encode(), digest_size=8).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "little"))
        length = int(rng.integers(2, 10))
        output["completion_ids"].append([*rng.integers(FIRST_WORD, VOCABULARY, length).tolist(), 1])
        output["logprobs"].append(rng.uniform(-2, -0.05, length + 1).tolist())
    return output


def words_reward(prompts, completions, **_):
    """0, 1 or 2 by the completion's words."""
    return [float(len(each[0]["content"].split()) % 3) for each in completions]


def seen_run(run, model, tmp_path, *, prompts=6, data=None, **options):
    """Gradients of each step, and the trainer."""
    path, processor = model
    own = {"rollout": written, "reward": words_reward, "data": seen_problems(prompts) if data is None else data}
    return run(path, tmp_path, prompts=prompts, processing_class=processor, **own | options)


def mine(*args, **options):
    return seen_run(dppo_run, *args, **{"completion_prune_rate": 0.0, **options})


def stock(*args, **options):
    return seen_run(trl_run, *args, **options)
