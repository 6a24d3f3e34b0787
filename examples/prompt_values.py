"""Values of prompts for method: a_star_po: samples of a run's model before training, and their rewards.

python examples/prompt_values.py CONFIG.yaml [--samples 8] [--beta1 0.5] [--any_field value]

It writes the file that ``prompt_values`` names. Stage 1 of A*-PO, arXiv:2505.20686.
"""

import argparse
from pathlib import Path

import torch

from dppo.errors import ConfigError
from dppo.files import encoded, write_text
from dppo.lab.runs.data import load_dataset
from dppo.lab.runs.parsing import parse_run
from dppo.lab.runs.parts import prepare_model
from dppo.lab.runs.subject import rollout_parts
from dppo.lab.subject import generate
from dppo.methods.a_star_po import optimal_value
from dppo.pruning.prior import prompt_key
from dppo.rewards import identities

AT_ONCE = 16
"""Prompts sampled together."""


def main() -> None:
    """Sample each prompt, score the samples, and write a value and the rewards of each prompt."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("config")
    parser.add_argument("--samples", type=int, default=8, help="completions per prompt")
    parser.add_argument("--beta1", type=float, default=0.5, help="temperature of the value, > 0")
    options, fields = parser.parse_known_args()
    run = parse_run([options.config, *fields])
    if run.training.prompt_values is None:
        raise ConfigError("there is no file to write to. Set prompt_values: problems.values.jsonl")
    path = Path(run.training.prompt_values)
    run.training.output_dir = f"{path}.start"  # a model from scratch is made there, equal to that of the training
    run.model.model_name_or_path = prepare_model(run)
    parts = rollout_parts(run, len(load_dataset(run)))
    lines: dict[str, str] = {}
    for start in range(0, len(parts.prompts), AT_ONCE):
        places = range(start, min(start + AT_ONCE, len(parts.prompts)))
        prompts = [parts.prompts[place] for place in places]
        tokens = generate(parts.model, parts.tokenizer, prompts, options.samples, parts.sampling)
        row = [place for place in places for _ in range(options.samples)]
        reward = (parts.scorer(row, tokens) * torch.tensor(parts.weights)).nansum(1).view(len(places), -1)
        values = optimal_value(reward, beta=options.beta1).tolist()
        for place, value, rewards in zip(places, values, reward.tolist(), strict=True):
            key = prompt_key(int(identities([parts.examples[place]["prompt"]])[0]))
            lines[key] = encoded({"prompt": key, "value": value, "rewards": rewards})
        print(f"{places.stop} of {len(parts.prompts)} prompts", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{line}\n" for line in lines.values()))
    print(f"values of {len(lines)} prompts are in {path}")


if __name__ == "__main__":
    main()
