"""verl's FSDP engines on rows of segments: each forward pass has the prompt of a group once.

Outputs go back as verl has them: nested, as long as prompt and completion, in the order of the rows. At prompt tokens,
which no loss reads, they are 0.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict  # pyright: ignore[reportMissingImports]
from torch import Tensor
from verl.utils import tensordict_utils  # pyright: ignore[reportMissingImports]
from verl.utils.device import get_device_id, get_device_name  # pyright: ignore[reportMissingImports]
from verl.utils.seqlen_balancing import restore_dynamic_batch  # pyright: ignore[reportMissingImports]
from verl.workers.engine import EngineRegistry  # pyright: ignore[reportMissingImports]
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead  # pyright: ignore[reportMissingImports]

from dppo.errors import ConfigError
from dppo.packing import Kernel, Row, build_row, first_passing, kernels_for, plan_rows, row_tokens
from dppo.packing.attention import unsupported, use_rows
from dppo.packing.check import check_head, check_rows, problem_of
from dppo.packing.forward import row_inputs
from dppo.packing.head import add_scored_head, unsupported_head
from dppo.packing.rows import on_device
from dppo.verl.batch import jagged
from dppo.verl.settings import WHERE
from dppo.verl.support import ROW_ENGINES

PLACE = "pruning_micro_batch"
"""The field with the number of each micro-batch."""
OTHERWISE = f"Write {WHERE}.layout=packed."


@EngineRegistry.register(model_type="language_model", backend=[*ROW_ENGINES.values()], device="cuda")
class RowsEngine(FSDPEngineWithLMHead):
    """verl's FSDP or FSDP2 engine, whose micro-batches are rows of segments; ``ConfigError`` if rows cannot serve."""

    kernel: Kernel | None = None
    """The kernel of attention, once the model was checked."""

    def __init__(self, model_config: Any, engine_config: Any, optimizer_config: Any, checkpoint_config: Any) -> None:
        engine_config = copy.copy(engine_config)
        stock = {ours: verls for verls, ours in ROW_ENGINES.items()}[engine_config.strategy]
        object.__setattr__(engine_config, "strategy", stock)  # verl reads it to wrap the model
        if (shards := engine_config.ulysses_sequence_parallel_size) > 1:  # verl's stock trainers take this engine too
            sharded = f"ulysses_sequence_parallel_size={shards}: attention over rows is not sharded"
            raise ConfigError(f"{sharded}. Write ulysses_sequence_parallel_size=1, or {WHERE}.layout=packed.")
        super().__init__(model_config, engine_config, optimizer_config, checkpoint_config)

    def _build_module(self) -> Any:
        """verl's model, not yet wrapped, with attention over rows and a head that makes no logits."""
        model = super()._build_module()
        if reason := unsupported(model) or unsupported_head(model):
            raise ConfigError(f"layout=rows cannot serve {type(model).__name__}: {reason}. {OTHERWISE}")
        use_rows(model)
        self._scored_model, self._temperature = model, 1.0
        add_scored_head(model)
        return model

    def forward_backward_batch(self, data: Any, loss_function: Any, forward_only: bool = False) -> Any:
        """verl's, over micro-batches that keep a group together. ``max_token_len_per_gpu`` counts a prompt once."""
        self._prepare(data)
        self._data = data
        self._sequences = Sequences(*(data[name].cpu().unbind() for name in ("prompts", "responses")))
        self._places = self._sequences.micro_batches(data["max_token_len_per_gpu"], self._largest)
        # verl cuts this batch into micro-batches of one row each, and counts its tokens.
        masks = data["loss_mask"].cpu().unbind()
        mask_B = [torch.cat([masks[row] for row in place]) for place in self._places]
        columns = {"loss_mask": jagged(mask_B), PLACE: torch.arange(len(self._places))}
        batches = TensorDict(columns, batch_size=len(self._places))
        settings = {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 1, "force_group_size": 1}
        kept = tensordict_utils.get_non_tensor_data(data, "return_model_output", False)
        tensordict_utils.assign_non_tensor(batches, **settings, return_model_output=kept)
        found = super().forward_backward_batch(batches, loss_function, forward_only)
        for name, value in found["model_output"].items():
            found["model_output"][name] = restore_dynamic_batch(value, self._places)
        return found

    def forward_step(self, micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
        """verl's, on the rows of a micro-batch."""
        place = self._places[int(micro_batch[PLACE])]
        row, device = self._sequences.row(place), torch.device(get_device_name())
        self._row = row.moved(on_device(row.indices, device))
        rows = tensordict_utils.index_select_tensor_dict(self._data, place)
        counted = {name: micro_batch[name] for name in ("batch_num_tokens", "dp_size", "sp_size")}
        tensordict_utils.assign_non_tensor(rows, **counted)  # by verl, for the whole batch
        return super().forward_step(rows, loss_function, forward_only)

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        assert self.kernel is not None, "the model is checked before its first pass"
        entropy = tensordict_utils.get_non_tensor_data(micro_batch, "calculate_entropy", False)
        return row_inputs(self._row, kernel=self.kernel, entropy=entropy), {}

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, Tensor]:
        ends, total = micro_batch["input_ids"].offsets(), len(micro_batch["input_ids"].values())
        # The output for a token is at the place before it.
        start_B = ends[:-1] + micro_batch["prompts"].offsets().diff() - 1
        return {
            name: torch.nested.nested_tensor_from_jagged(self._row.placed(value, start_B, total), ends)
            for name in ("log_probs", "entropy")
            if (value := getattr(output, name)) is not None
        }

    def _prepare(self, data: Any) -> None:
        """Set the temperature of a pass, and check the model before the first one; all ranks together."""
        temperature = tensordict_utils.get_non_tensor_data(data, "temperature", 1.0)
        if isinstance(temperature, Tensor):
            raise ConfigError(f"layout=rows has one temperature for all rows, not one for each. {OTHERWISE}")
        if temperature != self._temperature:
            add_scored_head(self._scored_model, temperature=temperature)
            self._temperature = temperature
        if self.kernel is None:
            dtype = self._autocast_dtype
            autocast = torch.autocast(get_device_name(), dtype=dtype, enabled=dtype != torch.float32)  # as verl's
            with torch.no_grad(), autocast:  # shards can only be differentiated in a training step
                self.kernel = self._checked_kernel()
            if self.rank == 0:
                print(f"dppo | layout: packed rows, attention by {self.kernel.name} ({self.kernel.reason})")

    def _checked_kernel(self) -> Kernel:
        """The first kernel with which rows agree with the model's own padded forward on all ranks."""
        problem = problem_of(check_head, self.module, temperature=self._temperature)
        if self._largest(problem != ""):
            where = "layout=rows failed the self-check of its head, here or on another rank"
            raise ConfigError(f"{where}: {problem or 'it passed here'}. {OTHERWISE}")
        dtype = self._scored_model.dtype if self._autocast_dtype == torch.float32 else self._autocast_dtype
        kernels = kernels_for(self._scored_model.config, torch.device(get_device_name()), dtype)

        def problem_of_rows(kernel: Kernel) -> str:
            return problem_of(check_rows, self.module, temperature=self._temperature, kernel=kernel)

        kernel, problem = first_passing(kernels, problem_of_rows, lambda here: self._largest(here) > 0)
        if kernel is None:
            raise ConfigError(f"layout=rows disagrees with padding on this model: {problem}. {OTHERWISE}")
        return kernel

    def _largest(self, number: int) -> int:
        """The largest number of a data-parallel rank."""
        found = torch.tensor([int(number)], device=get_device_id())
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.get_data_parallel_group())
        return int(found)


class Sequences:
    """Rows of a rank in the host's memory, and the micro-batches that they are forwarded in.

    ``prompts`` are B tensors (P_k,) of token ids, and ``completions`` B tensors (C_k,), none of them empty. A
    micro-batch is one row of segments (``dppo.packing.rows``): it has each prompt once.
    """

    def __init__(self, prompts: Sequence[Tensor], completions: Sequence[Tensor]) -> None:
        self.prompts, self.completions = prompts, completions
        numbers: dict[tuple[int, ...], int] = {}
        self.group_B = [numbers.setdefault(tuple(prompt.tolist()), len(numbers)) for prompt in prompts]
        """Numbers that are equal for prompts with the same tokens."""
        self._sizes = self.group_B, [*map(len, prompts)], [*map(len, completions)]

    def tokens(self, place: Sequence[int]) -> int:
        """Tokens of a forward pass over the rows of a micro-batch: each prompt once."""
        return row_tokens(*self._sizes, [place])

    def row(self, place: Sequence[int]) -> Row:
        """The rows of a micro-batch as one row of segments, which scores every completion token."""
        prompts, completions = ([values[k] for k in place] for values in (self.prompts, self.completions))
        return build_row(prompts, completions, [self.group_B[k] for k in place])

    def micro_batches(self, max_tokens: int, largest: Callable[[int], int] = int) -> list[list[int]]:
        """Rows of each micro-batch of at most ``max_tokens``, the longest first; rows of a group are neighbours.

        ``largest`` is the largest number of any rank, of equally many rows. A group is split if it does not fit, or if
        another rank has more micro-batches: each forward pass of FSDP is a collective operation.
        """
        places = plan_rows(*self._sizes, max_tokens)
        for _ in range(largest(len(places)) - len(places)):
            place = max((place for place in places if len(place) > 1), key=self.tokens)
            cut = self._middle(place)
            places.remove(place)
            places += [place[:cut], place[cut:]]
        return sorted(places, key=self.tokens, reverse=True)

    def _middle(self, place: Sequence[int]) -> int:
        """The cut nearest to half of the tokens: between two groups if there are several."""
        cuts = range(1, len(place))
        between = [cut for cut in cuts if self.group_B[place[cut - 1]] != self.group_B[place[cut]]]
        return min(between or cuts, key=lambda cut: abs(self.tokens(place[:cut]) - self.tokens(place[cut:])))
