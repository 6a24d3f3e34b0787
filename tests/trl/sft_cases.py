"""Options of supervised runs: packed, padding-free and streamed."""

from sft_runs import solutions, texts

PACKED = {"packing": True, "max_length": 16, "per_device_train_batch_size": 2}
OPTIONS = {
    "bfd": {**PACKED, "data": solutions(20)},
    "bfd_split": {**PACKED, "data": texts(20), "packing_strategy": "bfd_split", "max_length": 8},
    "wrapped": {**PACKED, "data": texts(20), "packing_strategy": "wrapped", "max_length": 10},
    "accumulated": {**PACKED, "data": solutions(20), "gradient_accumulation_steps": 2},
    "evaluated": {**PACKED, "data": solutions(20), "own": {"eval_dataset": solutions(6)}, "eval_strategy": "epoch"},
    "padding free": {"padding_free": True, "max_length": None},
    "streamed": {"data": solutions().to_iterable_dataset()},
    "streamed, accumulated": {"data": texts().to_iterable_dataset(), "gradient_accumulation_steps": 2},
    "streamed, packed": {**PACKED, "data": texts(20).to_iterable_dataset()},
    "streamed, wrapped": {**PACKED, "data": texts(20).to_iterable_dataset(), "packing_strategy": "wrapped"},
}
