"""The fields of a run that are neither TRL's nor training fields of ours: what to train on, and how it is judged.

Neither torch nor TRL is imported here, so the help is shown at once.
"""

from dataclasses import dataclass

from dppo.errors import ConfigError, raise_problems
from dppo.settings import setting

POSITIVE = "(0, inf)"


@dataclass
class RunArguments:
    """Data, rewards and evaluation of a run; training fields are TRL's and ours."""

    dataset_name: str = setting(
        "",
        "Training problems: a local .jsonl, .jsonl.gz or .parquet file, a folder of those, a public set or hub "
        "dataset by name, `reasoning_gym:NAME` (dppo docs own_tasks), or `embedded`, `embedded_sparse`, "
        "`embedded_silent` or `embedded_rare` (dppo docs tasks).",
    )
    task_arguments: dict | str | None = setting(  # noqa: RUF009 (it is a field)
        None,
        "Arguments of a task of reasoning-gym, such as `{max_terms: 2, size: 1000}`; a quarter is held out.",
    )
    answer_pattern: str = setting(
        "text",
        "Answer of reasoning-gym in a completion: `text` (all), `number` (the last) or `tags` (the last <answer>).",
        choices=("text", "number", "tags"),
    )
    dataset_path: str | None = setting(None, "Local file or folder in place of dataset_name: nothing is fetched.")
    dataset_train_split: str = setting("train", "Split of a hub dataset to train on.")
    eval_dataset_name: str | None = setting(None, "Problems for eval_strategy, like dataset_name; held-out ones.")
    dataset_test_split: str = setting("test", "Split of a hub dataset to evaluate on.")
    eval_benchmarks: list[str] | None = setting(  # noqa: RUF009 (it is a field)
        None,
        "Benchmarks to follow while training, as for `dppo eval`: gsm8k, math500, ..., name=problems.jsonl or "
        "reasoning_gym:NAME; or an embedded task alone. Logged as eval/<benchmark>/pass@1.",
    )
    eval_benchmark_data: str | None = setting(None, "Local folder with the benchmarks' files. Default: the hub.")
    eval_benchmark_every: int = setting(50, "Optimizer steps between evaluations, >= 1.", range=POSITIVE)
    eval_benchmark_limit: int | None = setting(64, "Most problems of each benchmark, >= 1.", range=POSITIVE)
    eval_benchmark_samples: int = setting(1, "Completions per problem, >= 1.", range=POSITIVE)
    prompt_column: str | None = setting(None, "Column with the problem. Default: problem, question or prompt.")
    answer_column: str | None = setting(None, "Default: answer, final_answer, ground_truth or solution.")
    prompt_template: str | None = setting(None, "Text of the user's turn, with {problem}. Default: the problem.")
    extract: str | None = setting(None, "Answer in its column: `hashes`, `boxed` or `verbatim`. Default: seen there.")
    max_prompt_tokens: int | None = setting(None, "Prompts longer than this are bad rows, >= 1.", range=POSITIVE)
    on_bad_rows: str = setting("error", "Bad rows: `error` stops, `drop` leaves them out.", choices=("error", "drop"))
    reward_funcs: list[str] | None = setting(  # noqa: RUF009 (it is a field)
        None,
        "Rewards, added up: `accuracy` (the default), `format` (a \\boxed answer is there), `code_tests` (the program "
        "passes its tests), `check:package.module:function` (dppo docs own_tasks), `reasoning_gym`, `embedded`, or "
        "dotted paths such as package.module.function.",
    )
    reward_workers: int = setting(2, "Processes that verify answers, >= 1.", range=POSITIVE)
    answer_time_limit: float = setting(5.0, "Seconds one answer may take to verify, > 0.", range=POSITIVE)
    program_cpu_seconds: int = setting(5, "CPU seconds of one program in `code_tests`, >= 1.", range=POSITIVE)
    program_memory_mb: int = setting(256, "Memory of one program in `code_tests` in MiB, >= 128.", range=POSITIVE)
    accept_weak_sandbox: bool = setting(False, "Run programs of the model also where this system cannot confine them.")
    rollout_func: str | None = setting(
        None,
        "`embedded` (the decoder of dppo demo) or the dotted path of a function for TRL's rollout_func. Default: "
        "transformers, or vLLM with use_vllm.",
    )
    embedded_problems: int = setting(192, "Training problems of an embedded task, >= 1.", range=POSITIVE)
    processes: int | None = setting(
        None,
        "Processes the run is meant for, >= 1: a dry run plans for them, and a launch with another number stops.",
    )
    resume: bool = setting(False, "Go on from the newest complete checkpoint in output_dir.")
    overwrite: bool = setting(False, "Train into an output_dir that already holds a run.")
    dry_run: bool = setting(False, "Check every field and local file, print the plan of a step, and stop.")

    def __post_init__(self) -> None:
        from dppo.methods.settings import setting_problems  # needs torch

        if not self.dataset_name and not self.dataset_path:
            raise ConfigError("dataset_name is not set. Write, for example, dataset_name: problems.jsonl")
        raise_problems("dppo train", setting_problems(self))
