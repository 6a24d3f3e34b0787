"""Pictures of a batch: inputs of a vision-language model beside its tokens, kept by row as TRL keeps them.

TRL lays pictures end to end. An entry of ``pixel_values`` is a patch of a picture (Qwen), a picture (Gemma 3, LLaVA), a
tile of one (InternVL) or all pictures of a row (Idefics). Its ``split_pixel_values_by_grid`` parts them by row. Rows
are selected in that form and laid end to end again for each forward pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from trl.trainer.utils import split_pixel_values_by_grid

from dppo.errors import ConfigError

OF_PICTURES = ("pixel_values", "image_grid_thw", "pixel_attention_mask", "spatial_shapes", "image_sizes")
OF_PICTURES += ("image_position_ids",)
"""Inputs of pictures in TRL's batches."""
OF_TOKENS = ("token_type_ids", "mm_token_type_ids")
"""Inputs with the kind of each token of prompt and completion, 0 for text."""
SAVED = "pictures."
"""Prefix of the tensors in a file."""


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Pictures of B rows, and the kinds of their tokens."""

    count_B: tuple[int, ...]
    """Pictures of each row."""
    values: Mapping[str, tuple[Tensor, ...]]
    """B tensors for each name. Of ``OF_PICTURES`` they hold a row's patches, tiles or pictures; of ``OF_TOKENS`` the
    kinds of its tokens without padding, and may be shorter: the rest is text."""
    tiled: bool = False
    """True if ``pixel_values`` holds tiles, of which pictures have different numbers."""

    @classmethod
    def of_output(cls, output: Mapping[str, Any]) -> "Pictures":
        """Pictures of the generation that TRL returned as ``output``."""
        prompt_B, width = output["prompt_mask"].sum(1).tolist(), output["prompt_ids"].shape[1]
        length_B = output["completion_mask"].sum(1).tolist()
        count_B = tuple(output.get("num_images") or [0] * len(prompt_B))
        values = _by_row(output, count_B) if any(count_B) else {}
        for name in OF_TOKENS:
            if name in output:
                rows = zip(output[name], prompt_B, length_B, strict=True)
                values[name] = tuple(kinds[width - prompt : width + length] for kinds, prompt, length in rows)
        return cls(count_B=count_B, values=values, tiled=output.get("num_tiles") is not None)

    def select(self, rows: Sequence[int]) -> "Pictures":
        """Pictures of some rows, in this order."""
        values = {name: tuple(each[row] for row in rows) for name, each in self.values.items()}
        return Pictures(count_B=tuple(self.count_B[row] for row in rows), values=values, tiled=self.tiled)

    def to(self, device: torch.device | str) -> "Pictures":
        """A copy on a device, without the memory of rows that were not selected."""
        values = {name: tuple(each.to(device, copy=True) for each in rows) for name, rows in self.values.items()}
        return Pictures(count_B=self.count_B, values=values, tiled=self.tiled)

    def inputs(self, prompts: Sequence[int], prompt: int, completion: int) -> dict[str, Any]:
        """Arguments of TRL's forward for all rows, padded to these widths of prompts and completions.

        ``prompts`` are tokens of each row's prompt. Without a picture the model is called as for text.
        """
        found: dict[str, Any] = {}
        for name in self.values.keys() & {*OF_TOKENS}:
            rows = self.values[name]
            found[name] = rows[0].new_zeros(len(rows), prompt + completion)
            for padded, kinds, tokens in zip(found[name], rows, prompts, strict=True):
                kept = kinds[: tokens + completion]
                padded[prompt - tokens :][: len(kept)] = kept
        if not any(self.count_B):
            return found
        found |= {name: end_to_end(self.values[name]) for name in OF_PICTURES if name in self.values}
        tiles = {"num_tiles": list(map(len, self.values["pixel_values"]))} if self.tiled else {}
        return found | tiles | {"num_images": list(self.count_B)}

    def saved(self) -> dict[str, Tensor]:
        """Tensors for a file, by name."""
        found = {"count": torch.tensor(self.count_B), "tiled": torch.tensor(self.tiled)}
        for name, rows in self.values.items():
            found |= {name: end_to_end(rows), f"{name}.rows": torch.tensor(list(map(len, rows)))}
        return {SAVED + name: value for name, value in found.items()}

    @classmethod
    def of_saved(cls, tensors: Mapping[str, Tensor]) -> "Pictures | None":
        """Pictures from the tensors of a file; None if it was written without."""
        found = {name.removeprefix(SAVED): value for name, value in tensors.items() if name.startswith(SAVED)}
        if not found:
            return None
        names = [name for name in (*OF_PICTURES, *OF_TOKENS) if name in found]
        values = {name: found[name].split(found[f"{name}.rows"].tolist()) for name in names}
        return cls(count_B=tuple(found["count"].tolist()), values=values, tiled=bool(found["tiled"]))


def joined_pictures(parts: Sequence[Pictures]) -> Pictures:
    """Pictures of the rows of several parts, one part after the other; a part may have none."""
    values: dict[str, tuple[Tensor, ...]] = {}
    parts = [part for part in parts if part.count_B]  # without rows there is no tensor to take a shape from
    for name in dict.fromkeys(name for part in parts for name in part.values):
        nothing = next(part.values[name][0][:0] for part in parts if name in part.values)
        values[name] = tuple(row for part in parts for row in part.values.get(name, [nothing] * len(part.count_B)))
    count_B = tuple(count for part in parts for count in part.count_B)
    return Pictures(count_B=count_B, values=values, tiled=any(part.tiled for part in parts))


def listed_pictures(examples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """TRL's examples, with a list of pictures in each if they have columns for them. Processors refuse None."""
    if not examples[0].keys() & {"images", "image"}:
        return examples
    several = "images" in examples[0]
    lists = [each.get("images") or [] if several else [each.get("image")] for each in examples]
    kept = ([picture for picture in pictures if picture is not None] for pictures in lists)
    return [{**each, "images": pictures} for each, pictures in zip(examples, kept, strict=True)]


def end_to_end(rows: Sequence[Tensor]) -> Tensor:
    """Tensors concatenated, with zeros up to the largest size of each further dimension, as processors pad."""
    sizes = [max(size) for size in zip(*(row.shape[1:] for row in rows), strict=True)]
    padded = []
    for row in rows:
        missing = [size - has for size, has in zip(sizes, row.shape[1:], strict=True)]
        padded.append(F.pad(row, [pad for each in reversed(missing) for pad in (0, each)]) if any(missing) else row)
    return torch.cat(padded)


def _by_row(output: Mapping[str, Any], count_B: Sequence[int]) -> dict[str, tuple[Tensor, ...]]:
    """Each input of pictures, by name, as one tensor for each row."""
    found: dict[str, Any] = {name: output[name] for name in OF_PICTURES if name in output}
    # With a mask and no tiles an entry is all pictures of a row, even if there are as many pictures as rows.
    if "pixel_attention_mask" not in found or "spatial_shapes" in found:
        tiles = {"num_tiles": output["num_tiles"]} if "num_tiles" in output else {}
        found = split_pixel_values_by_grid(cast(Any, {**found, **tiles, "num_images": list(count_B)}))
    named = ((name, found[name]) for name in OF_PICTURES if name in found)
    values = {name: tuple(each.split(1) if isinstance(each, Tensor) else each) for name, each in named}
    if unknown := [name for name, rows in values.items() if len(rows) != len(count_B)]:
        raise ConfigError(f"{unknown[0]} of this model cannot be parted by row. Use trl.GRPOTrainer for this model.")
    return values
