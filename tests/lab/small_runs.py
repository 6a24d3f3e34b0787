"""Words of ``dppo train`` for a run that takes seconds on a CPU."""

SMALL = (
    "--use_cpu true --bf16 false --report_to none --num_generations 4 --per_device_train_batch_size 16 "
    "--max_completion_length 8 --disable_tqdm true --gradient_checkpointing false"
)


def small_words(folder, *more, model="scratch:embedded", dataset="embedded"):
    """A small run into ``folder``; further words win."""
    named = ["--model_name_or_path", str(model), "--dataset_name", str(dataset), "--output_dir", str(folder)]
    return [*named, *SMALL.split(), *more]
