"""Gradients of trainers on rows: with nothing dropped TRL's, of every step, and its metrics; else that in expectation.

Every draw goes in turn, with its chance, through trainer, rows and loss.
"""

import shutil
from dataclasses import replace
from functools import cache

import dpo_runs as dpo
import pytest
import sft_runs as sft
import torch
from cases import one_in
from datasets import Dataset
from peft import LoraConfig, PromptTuningConfig
from sft_runs import PACKED, Fixed, as_trl, experts, solutions, texts, words
from tiny_runs import PADDED_TOO, logged
from transformers import AutoTokenizer, Lfm2Config, Lfm2ForCausalLM
from trl_layout_cases import HEADS, SIZE, UNSERVED, written

from dppo.methods import RowMethod
from dppo.packing import plan_rows
from dppo.pruning import UNWEIGHTED
from dppo.trl.layouts import RowLayout

ADAPTER = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
VIRTUAL = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
THREE_CALLS = {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 2, "max_steps": 2}
ACCUMULATED = {"gradient_accumulation_steps": 2}
EVERY_SECOND = {"logging_steps": 2, "max_steps": 4}
STREAMED = texts(20).to_iterable_dataset()


def turns(count=10):
    """Sequences whose trained tokens have others before, between and after them."""
    ids = [[3 + (i + 2 * j) % 28 for j in range(6 + i % 4)] for i in range(count)]
    labels = [[x if j in (2, 3 + i % 3) else -100 for j, x in enumerate(each)] for i, each in enumerate(ids)]
    return Dataset.from_dict({"input_ids": ids, "labels": labels})


OF_ROWS = {
    "defaults": {},
    "dft": {"loss_type": "dft"},
    "in order": {"train_sampling_strategy": "sequential"},
    "prompts too": {"completion_only_loss": False},
    "checkpointing": {"gradient_checkpointing": True},
    "texts": {"data": texts()},
    "accumulated": ACCUMULATED | {"per_device_train_batch_size": 2},
    "last batch left out": {"dataloader_drop_last": True},
    "shuffled, another order": {"shuffle_dataset": True, "data_seed": 7},
    "dispatched": {"accelerator_config": {"dispatch_batches": True}},
    "cut at the start": {"max_length": 5, "truncation_mode": "keep_end"},
    "three calls a step": THREE_CALLS,
    "an adapter": {"own": {"peft_config": ADAPTER}},
    "as tensors": {"data": solutions().with_format("torch")},
    "ids, not prepared": {
        "data": Dataset.from_list([{"input_ids": [3 + (i + j) % 28 for j in range(3 + i % 4)]} for i in range(10)]),
        "dataset_kwargs": {"skip_prepare_dataset": True},
    },
    "bfd": PACKED,
    "bfd_split": {**PACKED, "data": texts(20), "packing_strategy": "bfd_split", "max_length": 8},
    "wrapped": {**PACKED, "data": texts(20), "packing_strategy": "wrapped", "max_length": 10},
    "bfd, accumulated": PACKED | ACCUMULATED,
    "bfd, evaluated": {**PACKED, "own": {"eval_dataset": solutions(6)}, "eval_strategy": "epoch"},
    "padding free": {"padding_free": True, "max_length": None},
    "streamed": {"data": solutions().to_iterable_dataset()},
    "streamed, accumulated": ACCUMULATED | {"data": texts().to_iterable_dataset()},
    "streamed, packed": {**PACKED, "data": STREAMED},
    "streamed, wrapped": {**PACKED, "data": STREAMED, "packing_strategy": "wrapped"},
}
OF_PAIRS = {
    "defaults": {},
    "reference computed before": {"precompute_ref_log_probs": True},
    "cut": {"max_length": 6},
    "checkpointing": {"gradient_checkpointing": True},
    "with sft": dpo.RPO,
    "an adapter": {"own": {"ref_model": None, "peft_config": ADAPTER}},
    "an adapter, before": {"own": {"ref_model": None, "peft_config": ADAPTER}, "precompute_ref_log_probs": True},
    "a reference that follows": {"sync_ref_model": True, "ref_model_sync_steps": 1},
    "no reference given": {"own": {"ref_model": None}},
    "three calls a step": THREE_CALLS,
    "columns that precomputing would write": {
        "data": dpo.pairs().map(lambda row: {"ref_chosen_logps": 0.0, "ref_rejected_logps": 0.0})
    },
    "streamed": ACCUMULATED | {"data": dpo.pairs().to_iterable_dataset(), "max_length": 6},
}
# Of ten pairs a step of micro-batches of 3 and 3, and one of 3 and 1. The reference is near the policy: some losses
# take exponentials of log-ratios, and of their rounding.
UNEVEN = ACCUMULATED | {"per_device_train_batch_size": 3, "max_steps": 2, "beta": 0.2, "near": 0.98}
BALANCED = {"router_aux_loss_coef": 0.3}
WITH_EXPERTS = {
    "": {},
    ", its coefficient": BALANCED,
    ", accumulated": BALANCED | ACCUMULATED,
    ", tokens after the trained ones": BALANCED | {"data": turns()},
    ", packed": BALANCED | {"packing": True, "max_length": 16, "data": solutions(20)},
    ", streamed": BALANCED | {"data": solutions().to_iterable_dataset()},
    " on pairs": {},
    " on pairs, accumulated": BALANCED | ACCUMULATED,
    " on pairs, streamed": BALANCED | {"data": dpo.pairs().to_iterable_dataset()},
}
SMALL = {"per_device_train_batch_size": 3}
CHECKPOINTED = SMALL | {"gradient_checkpointing": True}
CASES = {
    **{f"rows, {name}": (sft, "tiny", options) for name, options in OF_ROWS.items()},
    **{f"pairs, {name}": (dpo, "tiny", options) for name, options in OF_PAIRS.items()},
    **{f"loss {name}": (dpo, "tiny", UNEVEN | options) for name, options in dpo.LOSSES.items()},
    **{
        f"experts{name}": (dpo if "pairs" in name else sft, "experts", CHECKPOINTED | options)
        for name, options in WITH_EXPERTS.items()
    },
}


def recurrent():
    """Convolutions that scan a sequence, and attention."""
    layers = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
    return Lfm2ForCausalLM(Lfm2Config(**SIZE, **HEADS, **layers))


PADDED = {**UNSERVED, "it has recurrent layers": recurrent}
"""Models that rows cannot serve; attention sinks are those of a mixture of experts."""


@pytest.fixture(scope="module")
def path_of(tiny_path, tmp_path_factory):
    @cache
    def path(model):
        torch.manual_seed(0)
        models = {"experts": experts, **PADDED}
        return tiny_path if model == "tiny" else written(models[model](), tiny_path, tmp_path_factory.mktemp("model"))

    return path


@pytest.mark.filterwarnings("ignore:The `'keep_end'` truncation mode:FutureWarning")
@pytest.mark.parametrize("layout", PADDED_TOO)
@pytest.mark.parametrize("case", one_in(3, CASES))
def test_gradients_and_metrics_are_trls(case, layout, path_of, tmp_path):
    kind, model, options = case
    us, them = as_trl(kind, path_of(model), tmp_path, only={"layout": layout}, **options)
    if layout == "rows":
        assert sum(logged(us, "rows/tokens")) <= sum(logged(us, "rows/padded_tokens"))
    if model == "experts":
        assert us.method.router_coef == them.router_aux_loss_coef > 0 and min(logged(us, "aux_loss")) > 0


@pytest.mark.parametrize("kind", [sft, dpo])
@pytest.mark.parametrize("model", PADDED)
def test_models_that_rows_cannot_serve_are_padded(model, kind, path_of, tmp_path):
    us, _ = as_trl(kind, path_of(model), tmp_path, **SMALL)
    assert "padding" in str(us.forwards.layout)


LAID_OUT = {
    "small rows": (sft, {"max_tokens_per_row": 12}, {}),
    "small rows of pairs": (dpo, {"max_tokens_per_row": 20}, {}),
    "each completion with its prompt": (sft, {"layout": "packed"}, {}),
    "logged every second step": (sft, {"layout": "padded"}, EVERY_SECOND),
    "pairs, logged every second step": (dpo, {"layout": "padded"}, EVERY_SECOND),
    "tokens before every sequence": (sft, {}, {"own": {"peft_config": VIRTUAL}}),
}


@pytest.mark.parametrize(("kind", "only", "options"), LAID_OUT.values(), ids=LAID_OUT)
def test_another_layout_of_sequences_changes_nothing(kind, only, options, tiny_path, tmp_path):
    as_trl(kind, tiny_path, tmp_path, only=only, **options)


def test_prompts_of_several_answers_are_forwarded_once(tiny_path, tmp_path):
    us, _ = as_trl(sft, tiny_path, tmp_path, data=solutions(4, answers=3))
    assert us.source.scores.tokens.sum() - 12 > sum(logged(us, "rows/tokens")), "last tokens are left out"


TURNS = (
    "{% for m in messages %}w{{ loop.index }} {% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }} <eos>"
    "{% endgeneration %}{% else %}{{ m['content'] }}{% endif %} {% endfor %}"
)
"""A chat template that says which words are the assistant's."""


def conversation(i):
    """Two turns of the user's and two of the assistant's, of different lengths."""
    said = (words(i, 3), words(i + 5, 1 + i % 3), words(i + 2, 2), words(3 * i, 1 + i % 4))
    spoken = zip(("user", "assistant") * 2, said, strict=True)
    return {"messages": [{"role": role, "content": text} for role, text in spoken]}


@pytest.mark.parametrize("layout", ["rows", "padded"])
def test_only_what_the_assistant_says_is_trained_on(layout, tiny_path, tmp_path):
    """Between two turns are tokens that are attended to and carry no loss."""
    path = shutil.copytree(tiny_path, tmp_path / "chat")
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = TURNS
    tokenizer.save_pretrained(path)
    data = Dataset.from_list([conversation(i) for i in range(10)])
    us, _ = as_trl(sft, str(path), tmp_path, only={"layout": layout}, data=data, assistant_only_loss=True)
    scored = us.read(us.train_dataset[1]).sequences[0].scored.tolist()
    assert scored[0] and scored[-1] and not all(scored)


@pytest.mark.parametrize(("kind", "rows"), [(sft, solutions(7)), (dpo, dpo.pairs(7))])
def test_evaluation_between_steps_is_trls(kind, rows, tiny_path, tmp_path):
    """Evaluation has padded batches, and training has rows. Its logs have the tokens trained on."""
    every = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 3}
    us, _ = as_trl(kind, tiny_path, tmp_path, own={"eval_dataset": rows}, **every)
    assert len(logged(us, "eval_loss")) == 3 and logged(us, "num_tokens")[-1] > 0


@pytest.mark.filterwarnings("ignore:one prompt with its answers")
def test_pairs_stay_whole_in_rows_that_are_too_small_for_them(tiny_path, tmp_path, monkeypatch):
    """The longest pair of a stream is not known. The wrong twin packs answers one by one."""
    stream = dict(data=dpo.pairs().to_iterable_dataset(), max_steps=3, only={"max_tokens_per_row": 4})
    with pytest.warns(UserWarning, match="one prompt with its answers is .* over max_tokens_per_row=4"):
        as_trl(dpo, tiny_path, tmp_path, **stream)

    def torn(layout, rank_batch, kept, max_tokens):
        return plan_rows(*layout._sizes(rank_batch, kept), max_tokens)

    monkeypatch.setattr(RowLayout, "places", torn)
    with pytest.raises(ValueError, match="not enough values to unpack"):  # one answer in a row
        as_trl(dpo, tiny_path, tmp_path, **stream)


STEP = dict(batches=((1, 4, 7), (2,), (0, 5)), row_prune_rate=0.6, gradient_accumulation_steps=3)
STEP |= dict(per_device_train_batch_size=2, max_tokens_per_row=12)
"""A step of several unequal micro-batches, of which each may have several rows."""
BY_LOSS = {"row_score": "loss", "row_prune_rate": 0.3}
TOGETHER = PACKED | {"max_steps": 8, "batches": ((1, 3), (2, 0))}
"""What TRL has packed together stays or goes together."""
PARTS = {"batches": ((1, 4, 7), (2,))}
"""A step of two micro-batches of TRL's, of three pairs and of one."""
DRAWN = {
    "sft": (sft, {}),
    "sft, infobatch": (sft, {"method": "infobatch"}),
    "sft, loss": (sft, BY_LOSS),
    "sft, unequal micro-batches": (sft, PARTS | {"row_prune_rate": 0.6}),
    "sft, accumulated": (sft, STEP),
    "sft, packed": (sft, TOGETHER),
    "sft, packed, loss": (sft, TOGETHER | {"row_score": "loss"}),
    "dpo": (dpo, {}),
    "dpo, margin weights": (dpo, {"own": {"margin_reward": dpo.by_length}}),
    "dpo, loss": (dpo, BY_LOSS),
    "dpo with sft": (dpo, dpo.RPO),
    "dpo with sft, in one row": (dpo, STEP | dpo.RPO | {"max_tokens_per_row": None}),
    "dpo, unequal micro-batches": (dpo, PARTS),
    "dpo, apo_zero, loss": (dpo, PARTS | {"row_score": "loss", "loss_type": "apo_zero"}),
    "dpo, ipo": (dpo, PARTS | {"loss_type": "ipo"}),
    # Losses that look at more than sums over the answers.
    **{
        f"dpo, {name}, padded": (dpo, PARTS | dpo.LOSSES[name] | {"layout": "padded"})
        for name in ("several", "wpo", "ld_alpha")
    },
}


@pytest.mark.parametrize(("kind", "options"), DRAWN.values(), ids=DRAWN)
def test_the_expected_gradient_of_a_step_is_that_of_all_its_rows(kind, options, tiny_path, tmp_path, monkeypatch):
    assert Fixed(kind.ours, tiny_path, tmp_path, monkeypatch, **options).error() < 1e-5


def unweighted(method):
    return replace(method, rows=replace(method.rows, weighting=UNWEIGHTED))


def over_kept(method):
    return replace(method, over_kept=True)


KEPT = dict(method="infobatch_kept", accept_bias=True)


@pytest.mark.parametrize(
    ("kind", "wrong", "options", "error"),
    [(sft, None, KEPT, 0.05), (dpo, over_kept, dpo.RPO, 0.01), (dpo, unweighted, {}, 0.05)],
    ids=["a mean over the rows kept", "a mean over the pairs kept", "draws that are not weighted"],
)
def test_wrong_methods_are_caught(kind, wrong, options, error, tiny_path, tmp_path, monkeypatch):
    twin = Fixed(kind.ours, tiny_path, tmp_path, monkeypatch, **options)
    if wrong:
        twin.trainer.source.method = wrong(twin.trainer.method)
    assert twin.error() > error


def test_a_denominator_of_each_micro_batch_is_caught(tiny_path, tmp_path, monkeypatch):
    """The wrong twin: means over what each forward pass was left with, averaged as if they were alike."""
    twin = Fixed(dpo.ours, tiny_path, tmp_path, monkeypatch, **STEP | {"max_tokens_per_row": 60})
    trainer, right = twin.trainer, twin.trainer._part

    def wrong(model, batch, *others):
        kept = int((batch.weight > 0).sum()) // trainer.batch_kind.together
        return right(model, batch, *others) * 6 / (3 * max(kept, 1))

    monkeypatch.setattr(trainer, "_part", wrong)
    assert twin.error() > 0.01


def test_a_mean_over_the_pairs_of_a_step_is_caught(tiny_path, tmp_path, monkeypatch):
    """What trainers on pairs did before: TRL weighs the pair that is alone in its micro-batch three times as much."""
    fixed = Fixed(dpo.ours, tiny_path, tmp_path, monkeypatch, row_prune_rate=0.0, **PARTS)
    wanted, right = fixed.gradient(None), RowMethod.shares
    monkeypatch.setattr(RowMethod, "shares", lambda self, draw, count_N, part_N: right(self, draw, count_N))
    assert (fixed.gradient(None) - wanted).norm() > 0.1 * wanted.norm()
