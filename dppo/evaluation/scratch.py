"""Models made from nothing, for an evaluation without a download."""

from pathlib import Path

from dppo.data import load_problems
from dppo.demo.scratch import SCRATCH, prepare_embedded, prepare_text
from dppo.errors import ConfigError


def prepare_scratch(model: str, folder: Path, *, seed: int, data: str | None, minutes: float) -> str:
    """Where the model is: as named, or made from nothing in the output folder, once for these arguments.

    Args:
        model: a folder, a hub name, ``scratch:embedded`` or ``scratch:text``.
        folder: the output folder.
        seed: of the model from scratch, >= 0.
        data: file of problems with worked solutions that ``scratch:text`` warms up on.
        minutes: length of that warm-up, > 0.

    Raises:
        ConfigError: another kind of scratch model, or no data for ``scratch:text``.
        DataError: the data cannot be used.
    """
    if not model.startswith(SCRATCH):
        return model
    kind = model.removeprefix(SCRATCH)
    if kind not in ("embedded", "text"):
        raise ConfigError(f"model {model!r} is not one of '{SCRATCH}embedded', '{SCRATCH}text'")
    if kind == "embedded":
        place = folder / f"scratch-embedded-seed{seed}"
        if not place.exists():
            prepare_embedded(place, seed=seed)
        return str(place)
    if data is None:
        raise ConfigError(
            f"{model} learns from worked solutions: --scratch_data FILE, such as GSM8K's training set in a .jsonl"
        )
    place = folder / f"scratch-text-seed{seed}-{minutes:g}min-{Path(data).name.split('.')[0]}"
    if not place.exists():
        prepare_text(place, load_problems(data), seed=seed, minutes=minutes)
    return str(place)
