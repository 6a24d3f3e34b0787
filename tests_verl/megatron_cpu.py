"""verl's Megatron engine in one process on a CPU: its own forward pass, loss path and micro-batches, around
megatron.core's own layers and schedule.

In the place of what wants a GPU, Transformer Engine or Megatron-Bridge: the model is built here, torch attends, torch's
SGD steps, and what Megatron's wrapper of the model does last, dividing gradients by tokens, is one line.
"""

import types
from itertools import pairwise

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.pipeline_parallel import schedules
from megatron.core.transformer import TransformerConfig
from verl.workers.engine import EngineRegistry
from verl.workers.engine.megatron import MegatronEngineWithLMHead, transformer_impl

ACTOR = "actor_rollout_ref.actor"
MEGATRON = ("model_engine=megatron", f"~{ACTOR}.fsdp_config")
MEGATRON += tuple(f"actor_rollout_ref.{role}.strategy=megatron" for role in ("actor", "ref"))
PER_TOKEN = f"+{ACTOR}.megatron.override_transformer_config.calculate_per_token_loss=True"
"""How Megatron-Bridge has it where context is split over ranks: gradients are divided by the tokens of the batch."""


class OnCPU(types.ModuleType):
    """``torch`` as the schedule sees it, which puts a count of tokens on CUDA."""

    def __getattr__(self, name):
        if name == "zeros":
            return lambda *size, device=None, **options: torch.zeros(*size, **options)
        return getattr(torch, name)


schedules.torch = OnCPU("torch")
transformer_impl.set_random_seed = torch.manual_seed  # verl's asks CUDA for the state of its generator


class Attention(torch.nn.Module):
    """Causal attention of rows that are padded on the right, or packed one behind the other."""

    def __init__(self, *args, **options):
        super().__init__()

    def forward(self, query, key, value, attention_mask, packed_seq_params=None, **options):
        if packed_seq_params is None:
            return attended(query, key, value)
        ends = packed_seq_params.cu_seqlens_q_padded.tolist()
        rows = ([each[start:end, None] for each in (query, key, value)] for start, end in pairwise(ends))
        return torch.cat([attended(*row) for row in rows])


def attended(*heads):
    """(length, rows, all heads' widths) of queries, keys and values, (length, rows, heads, width) each."""
    found = torch.nn.functional.scaled_dot_product_attention(
        *(each.permute(1, 2, 0, 3) for each in heads), is_causal=True, enable_gqa=True
    )
    return found.permute(2, 0, 1, 3).flatten(2)


class Stages(list):
    """The model as the engine has it: its stages of a pipeline."""

    def parameters(self):
        return [parameter for stage in self for parameter in stage.parameters()]


class MegatronOnCPU(MegatronEngineWithLMHead):
    """The engine without its bridge, its optimizer and its devices."""

    def initialize(self):
        hf = self.model_config.hf_config
        self.tf_config = TransformerConfig(
            num_layers=hf.num_hidden_layers,
            hidden_size=hf.hidden_size,
            ffn_hidden_size=hf.intermediate_size,
            num_attention_heads=hf.num_attention_heads,
            num_query_groups=hf.num_key_value_heads,
            use_cpu_initialization=True,
            hidden_dropout=0.0,
            init_method_std=0.2,
            calculate_per_token_loss=self.engine_config.override_transformer_config.get(
                "calculate_per_token_loss", False
            ),
            finalize_model_grads_func=self.finalized,
        )
        torch.manual_seed(0)
        spec = get_gpt_layer_local_spec()
        spec.submodules.self_attention.submodules.core_attention = Attention
        self.module = Stages([GPTModel(self.tf_config, spec, hf.vocab_size, 256, position_embedding_type="none")])
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=self.optimizer_config.lr)

    def finalized(self, stages, tokens, **options):
        for parameter in self.module.parameters():
            parameter.grad /= 1 if tokens is None else tokens

    def optimizer_zero_grad(self):
        self.optimizer.zero_grad()

    def optimizer_step(self):
        self.optimizer.step()
        return 0.0

    def lr_scheduler_step(self):
        return self.optimizer_config.lr

    def to(self, *args, **options):
        pass


EngineRegistry._engines["language_model"]["megatron"] = {"cuda": MegatronOnCPU}
