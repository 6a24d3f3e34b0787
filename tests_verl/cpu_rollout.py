"""A sampler for verl's agent loops on CPUs: a plain transformers model per replica, as a Ray actor. For tests only.

And what brings weights to samplers that are apart from the trainer: files, in the place of NCCL.
"""

import asyncio
import hashlib
import os
from pathlib import Path

import ray
import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

NAME = "plain_cpu"
FILES = "cpu_files"
SLOW = float(os.environ.get("CPU_ROLLOUT_SLOW", "0"))
"""Seconds by which the completions of every fourth prompt are late."""


class Server:
    """Samples token by token; a draw depends on the prompt, the step, and how many equal prompts came before.

    A completion that is aborted gives what it has, and verl's client asks for the rest later: a partial rollout.
    """

    def __init__(self, path, longest):
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").eval()
        self.longest, self.step, self.seen = longest, 0, {}
        self.aborted = 0
        self.may_run = asyncio.Event()
        self.may_run.set()
        self.rejects = False

    async def generate(self, request_id, prompt_ids, sampling_params, image_data=None, video_data=None, **others):
        key = (self.step, tuple(prompt_ids))
        self.seen[key] = self.seen.get(key, 0) + 1
        seed = hashlib.sha256(repr((key, self.seen[key])).encode()).digest()[:7]
        rng = torch.Generator().manual_seed(int.from_bytes(seed, "little"))
        eos, longest = self.model.config.eos_token_id, sampling_params.get("max_tokens", self.longest)
        tokens, logp, aborted = [], [], self.aborted
        if SLOW and hashlib.sha256(repr(tuple(prompt_ids)).encode()).digest()[0] % 4 == 0:
            await asyncio.sleep(SLOW)
        if not self.rejects:
            await self.may_run.wait()
        while len(tokens) < longest and eos not in tokens and aborted == self.aborted:
            await asyncio.sleep(0)  # where it can be aborted
            with torch.no_grad():  # not around an async method: it would pass the coroutine on
                logits = self.model(torch.tensor([list(prompt_ids) + tokens]), use_cache=False).logits
            scores = torch.log_softmax(logits[0, -1].float(), -1)
            tokens.append(int(torch.multinomial(scores.exp(), 1, generator=rng)))
            logp.append(float(scores[tokens[-1]]))
        step = {"global_steps": self.step, "min_global_steps": self.step, "max_global_steps": self.step}
        return TokenOutput(
            token_ids=tokens,
            log_probs=logp,
            stop_reason="aborted" if aborted != self.aborted else "completed",
            num_preempted=0,
            extra_fields=step,
        )

    async def abort_all_requests(self, reject_request=False):
        self.may_run.clear()
        self.aborted, self.rejects = self.aborted + 1, reject_request

    async def resume_generation(self):
        self.may_run.set()
        self.rejects = False

    async def update(self, state, step):
        self.model.load_state_dict(state, strict=False)
        self.step, self.seen = step, {}

    async def nothing(self, *args, **kwargs):
        return None

    wake_up = sleep = clear_kv_cache = nothing
    release_kv_cache = resume_kv_cache = start_profile = stop_profile = nothing


class Replica(RolloutReplica):
    """Starts one server by the name that the adapter finds it by."""

    async def launch_servers(self):
        config = self.model_config
        path = config["path"] if isinstance(config, dict) else config.path
        options = {"name": f"{NAME}_{self.replica_rank}", "num_cpus": 0, "max_concurrency": 1000}
        server = ray.remote(Server).options(**options).remote(path, self.config.response_length)
        await server.nothing.remote()
        self.servers, self._server_handle, self._server_address = [server], server, f"cpu://{self.replica_rank}"


class Adapter(base.BaseRollout):
    """The receiver of a worker's weights."""

    def __init__(self, config, model_config, device_mesh, replica_rank=-1):
        super().__init__(config, model_config, device_mesh)
        self.rank = self.replica_rank = int(os.environ["RANK"]) if replica_rank < 0 else replica_rank

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(self, weights, global_steps=None, wire_format="named_tensors", **others):
        state = {name: tensor.detach().cpu().clone() async for name, tensor in ensure_async_iterator(weights)}
        await ray.get_actor(f"{NAME}_{self.rank}").update.remote(state, global_steps)


@CheckpointEngineRegistry.register(FILES)
class Files(CheckpointEngine):
    """Weights of a step as a file in a folder that all processes see."""

    def __init__(self, bucket_size, is_master=False, folder=None):
        self.is_master, self.folder = is_master, Path(folder)

    def prepare(self):
        return {}

    @classmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata):
        return {}, {}

    def init_process_group(self):
        pass

    def finalize(self):
        if self.is_master:
            for file in self.folder.glob("*.pt"):
                file.unlink()

    async def send_weights(self, weights, global_steps=None):
        state = {name: tensor.detach().cpu().clone() for name, tensor in weights}  # every rank has its part in this
        if self.is_master:
            self.folder.mkdir(exist_ok=True)
            torch.save(state, self.folder / "part")
            (self.folder / "part").rename(self.folder / f"{global_steps}.pt")

    async def receive_weights(self, global_steps=None):
        path = self.folder / f"{global_steps}.pt"
        while not path.exists():
            await asyncio.sleep(0.05)
        for name, tensor in torch.load(path).items():
            yield name, tensor


RolloutReplicaRegistry.register(NAME, lambda: Replica)
base._ROLLOUT_REGISTRY[(NAME, "async")] = "cpu_rollout.Adapter"
