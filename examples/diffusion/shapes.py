"""DGPO on a tiny diffusion model: it learns to draw discs and squares, then to draw them where a reward wants them.

    python examples/diffusion/shapes.py --output shapes.png

Trains a UNet of 0.4 million parameters on synthetic pictures of 16 x 16, then prefers pictures whose shape lies to the
right, with half of the pictures pruned from each update. Minutes on one CPU core. Needs the extra ``diffusion``.
The picture has two blocks of rows, before and after: four rows of each, discs first.
"""

import argparse
import struct
import zlib
from pathlib import Path

import torch
from dgpo import EVERY_SAMPLE, GroupPreference, PictureLoop, errors, picture_scheduler  # the file beside this one
from diffusers.models.unets.unet_2d import UNet2DModel
from torch import Tensor

SIZE, LABELS = 16, 2


def shapes(count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """(N, 1, 16, 16) discs and squares at random places, in [-1, 1], and (N,) int64 labels: 0 a disc, 1 a square."""
    label_N = torch.randint(LABELS, (count,), generator=rng)
    radius_N = 2.0 + 2.0 * torch.rand(count, generator=rng)
    centre_2N = radius_N + (SIZE - 1 - 2 * radius_N) * torch.rand(2, count, generator=rng)
    axis = torch.arange(SIZE, dtype=torch.float32)
    down = (axis[None, :, None] - centre_2N[0, :, None, None]).abs()
    along = (axis[None, None, :] - centre_2N[1, :, None, None]).abs()
    disc, square = (down.square() + along.square()).sqrt(), torch.maximum(down, along)
    distance = torch.where(label_N[:, None, None] == 0, disc, square) - radius_N[:, None, None]
    return (0.5 - distance).clamp(0, 1)[:, None] * 2 - 1, label_N


def to_the_right(pictures: Tensor, labels: Tensor) -> Tensor:
    """(N,) horizontal centre of the shape, in [-1, 1]; NaN for an empty picture."""
    ink = (pictures + 1).flatten(1, 2).sum(1)
    place = torch.linspace(-1, 1, pictures.shape[-1])
    total = ink.sum(1)
    return torch.where(total > 2.0, (ink * place).sum(1) / total.clamp_min(2.0), torch.nan)


def unet() -> UNet2DModel:
    """A small class-conditional UNet."""
    return UNet2DModel(
        sample_size=SIZE,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(24, 48),
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
        attention_head_dim=8,
        num_class_embeds=LABELS,
    )


def pretrained(steps: int, seed: int) -> UNet2DModel:
    """A model that draws shapes anywhere, from ``steps`` batches of 64."""
    torch.manual_seed(seed)
    model, scheduler, rng = unet(), picture_scheduler(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=max(steps, 2))
    for step in range(steps):
        pictures, label_N = shapes(64, rng)
        noise = torch.randn(pictures.shape, generator=rng)
        time_N = torch.randint(1000, (len(pictures),), generator=rng)
        loss = errors(model, scheduler.add_noise(pictures, noise, time_N), noise, time_N, label_N).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"pretraining {step + 1:5d} of {steps}  error {loss.item():.4f}", flush=True)
    return model.eval()


def write_png(path: Path, pictures: Tensor, columns: int = 16, zoom: int = 3) -> None:
    """(N, 1, height, width) pictures in [-1, 1] as a grey PNG, row by row."""
    tiles = torch.nn.functional.pad(pictures[:, 0], (1, 1, 1, 1), value=0.0)
    rows = [torch.cat(list(tiles[first : first + columns]), 1) for first in range(0, len(tiles), columns)]
    grey = ((torch.cat(rows) + 1) * 127.5).round().to(torch.uint8)
    grey = grey.repeat_interleave(zoom, 0).repeat_interleave(zoom, 1)
    raw = b"".join(b"\0" + bytes(line) for line in grey.tolist())

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", grey.shape[1], grey.shape[0], 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def main() -> None:
    """Pretrain, prefer, and draw before and after."""
    parser = argparse.ArgumentParser(description="DGPO with pruning of samples on a tiny diffusion model.")
    parser.add_argument("--pretraining", type=int, default=500, help="steps (default 500)")
    parser.add_argument("--steps", type=int, default=30, help="of DGPO (default 30)")
    parser.add_argument("--learning_rate", type=float, default=1e-4, help="of DGPO (default 1e-4)")
    parser.add_argument("--rate", type=float, default=0.5, help="share of the pictures that is pruned (default 0.5)")
    parser.add_argument("--pictures", type=int, default=64, help="drawn before and after (default 64)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("shapes.png"))
    options = parser.parse_args()
    least = {"pretraining": 0, "steps": 0, "pictures": 1, "seed": 0}
    if wrong := [f"--{name} must be >= {low}" for name, low in least.items() if getattr(options, name) < low]:
        parser.error(", ".join(wrong))
    # Before minutes of training: a rate that cannot be, a folder that is not there.
    preference = GroupPreference(samples=EVERY_SAMPLE.at_rate(options.rate))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    model = pretrained(options.pretraining, options.seed)
    loop = PictureLoop(
        model,
        to_the_right,
        labels=LABELS,
        seed=options.seed,
        learning_rate=options.learning_rate,
        preference=preference,
    )
    label_N = torch.arange(options.pictures) * LABELS // options.pictures
    before = loop.pictures(label_N)
    for step in range(options.steps):
        found = loop.step()
        if step % 10 == 0 or step == options.steps - 1:
            print(
                f"step {step + 1:4d}  reward {found.reward:+.3f}  loss {found.loss:.4f}  "
                f"trained on {found.trained} of {found.live} pictures with an advantage",
                flush=True,
            )
    after = loop.pictures(label_N)
    rewards = [to_the_right(pictures, label_N).nanmean().item() for pictures in (before, after)]
    print(f"reward of {options.pictures} pictures before {rewards[0]:+.3f}, after {rewards[1]:+.3f}")
    write_png(options.output, torch.cat([before, after]))
    print(f"before and after are in {options.output}")


if __name__ == "__main__":
    main()
