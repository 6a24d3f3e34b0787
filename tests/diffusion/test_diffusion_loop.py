"""DGPO on a diffusers model: rollouts that repeat, a step by hand, pruning in it, and the example as it stands."""

import copy
import runpy
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("diffusers", reason="needs the extra diffusion: pip install -e '.[diffusion]'")

from dgpo import EVERY_SAMPLE, GroupPreference, PictureLoop, errors, picture_scheduler
from refusals import refused

from dppo.errors import ConfigError, RewardError
from dppo.objective import group_advantages
from dppo.rng import Purpose, generator, torch_generator
from dppo.types import Rewards

EXAMPLE = Path(__file__).parents[2] / "examples" / "diffusion" / "shapes.py"
SHAPES = runpy.run_path(str(EXAMPLE))


def brightness(pictures, labels):
    return pictures.flatten(1).mean(1)


def made(rate=0.0, **options):
    torch.manual_seed(0)
    model = SHAPES["unet"]()
    with torch.no_grad():
        model.conv_out.weight.mul_(3)
    preference = GroupPreference(samples=EVERY_SAMPLE.at_rate(rate))
    given = {"labels": 2, "groups": 2, "size": 4, "denoising_steps": 3, "seed": 5} | options
    return PictureLoop(model, given.pop("reward", brightness), preference=preference, **given)


def test_rollouts_are_a_function_of_seed_and_key_and_of_the_label():
    loop, label_N = made(), torch.tensor([0, 1, 0])
    first = loop.pictures(label_N)
    assert first.shape == (3, 1, 16, 16) and first.abs().max() <= 1
    assert torch.equal(first, loop.pictures(label_N)) and torch.equal(first, made().pictures(label_N))
    assert not torch.equal(first, loop.pictures(label_N, key=1))
    assert not torch.equal(first, made(seed=6).pictures(label_N))
    assert not torch.equal(first, loop.pictures(1 - label_N))


def gradient_of(model):
    return torch.cat([each.grad.flatten().double() for each in model.parameters() if each.grad is not None])


def by_hand(loop):
    """The gradient of the paper's loss on the step's own pictures, put together without the loop."""
    model, group_N = copy.deepcopy(loop.model), torch.arange(2).repeat_interleave(4)
    label_N = torch.from_numpy(generator(5, Purpose.PROMPT_DRAW, 0).integers(0, 2, 2))[group_N]
    pictures = loop.pictures(label_N, Purpose.ROLLOUT, 0)
    advantage_N = group_advantages(Rewards.in_groups(brightness(pictures, None).double()[:, None], 4)).float()
    rng = torch_generator(5, Purpose.DEAL, 0)
    time_N = torch.randint(1000, (2,), generator=rng)[group_N]
    noise = torch.randn((2, 1, 16, 16), generator=rng)[group_N]
    given = picture_scheduler().add_noise(pictures, noise, time_N), noise, time_N, label_N
    with torch.no_grad():
        ref_error_N = errors(loop.reference, *given)
    s_Q = 100 * (advantage_N * (errors(model, *given) - ref_error_N)).view(2, 4).mean(1)
    (-torch.nn.functional.logsigmoid(-s_Q).mean() / 100).backward()
    return gradient_of(model)


def step_gradient(loop, monkeypatch):
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *a, **k: None)
    for name in ("step", "zero_grad"):
        monkeypatch.setattr(loop.optimizer, name, lambda: None)
    return loop.step(), gradient_of(loop.model)


@pytest.mark.parametrize("moved", [False, True], ids=["at the reference", "away from it"])
def test_a_step_on_whole_groups_has_the_gradient_of_the_papers_loss(moved, monkeypatch):
    loop = made()
    if moved:
        with torch.no_grad():
            for parameter in loop.model.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    wanted = by_hand(loop)
    record, found = step_gradient(loop, monkeypatch)
    assert record.trained == record.live == 8
    assert (found - wanted).norm() < 1e-4 * wanted.norm()
    assert (record.loss == pytest.approx(0.6931472, abs=1e-6)) == (not moved)
    assert (2 * found - wanted).norm() > 0.5 * wanted.norm(), "the wrong twin: twice as large"


def first_group_flat(pictures, labels):
    found = brightness(pictures, labels)
    found[:4] = 0.25
    return found


def unlike(model, state):
    """The names of weights that are other ones than in ``state``."""
    return [name for name, value in model.state_dict().items() if not torch.equal(state[name], value)]


def test_half_of_the_pictures_are_pruned_and_a_flat_group_is_left_out():
    for options, counts in (({}, (4, 8)), ({"reward": first_group_flat}, (2, 4))):
        record = made(0.5, **options).step()
        assert (record.trained, record.live) == counts
    loop = made(reward=lambda pictures, labels: torch.ones(len(pictures)))
    before = copy.deepcopy(loop.model.state_dict())
    assert loop.step().trained == 0 and loop.steps == 1 and not unlike(loop.model, before)


def test_training_moves_the_model_and_not_its_reference_and_repeats_bit_by_bit():
    first, again = made(0.5, learning_rate=1e-3), made(0.5, learning_rate=1e-3)
    start = copy.deepcopy(first.reference.state_dict())
    assert [first.step() for _ in range(3)] == [again.step() for _ in range(3)]
    assert unlike(first.model, start) and not unlike(first.reference, start)
    assert not unlike(first.model, again.model.state_dict())


WRONG = [
    (RewardError, ("(8, 1)", "8 pictures"), {"reward": lambda x, labels: x.flatten(1).mean(1, keepdim=True)}),
    (RewardError, ("infinite",), {"reward": lambda x, labels: torch.full((len(x),), torch.inf)}),
    (ConfigError, ("size=1", "size=2"), {"size": 1}),
    (ConfigError, ("seed=-1", "seed=0"), {"seed": -1}),
    *((ConfigError, (f"learning_rate={rate:g}",), {"learning_rate": rate}) for rate in (0.0, torch.nan, torch.inf)),
]


@pytest.mark.parametrize(("kind", "named", "options"), WRONG)
def test_rewards_and_settings_that_cannot_be_used_are_errors(kind, named, options):
    with refused(kind, *named):
        made(**options).step()


def test_the_reward_of_the_example_goes_with_the_place_of_a_shape():
    pictures, label_N = SHAPES["shapes"](64, torch.Generator().manual_seed(0))
    assert pictures.shape == (64, 1, 16, 16) and set(label_N.tolist()) == {0, 1}
    reward, mirrored = (SHAPES["to_the_right"](x, label_N) for x in (pictures, pictures.flip(-1)))
    torch.testing.assert_close(reward, -mirrored, rtol=0, atol=1e-6)
    assert reward.abs().max() > 0.5
    assert SHAPES["to_the_right"](-torch.ones(1, 1, 16, 16), label_N[:1]).isnan().all(), "nothing is drawn"


def test_the_example_runs_and_draws_a_picture(tmp_path, monkeypatch, capsys):
    words = ["--pretraining", "3", "--steps", "2", "--pictures", "4", "--output"]
    monkeypatch.setattr(sys, "argv", ["shapes.py", *words, str(tmp_path / "new" / "shapes.png")])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "trained on 16 of 32 pictures with an advantage" in capsys.readouterr().out
    data = (tmp_path / "new" / "shapes.png").read_bytes()
    assert data.startswith(b"\x89PNG") and data.endswith(b"IEND\xaeB`\x82")


WORDS = [
    (["--pictures", "0", "--seed", "-1"], SystemExit, "--pictures must be >= 1, --seed must be >= 0"),
    (["--rate", "1.0"], ConfigError, "rate=1 must be in"),
]


@pytest.mark.parametrize(("words", "error", "message"), WORDS)
def test_the_example_says_what_is_wrong_before_it_trains(words, error, message, tmp_path, monkeypatch, capsys):
    given = ["--pretraining", "0", "--output", str(tmp_path / "shapes.png"), *words]
    monkeypatch.setattr(sys, "argv", ["shapes.py", *given])
    with pytest.raises(error) as raised:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    found = capsys.readouterr()
    assert message in str(raised.value) + found.err and "pretraining" not in found.out
    assert not (tmp_path / "shapes.png").exists()
