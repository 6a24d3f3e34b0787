"""verl's own trainer, engine and loss in one process: a worker that is called for Ray, a dictionary for the queue.

A completion depends on the weights, the step, the prompt and its session alone, so runs can be compared bit for bit.
"""

import hashlib
import types
from functools import partial
from pathlib import Path

import torch
import transfer_queue
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from in_process_settings import BASE
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict
from toy import compute_score
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.trainer.ppo.v1.trainer_separate_async import HybridEngineMode
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
from verl.workers.utils.losses import ppo_loss

import dppo.verl.plugin  # noqa: F401

STORE = {}
"""Partition to key to (tag, row), in the place of TransferQueue."""


def entry_rows(fields):
    """The rows of a TensorDict as dictionaries."""
    rows = [{} for _ in range(len(fields))]
    for name in list(fields.keys()):
        value = fields.get(name)
        entries = value.unbind() if isinstance(value, torch.Tensor) else [fields[name][i] for i in range(len(fields))]
        for row, entry in zip(rows, entries, strict=True):
            row[name] = getattr(entry, "data", entry) if not isinstance(entry, torch.Tensor) else entry
    return rows


def put(keys, partition_id, fields=None, tags=None, data_parser=None):
    part = STORE.setdefault(partition_id, {})
    rows = [{}] * len(keys) if fields is None else entry_rows(fields)
    for place, key in enumerate(keys):
        tag, row = part.setdefault(key, ({}, {}))
        row.update(rows[place])
        tag.update(tags[place] if tags else {})
    names = sorted(set.intersection(*(set(part[key][1]) for key in keys)))
    return KVBatchMeta(keys=list(keys), tags=[part[key][0] for key in keys], partition_id=partition_id, fields=names)


def get(keys, partition_id, select_fields=None):
    rows = [STORE[partition_id][key][1] for key in ([keys] if isinstance(keys, str) else keys)]
    names = [name for name in (select_fields or rows[0]) if all(name in row for row in rows)]
    columns = {}
    for name in names:
        values = [row[name] for row in rows]
        if all(isinstance(value, torch.Tensor) and value.dim() for value in values):
            columns[name] = torch.nested.as_nested_tensor(values, layout=torch.jagged)
        elif all(isinstance(value, torch.Tensor) for value in values):
            columns[name] = torch.stack(values)
        else:
            columns[name] = NonTensorStack(*values)
    return TensorDict(columns, batch_size=len(rows))


def listed(partition_id=None):
    return {name: {key: dict(tag) for key, (tag, _) in part.items()} for name, part in STORE.items()}


def clear(keys, partition_id):
    for key in [keys] if isinstance(keys, str) else keys:
        STORE.get(partition_id, {}).pop(key, None)


def save_queue(checkpoint_dir, metadata=None):
    Path(checkpoint_dir).mkdir(parents=True, exist_ok=True)
    torch.save(STORE, Path(checkpoint_dir) / "queue.pt")


def load_queue(checkpoint_dir):
    STORE.update(torch.load(Path(checkpoint_dir) / "queue.pt", weights_only=False))


for replaced in (
    *(("kv_batch_put", put), ("kv_batch_get", get), ("kv_list", listed), ("kv_clear", clear)),
    *(("save_checkpoint", save_queue), ("load_checkpoint", load_queue)),
):
    setattr(transfer_queue, *replaced)

PRUNING = "+trainer.v1.sampler.sampler_kwargs.pruning"
ACTOR = "actor_rollout_ref.actor"


def sized(prompts, generations, mini_batch=None):
    """Options for prompts of a step, completions of each, and prompts of a mini-batch where these are fewer."""
    mini = f"{ACTOR}.ppo_mini_batch_size={mini_batch or prompts}"
    return (f"data.train_batch_size={prompts}", mini, f"actor_rollout_ref.rollout.n={generations}")


def configuration(toy, *overrides):
    """verl's whole configuration for the toy, resolved."""
    GlobalHydra.instance().clear()
    files = [f"data.train_files={toy}/train.parquet", f"data.val_files={toy}/val.parquet"]
    files += [f"actor_rollout_ref.model.path={toy}/model"]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[*BASE, *files, *overrides])
    OmegaConf.resolve(config)
    return config


def training_worker(config):
    """verl's worker with its FSDP engine, and the actor's configuration."""
    model, actor = (omega_conf_to_dataclass(config.actor_rollout_ref[name]) for name in ("model", "actor"))
    actor.model_config = model
    engine = actor.engine
    engine.use_dynamic_bsz, engine.use_remove_padding = True, True
    engine.max_token_len_per_gpu = actor.ppo_max_token_len_per_gpu
    engine.infer_max_token_len_per_gpu = max(256, actor.ppo_max_token_len_per_gpu)
    parts = {"engine_config": engine, "optimizer_config": actor.optim, "checkpoint_config": actor.checkpoint}
    worker = TrainingWorker(TrainingWorkerConfig(model_type="language_model", model_config=model, **parts))
    worker.reset()
    return worker, actor


class LocalGroup:
    """A group of Ray workers as the trainer uses it, made of one worker in this process."""

    world_size = 1

    def __init__(self, config):
        self._dispatch_info = {"actor": list(range(self.world_size))}
        self.worker, actor = training_worker(config)
        self.worker.set_loss_fn(partial(ppo_loss, config=actor))
        self.calls = []
        """Rows, mini-batch size and denominator of each update."""
        self.passes = []
        """The name of each pass and the rows that it goes over."""

    def set_loss_fn(self, loss_fn):
        self.worker.set_loss_fn(loss_fn)

    def data(self, batch):
        """A batch as a worker gets it, engine options included."""
        data = get(batch.keys, batch.partition_id, batch.fields)
        for name, value in batch.extra_info.items():
            tensordict_utils.assign_non_tensor_data(data, name, value)
        return data

    def compute_log_prob(self, batch):
        return self.inferred("old", batch)

    def compute_ref_log_prob(self, batch):
        return self.inferred("ref", batch)

    def inferred(self, name, batch):
        """Write the results of a pass without a gradient to the queue."""
        self.passes.append((name, list(batch.keys)))
        found = self.worker.infer_batch(self.data(batch))
        names = [name for name in ("log_probs", "entropy") if name in set(found.keys())]
        put(batch.keys, batch.partition_id, found.select(*names))
        return batch

    def update_actor(self, batch):
        self.passes.append(("update", list(batch.keys)))
        self.calls.append((len(batch), batch.extra_info["mini_batch_size"], batch.extra_info["global_batch_size"]))
        return self.worker.train_mini_batch(self.data(batch))

    def save_checkpoint(self, local_path, hdfs_path=None, global_step=0, max_ckpt_to_keep=None):
        self.worker.save_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)

    def load_checkpoint(self, local_path, hdfs_path=None, del_local_after_load=False):
        self.worker.load_checkpoint(local_path, hdfs_path, del_local_after_load)

    def save_model_to_cpu(self, number):
        module = self.worker.engine.module
        self.kept = getattr(self, "kept", {}) | {number: [each.detach().clone() for each in module.parameters()]}

    @torch.no_grad()
    def restore_model_from_cpu(self, number):
        for parameter, kept in zip(self.worker.engine.module.parameters(), self.kept[number], strict=True):
            parameter.copy_(kept)

    def clear_cpu_model(self, number):
        del self.kept[number]


class Agents:
    """Samples with the very weights of the engine, and rewards as ``toy.compute_score`` does."""

    silent = slice(0)
    """Completion tokens without loss, as a tool's answers are."""

    def __init__(self, trainer, policy=None):
        self.trainer, self.policy = trainer, policy
        self.asked = []
        """(step, prompt) of every prompt that was rolled out."""

    def generate_sequences(self, batch):
        for prompt, text, size in self.prompts_of(batch):
            self._sessions(prompt, text, size)
            STORE["train"][prompt["uid"]][0]["status"] = "finished"

    def prompts_of(self, batch):
        """Each prompt that is asked for, its text, and how many completions it gets."""
        for place in range(len(batch)):
            prompt = {name: batch[name][place] for name in ("uid", "raw_prompt", "reward_model")}
            text = prompt["raw_prompt"][0]["content"]
            self.asked.append((self.trainer.global_steps, text))
            same = batch.get("__rollout_n__", None) is None
            size = self.trainer.config.actor_rollout_ref.rollout.n if same else batch["__rollout_n__"][place]
            yield prompt, text, int(size)

    def _sessions(self, prompt, text, size):
        trainer, tokenizer = self.trainer, self.trainer.tokenizer
        model = self.policy or trainer.actor_rollout_wg.worker.engine.module
        model.eval()
        messages = list(prompt["raw_prompt"])
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        for session in range(size):
            key = repr((trainer.global_steps, text, session)).encode()
            rng = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:7], "little"))
            tokens, logp = sampled(model, ids, trainer.config.data.max_response_length, tokenizer.eos_token_id, rng)
            reward = torch.zeros(len(tokens))
            reward[-1] = compute_score(
                "toy", tokenizer.decode(tokens, skip_special_tokens=True), prompt["reward_model"]["ground_truth"]
            )
            everything, ones = torch.tensor(ids + tokens), torch.ones(len(tokens), dtype=torch.int64)
            ones[self.silent] = 0
            row = {"uid": prompt["uid"], "prompts": torch.tensor(ids), "responses": torch.tensor(tokens)}
            row |= {"input_ids": everything, "position_ids": torch.arange(len(everything)), "response_mask": ones}
            row |= {"loss_mask": ones.clone(), "rm_scores": reward, "rollout_log_probs": torch.tensor(logp)}
            row |= {"num_turns": 2, "multi_modal_inputs": {}, "extra_fields": {}}
            tag = {"status": "success", "prompt_len": len(ids), "response_len": len(tokens), "seq_len": len(everything)}
            tag |= dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), trainer.global_steps)
            STORE.setdefault("train", {})[f"{prompt['uid']}_{session}_0"] = (tag, row)


@torch.no_grad()
def sampled(model, ids, longest, eos, rng):
    """Tokens of one completion and their log-probabilities."""
    tokens, logp = [], []
    while len(tokens) < longest and eos not in tokens:
        logits = model(input_ids=torch.tensor([ids + tokens]), use_cache=False).logits
        logits = logits.full_tensor() if hasattr(logits, "full_tensor") else logits
        scores = torch.log_softmax(logits[0, -1].float(), -1)
        tokens.append(int(torch.multinomial(scores.exp(), 1, generator=rng)))
        logp.append(float(scores[tokens[-1]]))
    return tokens, logp


def nothing(*args, **kwargs):
    return None


def trainer(toy, mode, *overrides, group=LocalGroup, policy=None, agents=Agents):
    """verl's trainer of a mode, ready for its first step; ``init`` and ``fit`` without Ray."""
    STORE.clear()
    config = configuration(toy, f"trainer.v1.trainer_mode={mode}", *overrides)
    made = get_trainer_cls(mode)(config)
    made.replay_buffer.poll_interval = 0.01
    made._init_tokenizer()
    made._init_dataloader()
    made.actor_rollout_wg = made.ref_policy_wg = group(config)
    made.ref_in_actor, made.teacher_model_manager, made.distillation_config = False, None, None
    made.reward_loop_manager = types.SimpleNamespace(reward_loop_worker_handles=[1])
    made.checkpoint_manager = made.standalone_checkpoint_manager = types.SimpleNamespace(
        **dict.fromkeys(("update_weights", "sleep_replicas", "abort_replicas", "resume_generation_replicas"), nothing)
    )
    made.current_mode = HybridEngineMode.TRAINER
    made.resource_pool_manager = types.SimpleNamespace(get_n_gpus=lambda: 1)
    made.curr_step_profile = made.prev_step_profile = made.next_step_profile = False
    made._load_checkpoint()
    made.on_init_end()
    made.agent_loop_manager = agents(made, policy)
    made.global_steps += 1
    made._reissue_inflight_prompts()
    made.on_train_begin()
    return made


def train(made, steps):
    """The metrics of so many steps, each saved where ``trainer.save_freq`` says so."""
    logged = []
    for _ in range(steps):
        metrics, timing = {}, {}
        made.timing_raw = timing
        made.on_step_begin()
        batch = made.step(metrics, timing)
        if made.config.trainer.save_freq > 0 and made.global_steps % made.config.trainer.save_freq == 0:
            made._save_checkpoint()
        made.on_step_end()
        made._compute_metrics(batch, metrics, {**timing, "step": 1.0}, made.global_steps, 0)
        transfer_queue.kv_clear(batch.keys, batch.partition_id)
        logged.append(metrics)
        made.global_steps += 1
    return logged


def whole(tensors):
    """Parameters or gradients of the engine as one vector."""
    return torch.cat([(t.full_tensor() if hasattr(t, "full_tensor") else t).detach().flatten() for t in tensors])


def parameters(made):
    """All parameters of the policy as one vector."""
    return whole(list(made.actor_rollout_wg.worker.engine.module.parameters()))


def record_gradients(worker):
    """Gradients of every optimizer step from now on, none of which is made: the policy stays where it is."""
    found = []

    def step():
        found.append(whole([p.grad for p in worker.engine.module.parameters() if p.grad is not None]))
        return 0.0

    worker.engine.optimizer_step = step
    return found
