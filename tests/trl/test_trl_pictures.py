"""Vision-language models: TRL's gradient, pictures of kept completions alone, and the expectation under every draw."""

import copy
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset, Features, Image, List, concatenate_datasets
from peft import LoraConfig
from refusals import refused
from tiny_pictures import OF_RANKS, mine, seen_problems, stock, words_reward
from tiny_runs import GENERATIONS, alike, relative_difference, two_processes
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel
from trl_gradients import TOLERANCE, full_and_mean

from benchmarks.swap.pictures import KINDS, picture, seeded
from dppo.errors import ConfigError, DataError
from dppo.trl.grpo import rollouts
from dppo.trl.grpo.prompts import check_prompts, stream_and_history
from dppo.trl.layouts import choose_layout
from dppo.trl.pictures import OF_PICTURES, Pictures, joined_pictures
from dppo.trl.served import unserved_models

SEVERAL = {"max_tokens_per_row": 120}
"""Several forward passes a step, with and without pictures."""
CASES = {
    "qwen": ("qwen", {}),
    "qwen, kl, second pass": ("qwen", dict(beta=0.2, num_iterations=2, max_steps=2, loss_type="grpo")),
    "qwen, accumulation": ("qwen", {"per_device_train_batch_size": 12, "gradient_accumulation_steps": 2}),
    "qwen, lora": ("qwen", {"beta": 0.1, "peft": lambda: LoraConfig(target_modules=["q_proj", "v_proj"])}),
    "qwen, checkpointing": ("qwen", {"gradient_checkpointing": True}),
    "gemma, kl": ("gemma", {"beta": 0.1}),
    "llava, kl": ("llava", {"beta": 0.1}),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The path of a tiny model on disk, and its processor, by its kind."""

    @cache
    def get(kind):
        model, processor = seeded(kind)
        path = tmp_path_factory.mktemp(kind)
        model.save_pretrained(path)
        return str(path), processor

    return get


@pytest.fixture
def batches(monkeypatch):
    """Batches of each generation, before completions move."""
    found, batch_of = [], rollouts.rank_batch

    def keep(*given):
        found.append(batch_of(*given))
        return found[-1]

    monkeypatch.setattr(rollouts, "rank_batch", keep)
    return found


def error(model, tmp_path, ours=SEVERAL, *, model_of_ours=None, **options):
    """The largest relative difference of a step's gradient from TRL's, and our trainer."""
    expected, _ = stock(model, tmp_path, **options)
    found, trainer = mine(model_of_ours or model, tmp_path, **options | ours)
    return max(relative_difference(*pair) for pair in zip(found, expected, strict=True)), trainer


@pytest.mark.parametrize(("kind", "options"), CASES.values(), ids=CASES)
def test_gradient_equals_trl(kind, options, made, tmp_path, capsys):
    found, trainer = error(made(kind), tmp_path, **options)
    assert found < TOLERANCE
    assert max(row.get("rows/forwards", 0) for row in trainer.state.log_history) > 1
    assert "layout: length-sorted padding (it is a vision-language model)" in capsys.readouterr().out


def test_a_tokenizer_that_pads_on_the_right(made, tmp_path):
    """Kinds of tokens would be those of others: TRL pads prompts on the left."""
    path, processor = copy.deepcopy(made("gemma"))
    processor.tokenizer.padding_side = "right"
    assert error(made("gemma"), tmp_path, model_of_ours=(path, processor))[0] < TOLERANCE


@pytest.mark.parametrize("rows", [range(6), range(0, 12, 2)], ids=["some", "none"])
@pytest.mark.parametrize("kind", ["qwen", "gemma"])
def test_a_column_image_may_be_none(rows, kind, made, tmp_path):
    """The same pictures, of every second row, in a column ``image`` for us and in ``images`` for TRL."""
    base, found = seen_problems(len(rows)).remove_columns("images"), [picture(row) if row % 2 else None for row in rows]
    one = Dataset.from_dict({"image": found}, Features(image=Image()))
    several = Dataset.from_dict({"images": [[each] if each else [] for each in found]}, Features(images=List(Image())))
    one, several = (concatenate_datasets([base, column], axis=1) for column in (one, several))
    assert error(made(kind), tmp_path, {"data": one}, data=several)[0] < TOLERANCE
    mine(made(kind), tmp_path, data=one, rollout=None)


def test_pictures_of_the_wrong_rows_are_caught(made, tmp_path, monkeypatch):
    right, alone = Pictures.select, {"data": seen_problems(6, alone=True)}
    assert error(made("qwen"), tmp_path, **alone)[0] < TOLERANCE

    def wrong(self, rows):
        return right(self, [(row + GENERATIONS) % len(self.count_B) for row in rows])

    monkeypatch.setattr(Pictures, "select", wrong)
    assert error(made("qwen"), tmp_path, **alone)[0] > 1e-2


def half_flat(prompts, completions, answer, **_):
    """Rewards that differ in the first three groups alone."""
    found = words_reward(prompts, completions)
    return [reward if int(number) < 3 else 1.0 for reward, number in zip(found, answer, strict=True)]


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_only_kept_pictures_are_encoded(rate, made, batches, tmp_path, monkeypatch):
    """Groups of equal rewards are skipped exactly, those left out by a draw too, and the tower sees the others."""
    model, seen = made("qwen"), []
    forward = Qwen2_5_VisionTransformerPretrainedModel.forward

    def counted(self, hidden_states, grid_thw, **kwargs):
        seen.append((len(grid_thw), len(hidden_states), torch.is_grad_enabled()))
        return forward(self, hidden_states, grid_thw, **kwargs)

    monkeypatch.setattr(Qwen2_5_VisionTransformerPretrainedModel, "forward", counted)
    options = dict(reward=half_flat, shuffle_dataset=False, beta=0.0)
    found, _ = mine(model, tmp_path, completion_prune_rate=rate, **options)
    (batch,) = batches
    kept = batch.weight_UB[0].nonzero().flatten().tolist()
    assert 0 < len(kept) <= 3 * GENERATIONS * (1 - rate / 2)
    pictures = batch.pictures
    assert sum(one for one, _, _ in seen) == sum(pictures.count_B[row] for row in kept) < sum(pictures.count_B)
    assert sum(two for _, two, _ in seen) == sum(len(pictures.values["pixel_values"][row]) for row in kept)
    assert all(training for *_, training in seen)
    if not rate:
        expected, _ = stock(model, tmp_path, **options)
        assert relative_difference(found[0], expected[0]) < TOLERANCE


DRAWS = {
    "completions": {"completion_prune_rate": 0.5},
    "completions, kl": {"completion_prune_rate": 0.5, "beta": 0.1},
    "cuts": {"token_prune_rate": 0.4, "loss_type": "dr_grpo"},
}


@pytest.mark.parametrize("options", DRAWS.values(), ids=DRAWS)
def test_the_mean_over_every_draw_is_the_full_gradient(options, made, tmp_path):
    _, trainer = mine(made("qwen"), tmp_path, prompts=2, prune_floor=0.1, **SEVERAL | options)
    full, mean = full_and_mean(trainer)
    assert relative_difference(mean, full) < 1e-6


def test_resumed_equals_uninterrupted(made, tmp_path):
    """Runs resume from the middle of a generation, whose pictures are in the checkpoint, and from its end."""
    options = dict(
        max_steps=6, save_strategy="steps", save_steps=1, prompt_prune_rate=0.5, completion_prune_rate=0.5,
        steps_per_generation=2, num_iterations=2, per_device_train_batch_size=8, prompts=10, loss_type="grpo",
    )  # fmt: skip
    _, first = mine(made("qwen"), tmp_path / "a", **options)
    for stop in (2, 3, 4):
        point = f"{first.args.output_dir}/checkpoint-{stop}"
        _, other = mine(made("qwen"), tmp_path / f"from {stop}", **options, resume_from_checkpoint=point)
        assert alike(first.args.output_dir, other.args.output_dir), stop


@pytest.mark.parametrize("kind", KINDS)
def test_generate_serves_prompts_without_pictures(kind, made, batches, tmp_path):
    """TRL hands the processor None for them, and it fails. The same pictures as with scripted completions."""
    _, trainer = mine(made(kind), tmp_path, shuffle_dataset=False, rollout=None)
    mine(made(kind), tmp_path, shuffle_dataset=False)
    found, expected = (batch.pictures for batch in batches)
    assert found.count_B == expected.count_B and min(found.count_B) == 0 < max(found.count_B)
    for name in found.values.keys() & {*OF_PICTURES}:
        assert all(map(torch.equal, found.values[name], expected.values[name])), name
    assert "eval_reward" in trainer.evaluate(seen_problems(4))


def identities_of(data):
    args = SimpleNamespace(seed=0, shuffle_dataset=True, history_half_life=None)
    return stream_and_history(data, args, 2, environment=False)[1].identities.tolist()


def test_prompts_are_known_by_their_text_and_pictures(tmp_path):
    """Pictures in files by name: their folder is another on each machine."""
    data = seen_problems(6, alone=True)
    found = identities_of(data)
    assert len({*found}) == 6 and identities_of(seen_problems(6, alone=True)) == found
    assert identities_of(data.select([3, 1])) == [found[3], found[1]]
    texts = data.remove_columns("images")
    assert len({*identities_of(texts)}) == 2
    changed = data.map(lambda row, at: {"images": [picture(7)] if at == 2 else row["images"]}, with_indices=True)
    assert [a == b for a, b in zip(identities_of(changed), found, strict=True)] == [True, True, False, True, True, True]

    def in_files(folder):
        paths = [{"path": str(tmp_path / folder / f"{i}.png"), "bytes": None} if i else None for i in range(6)]
        return identities_of(texts.add_column("image", paths, feature=Image()))

    by_name = in_files("a")
    assert in_files("b") == by_name and len({*by_name}) == 6 and by_name[0] == identities_of(texts)[0]


COUNTS = [2, 0, 1]
"""Pictures of three rows: as many pictures as rows."""
GRID = torch.tensor([[1, 2, 2], [1, 4, 2], [1, 2, 4]])


def numbered(*shape):
    """Entries that are all different."""
    return torch.arange(float(torch.tensor(shape).prod())).view(shape)


TILES = {
    "pixel_values": numbered(7, 3),
    "pixel_attention_mask": numbered(7, 3),
    "spatial_shapes": numbered(7, 2),
    "num_tiles": [4, 0, 3],
}
WHOLE = {"pixel_values": numbered(3, 2, 3, 4, 4), "pixel_attention_mask": numbered(3, 2, 4, 4)}
FORMS = {
    "patches": ({"pixel_values": numbered(20, 3), "image_grid_thw": GRID}, [12, 0, 8]),
    "pictures": ({"pixel_values": numbered(3, 3, 4, 4), "image_sizes": GRID[:, 1:]}, [2, 0, 1]),
    "positions": ({"pixel_values": numbered(3, 5, 4), "image_position_ids": numbered(3, 5)}, [2, 0, 1]),
    "tiles": (TILES, [4, 0, 3]),
    "all pictures of a row": (WHOLE, [1, 1, 1]),
}
PROMPT_MASK = torch.tensor([[1, 1], [0, 1], [1, 1]])
OUTPUT = dict(num_images=COUNTS, prompt_mask=PROMPT_MASK, prompt_ids=PROMPT_MASK)
OUTPUT["completion_mask"] = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0]])


@pytest.mark.parametrize(("given", "entries"), FORMS.values(), ids=FORMS)
def test_forms_of_pictures(given, entries):
    """All rows are TRL's tensors again, and some rows are theirs: moved, joined, and read from a file too."""
    given = given | {"token_type_ids": torch.tensor([[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 1, 0, 0, 0]])}
    found = Pictures.of_output(OUTPUT | given)
    apart = joined_pictures([found.select([]), found.select([0]).to("cpu"), found.select([1, 2])])
    for each in (found, apart, Pictures.of_saved(found.saved())):
        inputs = each.inputs([2, 1, 2], 2, 3)
        assert inputs.pop("num_images") == COUNTS and inputs.keys() == given.keys()
        for name, value in given.items():
            assert value == inputs[name] if isinstance(value, list) else torch.equal(value, inputs[name]), name
    assert [len(row) for row in found.values["pixel_values"]] == entries
    two = found.select([2, 1]).inputs([2, 1], 2, 1)
    assert torch.equal(two["pixel_values"][: entries[2]], given["pixel_values"][-entries[2] :])
    assert two["num_images"] == [1, 0] and two["token_type_ids"].tolist() == [[0, 1, 0], [0, 1, 0]]
    assert found.select([1]).inputs([1], 1, 1).keys() == {"token_type_ids"}, "without a picture as for text"


@pytest.mark.slow
def test_two_ranks_give_the_gradient_of_one_process(made, tmp_path):
    """A rank's last pass, which synchronizes gradients, has no picture."""
    found, _ = mine(made("qwen"), tmp_path, **OF_RANKS)
    torch.save(found[0], tmp_path / "expected.pt")
    two_processes("tiny_pictures.py", made("qwen")[0], tmp_path)


def test_what_is_not_served(made):
    model = KINDS["gemma"]()[0]
    trainer = SimpleNamespace(
        _is_vlm=True, tools=[print], is_fsdp_enabled=True, rollout_func=print, model=model, ref_model=None,
        _tokenizer=SimpleNamespace(eos_token_id=1), args=SimpleNamespace(layout="auto"),
        accelerator=SimpleNamespace(unwrap_model=lambda model: model, device=torch.device("cpu")),
        method=SimpleNamespace(router_coef=0.1),
    )  # fmt: skip
    assert [refusal.split()[0] for refusal in unserved_models(trainer)] == ["tools", "FSDP"]
    trainer.tools, trainer.is_fsdp_enabled = None, False
    assert not [*unserved_models(trainer)]
    with refused(ConfigError, "without pictures. Set router_aux_loss_coef: 0.0"):
        choose_layout(trainer)
    with refused(ConfigError, "pixel_values of this model cannot be parted"):
        Pictures.of_output(OUTPUT | {"pixel_values": numbered(4, 3)})
    for kind in ("video", "audio"):
        prompt = [{"role": "user", "content": [{"type": kind, kind: "a"}, {"type": "text", "text": "b"}]}]
        with refused(DataError, f"row 0 has a part of type '{kind}'", "dataset.filter"):
            check_prompts([prompt])
