"""Problems with pictures for tiny vision-language models, and scripted rollouts; as a script a step on two ranks."""

import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from datasets import Dataset, Features, Image, List, Value
from tiny_runs import GENERATIONS, relative_difference, scripted
from trl_gradients import dppo_run, trl_run

from benchmarks.swap.pictures import FIRST_WORD, KINDS, WORDS, picture
from dppo.trl.grpo import rollouts


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
    keys = [json.dumps(each, default=lambda value: hashlib.md5(value.tobytes()).hexdigest()) for each in prompts]
    output = scripted(keys, SimpleNamespace(processing_class=lambda text: {"input_ids": []}))
    later = FIRST_WORD - len(["<pad>", "<eos>", "<unk>"])  # there are tokens of pictures before the words
    output["completion_ids"] = [[*(token + later for token in ids[:-1]), 1] for ids in output["completion_ids"]]
    return output | {"prompt_ids": [list(ids) for ids in trainer._tokenize_prompts(prompts)[0]]}


def words_reward(prompts, completions, **_):
    """0, 1 or 2 by the completion's words."""
    return [float(len(each[0]["content"].split()) % 3) for each in completions]


def seen_run(run, model, tmp_path, *, prompts=6, data=None, **options):
    """Gradients of each step, and the trainer; ``model`` is a path and a processor."""
    path, processor = model
    own = {"rollout": written, "reward": words_reward, "data": seen_problems(prompts) if data is None else data}
    return run(path, tmp_path, prompts=prompts, processing_class=processor, **own | options)


def mine(*args, **options):
    return seen_run(dppo_run, *args, **{"completion_prune_rate": 0.0, **options})


def stock(*args, **options):
    return seen_run(trl_run, *args, **options)


OF_RANKS = dict(max_tokens_per_row=40, shuffle_dataset=False, gradient_checkpointing=True)


def on_two_ranks(path: str, folder: Path) -> None:
    """A step on two ranks, of which one ends with a pass without pictures: its gradient is that of one process."""
    moved, dealt = [], rollouts.dealt

    def seen(batch, *others):
        moved.append(dealt(batch, *others))
        return moved[-1]

    rollouts.dealt = seen
    model = (path, KINDS["qwen"]()[1])
    found, trainer = mine(model, folder, per_device_train_batch_size=3 * GENERATIONS, **OF_RANKS)
    calls, _ = trainer.forwards.calls(moved[-1], moved[-1].weight_UB[0], 1)
    of_ranks = [None, None]
    dist.all_gather_object(of_ranks, [bool(batch.seen().get("num_images")) for batch in calls[-1]])
    assert not all(each[-1] for each in of_ranks) and any(map(any, of_ranks)), of_ranks
    different = relative_difference(found[0], torch.load(folder / "expected.pt"))
    assert different < 1e-5, different
    dist.barrier()


if __name__ == "__main__":
    on_two_ranks(sys.argv[1], Path(sys.argv[2]))
