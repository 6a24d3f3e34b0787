"""Vision-language models: TRL's gradient, pictures of kept completions alone, and the expectation under every draw."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset, Features, Image, List, concatenate_datasets
from peft import LoraConfig
from tiny_pictures import mine, saved_model, seen_problems, stock, words_reward
from tiny_runs import GENERATIONS, alike, relative_difference, two_processes
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel
from trl_gradients import TOLERANCE, full_and_mean

from benchmarks.swap.pictures import KINDS, picture
from dppo.errors import ConfigError, DataError
from dppo.trl.grpo import rollouts
from dppo.trl.grpo.prompts import check_prompts, stream_and_history
from dppo.trl.layouts import choose_layout
from dppo.trl.pictures import OF_PICTURES, Pictures, joined_pictures
from dppo.trl.served import unserved_models

SEVERAL = {"max_tokens_per_row": 120}
"""Several forward passes a step, with and without pictures."""
TWICE = dict(beta=0.2, num_iterations=2, max_steps=2, loss_type="grpo")
CASES = {
    "qwen": ("qwen", {}),
    "qwen, kl, second pass": ("qwen", TWICE),
    "qwen, accumulation": ("qwen", {"per_device_train_batch_size": 12, "gradient_accumulation_steps": 2}),
    "qwen, lora": ("qwen", {"beta": 0.1, "peft": lambda: LoraConfig(target_modules=["q_proj", "v_proj"])}),
    "qwen, checkpointing": ("qwen", {"gradient_checkpointing": True}),
    "gemma, kl": ("gemma", {"beta": 0.1}),
    "llava, kl": ("llava", {"beta": 0.1}),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    found = {}

    def get(kind):
        if kind not in found:
            found[kind] = saved_model(kind, tmp_path_factory.mktemp(kind))
        return found[kind]

    return get


@pytest.fixture
def batches(monkeypatch):
    """Batches of each generation, before completions move."""
    found, batch_of = [], rollouts.rank_batch
    monkeypatch.setattr(rollouts, "rank_batch", lambda *given: found.append(batch_of(*given)) or found[-1])
    return found


def differences(model, tmp_path, ours=SEVERAL, **options):
    """Relative differences of gradients from TRL's by step, and our trainer."""
    expected, _ = stock(model, tmp_path, **options)
    found, trainer = mine(model, tmp_path, **options | ours)
    assert len(found) == len(expected)
    return [relative_difference(a, b) for a, b in zip(found, expected, strict=True)], trainer


@pytest.mark.parametrize(("kind", "options"), CASES.values(), ids=CASES)
def test_gradient_equals_trl(kind, options, made, tmp_path, capsys):
    found, trainer = differences(made(kind), tmp_path, **options)
    assert max(found) < TOLERANCE
    assert max(row.get("rows/forwards", 0) for row in trainer.state.log_history) > 1
    assert "layout: length-sorted padding (it is a vision-language model)" in capsys.readouterr().out


def test_pictures_of_the_wrong_rows_are_caught(made, tmp_path, monkeypatch):
    alone = seen_problems(6, alone=True)
    right = Pictures.select

    def wrong(self, rows):
        return right(self, [(row + GENERATIONS) % len(self.count_B) for row in rows])

    monkeypatch.setattr(Pictures, "select", wrong)
    found, _ = differences(made("qwen"), tmp_path, data=alone)
    assert found[0] > 1e-2
    monkeypatch.undo()
    found, _ = differences(made("qwen"), tmp_path, data=alone)
    assert found[0] < TOLERANCE


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
    """From the middle of a generation, whose pictures are in the checkpoint, and from its end."""
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


def single(rows):
    """The problems of these rows in a column ``image``, with a picture in every second row; and in ``images``."""
    base, found = seen_problems(len(rows)).remove_columns("images"), [picture(row) if row % 2 else None for row in rows]
    one = Dataset.from_dict({"image": found}, Features(image=Image()))
    several = Dataset.from_dict({"images": [[each] if each else [] for each in found]}, Features(images=List(Image())))
    return (concatenate_datasets([base, column], axis=1) for column in (one, several))


@pytest.mark.parametrize("rows", [range(6), range(0, 12, 2)], ids=["some", "none"])
@pytest.mark.parametrize("kind", ["qwen", "gemma"])
def test_a_column_image_may_be_none(rows, kind, made, tmp_path):
    one, several = single(rows)
    expected, _ = stock(made(kind), tmp_path, data=several)
    found, _ = mine(made(kind), tmp_path, data=one)
    assert relative_difference(found[0], expected[0]) < TOLERANCE
    mine(made(kind), tmp_path, data=one, rollout=None)


def test_a_tokenizer_that_pads_on_the_right(made, tmp_path):
    """Kinds of tokens would be those of others: TRL pads prompts on the left."""
    expected, _ = stock(made("gemma"), tmp_path)
    path, processor = made("gemma")
    processor = copy.deepcopy(processor)
    processor.tokenizer.padding_side = "right"
    found, _ = mine((path, processor), tmp_path)
    assert relative_difference(found[0], expected[0]) < TOLERANCE


@pytest.mark.parametrize("kind", ["video", "audio"])
def test_parts_that_the_update_would_not_see_are_refused(kind):
    prompts = [[{"role": "user", "content": [{"type": kind, kind: "a"}, {"type": "text", "text": "b"}]}]]
    with pytest.raises(DataError, match=f"row 0 has a part of type '{kind}'.*dataset.filter"):
        check_prompts(["text", *prompts][1:])


def identities_of(data):
    args = SimpleNamespace(seed=0, shuffle_dataset=True, history_half_life=None)
    return stream_and_history(data, args, 2, environment=False)[1].identities.tolist()


def test_equal_texts_with_other_pictures_are_other_prompts(tmp_path):
    data = seen_problems(6, alone=True)
    found = identities_of(data)
    assert len({*found}) == 6 and identities_of(seen_problems(6, alone=True)) == found
    assert identities_of(data.select([3, 1])) == [found[3], found[1]]
    assert len({*identities_of(data.remove_columns("images"))}) == 2, "of two texts"
    changed = data.map(lambda row, at: {"images": [picture(7)] if at == 2 else row["images"]}, with_indices=True)
    assert [a == b for a, b in zip(identities_of(changed), found, strict=True)] == [True, True, False, True, True, True]


def test_pictures_in_files_are_known_by_name(tmp_path):
    """Their folder is another on each machine. A row without a picture is known by its text."""
    base = seen_problems(4).remove_columns("images")

    def written_to(folder):
        paths = [str(tmp_path / folder / f"{i}.png") if i else None for i in range(4)]
        return identities_of(base.add_column("image", [path and {"path": path, "bytes": None} for path in paths],
                                             feature=Image()))  # fmt: skip

    found = written_to("a")
    assert written_to("b") == found and len({*found}) == 4
    assert found[0] == identities_of(base)[0]


COUNTS = [2, 0, 1]
"""Pictures of three rows: as many pictures as rows."""
GRID = torch.tensor([[1, 2, 2], [1, 4, 2], [1, 2, 4]])


def numbered(*shape):
    """Entries that are all different."""
    return torch.arange(float(torch.tensor(shape).prod())).view(shape)


FORMS = {
    "patches": ({"pixel_values": numbered(20, 3), "image_grid_thw": GRID}, [12, 0, 8]),
    "pictures": ({"pixel_values": numbered(3, 3, 4, 4), "image_sizes": GRID[:, 1:]}, [2, 0, 1]),
    "positions": ({"pixel_values": numbered(3, 5, 4), "image_position_ids": numbered(3, 5)}, [2, 0, 1]),
    "tiles": (
        {
            "pixel_values": numbered(7, 3), "pixel_attention_mask": numbered(7, 3), "spatial_shapes": numbered(7, 2),
            "num_tiles": [4, 0, 3],
        },
        [4, 0, 3],
    ),
    "all pictures of a row": (
        {"pixel_values": numbered(3, 2, 3, 4, 4), "pixel_attention_mask": numbered(3, 2, 4, 4)}, [1, 1, 1]
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "entries"), FORMS.values(), ids=FORMS)
def test_forms_of_pictures(given, entries):
    """All rows are TRL's tensors again, and some rows are theirs: moved, joined, and read from a file too."""
    prompt_mask = torch.tensor([[1, 1], [0, 1], [1, 1]])
    completion_mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0]])
    kinds = torch.tensor([[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 1, 0, 0, 0]])
    output = given | dict(num_images=COUNTS, token_type_ids=kinds, prompt_mask=prompt_mask, prompt_ids=prompt_mask)
    found = Pictures.of_output(output | {"completion_mask": completion_mask})
    apart = joined_pictures([found.select([]), found.select([0]).to("cpu"), found.select([1, 2])])
    read = Pictures.of_saved(found.saved())
    for each in (found, apart, read):
        inputs = each.inputs([2, 1, 2], 2, 3)
        assert inputs.pop("num_images") == COUNTS
        assert inputs.keys() == given.keys() | {"token_type_ids"}
        for name, value in (given | {"token_type_ids": kinds}).items():
            assert value == inputs[name] if isinstance(value, list) else torch.equal(value, inputs[name]), name
    assert [len(row) for row in found.values["pixel_values"]] == entries
    two = found.select([2, 1]).inputs([2, 1], 2, 1)
    assert torch.equal(two["pixel_values"][: entries[2]], given["pixel_values"][-entries[2] :])
    assert two["num_images"] == [1, 0] and two["token_type_ids"].tolist() == [[0, 1, 0], [0, 1, 0]]
    assert found.select([1]).inputs([1], 1, 1).keys() == {"token_type_ids"}, "without a picture as for text"


def test_pictures_that_cannot_be_parted_are_refused():
    mask = torch.ones(3, 2)
    output = {"pixel_values": numbered(4, 3), "num_images": COUNTS, "prompt_mask": mask, "prompt_ids": mask}
    with pytest.raises(ConfigError, match="pixel_values of this model cannot be parted"):
        Pictures.of_output(output | {"completion_mask": mask})


def test_pictures_move_with_their_rows(made, batches, tmp_path):
    mine(made("qwen"), tmp_path)
    (whole,), half = batches, len(batches[0].completion_ids) // 2
    ranks = [replace(whole, **rollouts._rows_of(whole, list(range(at, at + half)))) for at in (0, half)]
    # The first half's even rows go to rank 1, the last row is dropped, and all others stay.
    rank_N = torch.tensor([(row + 1) % 2 if row < half else 1 for row in range(2 * half - 1)] + [rollouts.NOWHERE])
    sent = []
    rollouts.dealt(ranks[0], rank_N, 0, lambda rows: sent.extend(rows) or rows)
    there = rollouts.dealt(ranks[1], rank_N, 1, lambda rows: sent + rows)
    expected = whole.pictures.select([*range(half, 2 * half - 1), *range(0, half, 2)])
    assert there.pictures.count_B == expected.count_B
    for name, rows in expected.values.items():
        assert all(map(torch.equal, there.pictures.values[name], rows)), name


REFUSED = {"tools": {"tools": [print]}, "FSDP": {"is_fsdp_enabled": True}}


@pytest.mark.parametrize(("named", "given"), REFUSED.items(), ids=REFUSED)
def test_what_is_not_served(named, given, made):
    model = KINDS["qwen"]()[0]
    told = {"_is_vlm": True, "tools": None, "is_fsdp_enabled": False, "rollout_func": print, "model": model} | given
    trainer = SimpleNamespace(**told, accelerator=SimpleNamespace(unwrap_model=lambda model: model))
    trainer._tokenizer = SimpleNamespace(eos_token_id=1)
    (refusal,) = unserved_models(trainer)
    assert refusal.startswith(named) or refusal.startswith(named.lower())


def test_a_router_loss_with_pictures_is_refused():
    trainer = SimpleNamespace(
        args=SimpleNamespace(layout="auto"), model=KINDS["gemma"]()[0], ref_model=None,
        accelerator=SimpleNamespace(device=torch.device("cpu")), method=SimpleNamespace(router_coef=0.1),
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"without pictures\. Set router_aux_loss_coef: 0\.0"):
        choose_layout(trainer)


@pytest.mark.slow
def test_two_ranks_give_the_gradient_of_one_process(made, tmp_path):
    """A rank's last pass, which synchronizes gradients, has no picture."""
    options = dict(max_tokens_per_row=40, shuffle_dataset=False, gradient_checkpointing=True)
    found, _ = mine(made("qwen"), tmp_path, **options)
    torch.save(found[0], tmp_path / "expected.pt")
    torch.save(options, tmp_path / "options.pt")
    two_processes("pictures_two_ranks.py", made("qwen")[0], tmp_path)
