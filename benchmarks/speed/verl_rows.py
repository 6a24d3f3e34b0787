"""Tokens and seconds of an update by verl's FSDP2 engine with ``layout=rows`` against verl's own, in one process.

.venv-verl/bin/python -m benchmarks.speed.verl_rows [--quick] [--output benchmarks/results/verl.json]

One group of eight completions, all kept, a small Qwen3 in float32, one thread. Seconds are CPU seconds of
``train_mini_batch``, learning rate 0. verl's engine runs at two limits of a micro-batch: as many tokens as a shared
group has, and one sequence, which may be faster here, because its attention on a CPU builds a dense mask. The ratio is
to the faster of the two. Other keys of the file stay.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.shared import earlier, options, spread_with_ends
from dppo.files import write_json
from dppo.lab.environment import environment

TESTS = Path(__file__).parents[2] / "tests_verl"
SEED, TURNS, GENERATIONS = 0, 7, 8
SETTINGS = {"200/400": (200, 400), "1000/200": (1000, 200)}
"""Tokens of the prompt and of each completion."""
MODEL = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "max_position_embeddings": 2048}
NAMES = ("verl", "verl, one sequence a micro-batch", "rows")
Update = Callable[[], object]


def updates(folder: str, prompt: int, completion: int) -> tuple[dict[str, Update], dict[str, int]]:
    """An update by each engine, and its tokens."""
    import sharing  # of tests_verl, on a CPU  # pyright: ignore[reportMissingImports]

    from dppo.verl.loss import weighted_ppo_loss

    groups = ((prompt, (completion,) * GENERATIONS),)
    shared, alone = prompt - 1 + GENERATIONS * completion, prompt + completion
    found = {}
    for name, limit in zip(NAMES, (max(shared, alone), alone, shared), strict=True):
        worker, actor = sharing.worker(folder, f"{sharing.ACTOR}.optim.lr=0", rows=name == "rows")
        worker.set_loss_fn(partial(weighted_ppo_loss, config=actor))
        found[name] = partial(updated, worker, partial(sharing.batch, groups, max_tokens=limit))
    return found, {name: shared if name == "rows" else GENERATIONS * alone for name in NAMES}


def updated(worker: Any, batch: Callable[[], Any]) -> Any:
    """One update of a worker."""
    return worker.train_mini_batch(batch())


def share_of_attention(update: Update) -> float:
    """Share of an update's operator time in attention, forward and backward, by torch's profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        update()
    seconds = {each.key: float(each.self_cpu_time_total) for each in profile.key_averages()}
    return sum(spent for name, spent in seconds.items() if "scaled_dot_product" in name) / sum(seconds.values())


@contextmanager
def on_cpu() -> Iterator[str]:
    """verl on a CPU; gives the folder of the model."""
    sys.path.insert(0, str(TESTS))
    from environment import set_up  # pyright: ignore[reportMissingImports]

    set_up()
    import toy  # pyright: ignore[reportMissingImports]

    torch.manual_seed(SEED)
    with tempfile.TemporaryDirectory() as folder:
        toy.write(Path(folder), **MODEL)
        yield folder


def parameters_of_model() -> int:
    """Parameters of the model."""
    import toy  # pyright: ignore[reportMissingImports]

    return sum(each.numel() for each in toy.model(**MODEL).parameters())


def compared(folder: str, prompt: int, completion: int, turns: int) -> dict[str, Any]:
    """Ratios of rows to verl's own engine, and the attention's share of each update."""
    by_name, tokens = updates(folder, prompt, completion)
    seconds: dict[str, list[float]] = {name: [] for name in by_name}
    for turn in range(1 + turns):  # the first is not counted
        for name, update in by_name.items():
            start = time.process_time()
            update()
            seconds[name] += [time.process_time() - start] if turn else []
    fastest = min(NAMES[:2], key=lambda name: sorted(seconds[name])[turns // 2])
    ratios = [mine / theirs for mine, theirs in zip(seconds["rows"], seconds[fastest], strict=True)]
    return {
        "tokens": tokens["rows"] / tokens["verl"],
        "update_seconds": spread_with_ends(ratios),
        "against": fastest,
        "cpu_seconds": {name: spread_with_ends(each) for name, each in seconds.items()},
        "tokens_forwarded": tokens,
        "attention_share": {name: share_of_attention(by_name[name]) for name in (fastest, "rows")},
    }


def main() -> int:
    """Measure, print, and write the key ``shared_prompts`` of the file if one is named."""
    arguments = options(__doc__, quick="one turn").parse_args()
    torch.set_num_threads(1)
    with on_cpu() as folder:
        turns, parameters = 1 if arguments.quick else TURNS, parameters_of_model()
        found: dict[str, Any] = {name: compared(folder, *sizes, turns) for name, sizes in SETTINGS.items()}
    for name, each in found.items():
        median, attention = each["update_seconds"]["median"], each["attention_share"]
        print(f"{name}: tokens {each['tokens']:.3f}, seconds {median:.3f} of {each['against']}; attention {attention}")
    if arguments.output is not None:
        found["environment"] = environment(seeds=[SEED]) | {"parameters": parameters}
        write_json(arguments.output, earlier(arguments.output) | {"shared_prompts": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
