"""A sampler for verl's agent loops on CPUs: a plain transformers model per replica, as a Ray actor. For tests only."""

import hashlib
import os

import ray
import torch
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

NAME = "plain_cpu"


class Server:
    """Samples token by token; a draw depends on the prompt, the step, and how many equal prompts came before."""

    def __init__(self, path, longest):
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").eval()
        self.longest, self.step, self.seen = longest, 0, {}

    async def generate(self, request_id, prompt_ids, sampling_params, image_data=None, video_data=None, **others):
        key = (self.step, tuple(prompt_ids))
        self.seen[key] = self.seen.get(key, 0) + 1
        seed = hashlib.sha256(repr((key, self.seen[key])).encode()).digest()[:7]
        rng = torch.Generator().manual_seed(int.from_bytes(seed, "little"))
        eos, longest = self.model.config.eos_token_id, sampling_params.get("max_tokens", self.longest)
        tokens, logp = [], []
        while len(tokens) < longest and eos not in tokens:
            with torch.no_grad():  # not around an async method: it would pass the coroutine on
                logits = self.model(torch.tensor([list(prompt_ids) + tokens]), use_cache=False).logits
            scores = torch.log_softmax(logits[0, -1].float(), -1)
            tokens.append(int(torch.multinomial(scores.exp(), 1, generator=rng)))
            logp.append(float(scores[tokens[-1]]))
        step = {"global_steps": self.step, "min_global_steps": self.step, "max_global_steps": self.step}
        return TokenOutput(
            token_ids=tokens, log_probs=logp, stop_reason="completed", num_preempted=0, extra_fields=step
        )

    async def update(self, state, step):
        self.model.load_state_dict(state, strict=False)
        self.step, self.seen = step, {}

    async def nothing(self, *args, **kwargs):
        return None

    wake_up = sleep = abort_all_requests = resume_generation = clear_kv_cache = nothing
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
    """What a worker hands its weights to."""

    def __init__(self, config, model_config, device_mesh, replica_rank=-1):
        super().__init__(config, model_config, device_mesh)
        self.rank = int(os.environ["RANK"])

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(self, weights, global_steps=None, wire_format="named_tensors", **others):
        state = {name: tensor.detach().cpu().clone() for name, tensor in weights}
        await ray.get_actor(f"{NAME}_{self.rank}").update.remote(state, global_steps)


RolloutReplicaRegistry.register(NAME, lambda: Replica)
base._ROLLOUT_REGISTRY[(NAME, "async")] = "cpu_rollout.Adapter"
