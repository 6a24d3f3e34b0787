"""``layout=rows``: a forward pass has the prompt of a group once, and computes what single sequences do."""

import sys
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.fsdp._init_utils as of_fsdp1
from in_process import ACTOR, PRUNING, record_gradients, trainer
from sharing import GROUPS, batch, interleaved, worker
from steps import ALL_TERMS, KL, ONE_STEP, OffPolicy, all_draws, bias, fixed_step, stock_and_ours
from tensordict import TensorDict
from toy import write
from transformers import AutoConfig

from dppo.errors import ConfigError
from dppo.packing import SEGMENT_SDPA, Kernel
from dppo.verl import engine as engines
from dppo.verl.layout import Prefixes, place
from dppo.verl.loss import weighted_ppo_loss

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "packing"))

from packing_models import float64_throughout

ROWS = (f"{PRUNING}.layout=rows",)
LORA = tuple(
    f"actor_rollout_ref.model.{option}" for option in ("lora_rank=4", "lora_alpha=8", "target_modules=all-linear")
)
BF16 = (f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bf16",)
TOKENS = sum(prompt - 1 + sum(sizes) for prompt, sizes in GROUPS)
"""Tokens of a forward pass over all groups."""


def siblings(query, key, value, segments, scale, window):
    """Wrong: each completion also attends to the completions of its group that stand before it."""
    parts = zip(*(x.split(list(segments.length_S), 2) for x in (query, key, value)), strict=True)
    outputs, seen = [], {}
    for (q, k, v), trunk, at in zip(parts, segments.trunk_S, range(len(segments.trunk_S)), strict=True):
        before = seen.get(at if trunk < 0 else trunk, (k[:, :, :0], v[:, :, :0]))
        seen[at if trunk < 0 else trunk] = keys, values = tuple(
            torch.cat(pair, 2) for pair in zip(before, (k, v), strict=True)
        )
        mask = torch.ones(q.shape[2], keys.shape[2], dtype=torch.bool).tril(keys.shape[2] - q.shape[2])
        attend = partial(torch.nn.functional.scaled_dot_product_attention, enable_gqa=True)
        outputs.append(attend(q, keys, values, attn_mask=mask, scale=scale))
    return torch.cat(outputs, 2)


LEAKS = Kernel(name="leaks", attend=siblings)


@pytest.fixture
def fsdp1(monkeypatch):
    """torch refuses to start FSDP from parameters on a CPU."""
    monkeypatch.setattr(of_fsdp1, "_check_module_states_for_sync_module_states", lambda module: None)


class TestEngine:
    """verl's engine in float64, with and without a wrapper, against one sequence at a time."""

    @pytest.fixture
    def exact(self, toy, monkeypatch):
        """The engine on a model that is float64 throughout, which FSDP's mixed precision is not."""
        monkeypatch.setattr(engines.RowsEngine, "_build_fsdp_module", lambda self, module: float64_throughout(module))
        made = worker(toy, rows=True)[0].engine
        made._autocast_dtype = torch.float32
        return made

    def found(self, engine, max_tokens, temperature=1.0):
        """Log-probabilities and entropies of each row, and the gradient of a random weighting of them."""
        data = batch(max_tokens=max_tokens, temperature=temperature)
        engine.module.zero_grad()
        outputs = engine.forward_backward_batch(data, self.loss, forward_only=False)
        assert "model_output" not in outputs or not outputs["model_output"]
        gradient = torch.cat([p.grad.flatten() for p in engine.module.parameters()])
        with torch.no_grad():
            outputs = engine.forward_backward_batch(data, None, forward_only=True)["model_output"]
        return [outputs[name].unbind() for name in ("log_probs", "entropy")], gradient

    def loss(self, model_output, data, dp_group=None):
        assert data["batch_num_tokens"] == sum(tokens for *_, tokens in interleaved())
        factors = [self.factor(ids) for ids in data["input_ids"].unbind()]
        rows = zip(model_output["log_probs"].unbind(), model_output["entropy"].unbind(), factors, strict=True)
        return sum((logp * factor + entropy * factor**2).sum() for logp, entropy, factor in rows), {}

    def factor(self, ids):
        """A weight for each output of a row, by its tokens alone."""
        return torch.sin(ids.double().cumsum(0))

    def single(self, engine, temperature=1.0):
        """The same by the model's own forward, one sequence at a time; 0 at prompt tokens."""
        engine.module.zero_grad()
        data, found, total = batch(), ([], []), 0.0
        for ids, prompt in zip(data["input_ids"].unbind(), data["prompts"].unbind(), strict=True):
            logits = engine.module(input_ids=ids[None], use_cache=False).logits[0] / temperature
            logp = logits.log_softmax(-1)
            scored = (torch.arange(len(ids)) >= len(prompt) - 1) & (torch.arange(len(ids)) < len(ids) - 1)
            values = [logp.gather(1, ids.roll(-1)[:, None])[:, 0], -(logp.exp() * logp).sum(1)]
            values = [value * scored for value in values]
            total = total + sum((v * self.factor(ids) ** power).sum() for power, v in enumerate(values, 1))
            for column, value in zip(found, values, strict=True):
                column.append(value.detach())
        total.backward()
        return found, torch.cat([p.grad.flatten() for p in engine.module.parameters()])

    @pytest.mark.parametrize("temperature", [1.0, 0.7])
    @pytest.mark.parametrize("max_tokens", [256, 30, 22])
    def test_log_probabilities_and_gradients_are_those_of_single_sequences(self, exact, max_tokens, temperature):
        """22 tokens split groups, 30 do not."""
        values, gradient = self.found(exact, max_tokens, temperature)
        wanted, right = self.single(exact, temperature)
        for rows, theirs in zip(values, wanted, strict=True):
            assert max(float((a - b).abs().max()) for a, b in zip(rows, theirs, strict=True)) < 1e-12
        assert gradient.dtype == torch.float64 and float((gradient - right).norm() / right.norm()) < 1e-12

    def test_wrong_twins_are_seen(self, exact, monkeypatch):
        (logp, _), gradient = self.found(exact, 256)
        right = torch.cat(logp)
        exact.kernel = LEAKS
        (leaked, _), wrong = self.found(exact, 256)
        assert (torch.cat(leaked) - right).abs().max() > 0.05 and (wrong - gradient).norm() > 0.05 * gradient.norm()
        exact.kernel = SEGMENT_SDPA
        monkeypatch.setattr(engines, "restore_dynamic_batch", lambda value, places: value)
        (moved, _), _ = self.found(exact, 256)
        assert [len(row) for row in moved] != [len(row) for row in logp]  # outputs that are not put back in order

    def test_a_kernel_that_leaks_between_completions_fails_the_check_and_the_next_is_taken(self, toy, monkeypatch):
        made, _ = worker(toy, rows=True)
        monkeypatch.setattr(engines, "kernels_for", lambda *_: (LEAKS,))
        with pytest.raises(ConfigError, match=r"leaks: log-probabilities differ by .*Write .*layout=packed"):
            made.infer_batch(batch())
        monkeypatch.setattr(engines, "kernels_for", lambda *_: (LEAKS, SEGMENT_SDPA))
        made.infer_batch(batch())
        assert made.engine.kernel.name == SEGMENT_SDPA.name and "not leaks" in made.engine.kernel.reason

    def update(self, toy, *options, **named):
        """(2, K) gradients of an update of two mini-batches."""
        torch.manual_seed(0)  # of adapters
        made, actor = worker(toy, *options, **named)
        made.set_loss_fn(partial(weighted_ppo_loss, config=actor))
        gradients = record_gradients(made)
        assert made.train_mini_batch(batch(mini_batch=5))["metrics"]["loss"]
        assert actor.strategy.startswith("dppo_rows_") == named["rows"]
        return torch.stack(gradients).double()

    @pytest.mark.parametrize(
        ("strategy", "options"), [("fsdp", ()), ("fsdp2", ()), ("fsdp2", LORA)], ids=["fsdp", "fsdp2", "lora"]
    )
    def test_an_update_has_the_gradient_of_verls_own_engine(self, toy, strategy, options, fsdp1):
        theirs, ours = (self.update(toy, *options, strategy=strategy, rows=rows) for rows in (False, True))
        assert ours.shape[0] == 2 and bias(ours, theirs) < 2e-6

    def test_half_precision_is_as_near_to_float32_as_verls_own_engine_is(self, toy):
        exact = self.update(toy, rows=False)
        theirs, ours = (bias(self.update(toy, *BF16, rows=rows), exact) for rows in (False, True))
        print(f"bfloat16: verl {theirs:.1e}, rows {ours:.1e}")
        assert 1e-6 < ours < 2 * theirs < 0.1

    def test_micro_batches_are_at_most_the_limit_and_keep_groups(self):
        """Counted with each prompt once: all groups fit a limit that verl would have to split."""
        data = batch()
        sequences = engines.Sequences(data["prompts"].unbind(), data["responses"].unbind())
        assert sequences.micro_batches(TOKENS) == [sequences.micro_batches(10**6)[0]]
        for limit in range(15, TOKENS):  # the longest row alone has 15
            places = sequences.micro_batches(limit)
            sizes = [sequences.tokens(place) for place in places]
            assert sorted(row for place in places for row in place) == list(range(len(data)))
            assert sizes == sorted(sizes, reverse=True) and max(sizes) <= limit
            assert [sequences.row(place).segments.total for place in places] == sizes
        for most in range(1, len(data) + 1):
            places = sequences.micro_batches(10**6, lambda number, most=most: max(number, most))
            groups = [{sequences.group_B[row] for row in place} for place in places]
            assert len(places) == most and sorted(row for place in places for row in place) == list(range(len(data)))
            assert sum(map(len, groups)) == len(GROUPS) or most > len(GROUPS)


class TestDealing:
    """Rows of a group go to one rank, and each rank gets equally many rows."""

    def rows(self, sizes):
        """Rows of groups of these sizes, with a prompt of 100 tokens each."""
        group_N = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        completion_N = torch.randint(5, 40, group_N.shape, generator=torch.Generator().manual_seed(0))
        scored_NT = torch.arange(40) < completion_N[:, None]
        prompt_N = torch.full_like(group_N, 100)
        return Prefixes(prompt_N=prompt_N, scored_NT=scored_NT, completion_N=completion_N, group_N=group_N)

    def parts(self, rows, ranks, keep_N):
        """The kept rows and fillers of each rank."""
        row_B = place(keep_N[None].double(), rows, ranks).row_B
        each = len(row_B) // ranks
        return [row_B[rank * each : (rank + 1) * each] for rank in range(ranks)]

    def tokens(self, part, rows):
        """Tokens of a rank, each prompt counted once."""
        return 100 * len(rows.group_N[part].unique()) + int(rows.completion_N[part].sum())

    @pytest.mark.parametrize("ranks", [1, 2, 4, 8])
    def test_fewer_groups_are_split_than_there_are_ranks(self, ranks):
        draws = torch.Generator().manual_seed(1)
        for _ in range(20):
            rows = self.rows([*torch.randint(1, 9, (24,), generator=draws).tolist(), 8])
            keep_N = rows.group_N < 24  # of the last group fillers are taken
            parts = self.parts(rows, ranks, keep_N)
            sent = list(chain(*parts))
            assert len(set(map(len, parts))) == 1 and len(sent) == len(set(sent))
            assert set(keep_N.nonzero()[:, 0].tolist()) <= set(sent)
            pieces = sum(len(rows.group_N[part].unique()) for part in parts)
            assert pieces - len(rows.group_N[sent].unique()) < ranks
            tokens = [self.tokens(part, rows) for part in parts]
            assert max(tokens) <= 1.4 * sum(tokens) / ranks

    def test_wrong_twin_rows_dealt_one_by_one_scatter_their_groups(self):
        rows, keep_N = self.rows([4] * 16), torch.ones(64)
        grouped, alone = (
            sum(self.tokens(part, rows) for part in self.parts(dealt, 4, keep_N))
            for dealt in (rows, replace(rows, group_N=None))
        )
        assert alone > 1.5 * grouped

    def test_a_filler_is_of_a_group_that_is_there(self):
        rows, keep_N = self.rows([4, 4, 4]), torch.arange(12) < 3
        assert sorted(chain(*self.parts(rows, 2, keep_N))) == [0, 1, 2, 3]
        assert sorted(chain(*self.parts(replace(rows, group_N=None), 2, keep_N))) != [0, 1, 2, 3]


class Counted(OffPolicy):
    """A worker that counts the tokens of each pass, self-checks aside."""

    def __init__(self, config):
        super().__init__(config)
        self.tokens, engine = {}, self.worker.engine
        forward_step = engine.forward_step

        def counted(*given, **named):
            found = forward_step(*given, **named)
            name = self.passes[-1][0]
            self.tokens[name] = self.tokens.get(name, 0) + engine._row.segments.total
            return found

        engine.forward_step = counted


class TestTrainer:
    """The trainer with ``layout=rows``, against verl's own gradient of the whole batch."""

    @pytest.mark.parametrize(("mode", "strategy"), [("token-mean", "fsdp2"), ("seq-mean-token-mean", "fsdp")])
    def test_the_mean_over_every_draw_is_verls_gradient(self, toy, mode, strategy, fsdp1):
        options = (*ALL_TERMS, f"{ACTOR}.loss_agg_mode={mode}", f"{ACTOR}.strategy={strategy}")
        (full,), _ = stock_and_ours(toy, *options)
        step = fixed_step(toy, "dynamic_pruning", *options, *ROWS)
        assert type(step.made.actor_rollout_wg.worker.engine) is engines.RowsEngine
        found = bias(step.mean_of_draws(), full)
        print(f"{mode} {strategy}: bias {found:.1e}")
        assert found < 2e-6
        step.made.actor_rollout_wg.worker.engine.kernel = LEAKS
        assert bias(step.mean_of_draws(), full) > 0.02  # old log-probabilities leak as well

    def test_each_pass_has_the_prompt_of_a_group_once(self, toy):
        options = (*KL, *ROWS, f"{ACTOR}.ppo_max_token_len_per_gpu=256")
        step = fixed_step(toy, "dynamic_pruning", *options, group=Counted)
        tags = step.tags
        for _, keep_N in list(all_draws())[::3]:
            step.made.actor_rollout_wg.tokens.clear()
            step.drawn(keep_N)
            kept = [key for key, keep in zip(step.asked_order(), keep_N.tolist(), strict=True) if keep]
            prompts = {key.split("_")[0]: tags[key]["prompt_len"] for key in kept}
            tokens = sum(tags[key]["response_len"] for key in kept) + sum(length - 1 for length in prompts.values())
            assert step.made.actor_rollout_wg.tokens == dict.fromkeys(("old", "ref", "update"), tokens)

    def test_one_word_is_all_that_a_run_changes_and_it_trains_and_saves_as_before(self, toy, tmp_path):
        stock, group = (trainer(toy, "dynamic_pruning", *ONE_STEP, *rows).actor_rollout_wg for rows in ((), ROWS))
        assert type(group.worker.engine) is engines.RowsEngine and type(stock.worker.engine) is not engines.RowsEngine
        group.worker.engine.to(device="cpu")
        group.save_checkpoint(str(tmp_path))
        assert "dppo" not in (tmp_path / "huggingface" / "config.json").read_text()


class TestRefusals:
    """Models and options that rows cannot serve, each with a line that works."""

    def test_the_engine_refuses_sequence_parallelism_by_itself(self):
        """A run may name it on verl's stock trainer, which none of our options reach."""
        given = SimpleNamespace(strategy=next(iter(engines.ROW_ENGINES.values())), ulysses_sequence_parallel_size=2)
        with pytest.raises(ConfigError, match=r"ulysses_sequence_parallel_size=2.*not sharded"):
            engines.RowsEngine(None, given, None, None)

    def test_the_engine_refuses_a_temperature_for_each_row(self):
        """verl's own engine serves them. The wrong twin compares all of them with one number, in torch's own words."""
        data = TensorDict({"temperature": torch.tensor([1.0, 0.7])}, batch_size=2)
        with pytest.raises(ConfigError, match=r"one temperature for all rows.*layout=packed"):
            engines.RowsEngine._prepare(SimpleNamespace(), data)

    @pytest.mark.parametrize(
        ("option", "named"),
        [
            (f"{ACTOR}.strategy=megatron", "FSDP engines alone"),
            (f"{ACTOR}.ulysses_sequence_parallel_size=2", "not sharded. Write .*size=1"),
            ("actor_rollout_ref.model.use_fused_kernels=True", "makes no logits"),
            (f"{ACTOR}.fsdp_config.pad_to_length=True", "no padding"),
            (f"+{PRUNING}.layout=padded", "Write one of 'packed', 'rows'"),
        ],
    )
    def test_options(self, toy, option, named):
        with pytest.raises(ConfigError, match=named):
            trainer(toy, "dynamic_pruning", *ONE_STEP, *ROWS, option)

    def test_a_model_whose_attention_drops_weights_is_refused_before_it_is_sharded(self, toy, tmp_path):
        folder = write(tmp_path)
        config = AutoConfig.from_pretrained(folder / "model")
        config.attention_dropout = 0.1
        config.save_pretrained(folder / "model")
        with pytest.raises(ConfigError, match=r"Qwen3ForCausalLM: it drops attention weights.*layout=packed"):
            worker(folder, rows=True)
