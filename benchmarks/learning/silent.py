"""How much of a gradient groups of equal rewards have under a KL term, on a real model: by true gradients.

python -m benchmarks.learning.silent CONFIG.yaml NAME=POLICY... [--prompts 16] [--any_field value] [--output FILE.json]

CONFIG is a configuration for ``dppo train`` with ``beta`` above 0, whose model is the reference. Each POLICY is the
folder of a model that was trained from it. Without a KL term such groups have none. Rows of other names stay in FILE.
"""

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.shared import Record, beside, options, write
from dppo.context import NOTHING_KNOWN
from dppo.environment import one_thread
from dppo.errors import ConfigError
from dppo.objective import GROUP_SCALED, Tokens, k3
from dppo.types import Rewards
from dppo.verification.gradients import Folding, log_probs, trained_parameters
from dppo_lab.cli.words import read_words
from dppo_lab.runs.parsing import Run, parse_run
from dppo_lab.runs.subject import RolloutParts, rollout_parts
from dppo_lab.subject import generate


def measured(policy: RolloutParts, reference: RolloutParts, beta: float) -> Record:
    """Figures of groups of a policy's completions, one of each prompt; ``beta`` multiplies the KL term, k3."""
    group, temperature = policy.sampling.generations, policy.sampling.temperature
    completions = generate(policy.model, policy.tokenizer, policy.prompts, group, policy.sampling)
    place = [row // group for row in range(len(completions))]
    rewards = Rewards.in_groups(policy.scorer(place, completions), group, torch.tensor(policy.weights))
    advantage_N = GROUP_SCALED(rewards, NOTHING_KNOWN)
    parameters, divergence = trained_parameters(policy.model), []
    folding = Folding(parameters)
    gradient_N2K = torch.zeros(len(completions), 2, folding.length)
    for row, (prompt, ids) in enumerate(zip(place, completions, strict=True)):
        logp_T = log_probs(policy.model, policy.prompts[prompt], ids, temperature)
        with torch.no_grad():
            ref_T = log_probs(reference.model, policy.prompts[prompt], ids, temperature)
        tokens = Tokens(
            logp_BT=logp_T[None],
            old_logp_BT=logp_T.detach()[None],
            advantage_B=torch.zeros(1),
            mask_BT=torch.ones(1, len(ids)),
            ref_logp_BT=ref_T[None],
        )
        kl_T = k3(tokens)[0]
        divergence += kl_T.tolist()
        for place_of, loss in enumerate((-float(advantage_N[row]) * logp_T.sum(), beta * kl_T.sum())):
            policy.model.zero_grad()
            loss.backward(retain_graph=place_of == 0)
            gradient_N2K[row, place_of] = folding(parameters)
    policy.model.zero_grad()
    of_group = gradient_N2K.unflatten(0, (-1, group)).sum(1).double().numpy()
    return figures(of_group, rewards.zero_variance_Q.numpy()) | {
        "right": float(rewards.total_N.nanmean()),
        "tokens": float(np.mean([*map(len, completions)])),
        "kl": float(np.mean(divergence)),
    }


def figures(gradient_P2K: np.ndarray, silent_P: np.ndarray) -> Record:
    """Shares of the silent groups, and the KL term's part of the gradient, of (P, 2, K) parts of P groups' gradients.

    ``square_share``: of the sum of squared norms of groups, which is what noise comes from. ``mean_share``: the squared
    norm of the silent groups' sum over that of all. ``kl_share``: the KL term's norm over the policy term's, of sums
    over all groups.
    """
    whole_PK = gradient_P2K.sum(1)
    square_P = (whole_PK**2).sum(1)
    total, quiet = whole_PK.sum(0), whole_PK[silent_P].sum(0)
    policy, kl = np.linalg.norm(gradient_P2K.sum(0), axis=1)
    return {
        "silent": float(silent_P.mean()),
        "square_share": _share(square_P[silent_P].sum(), square_P.sum()),
        "mean_share": _share(quiet @ quiet, total @ total),
        "kl_share": _share(kl, policy),
    }


def _share(part: float, whole: float) -> float | None:
    """None where there is no gradient at all."""
    return float(part / whole) if whole else None


def of_policy(run: Run, folder: str, prompts: int) -> RolloutParts:
    """Parts of a run whose model is that of a folder."""
    return rollout_parts(replace(run, model=replace(run.model, model_name_or_path=folder)), prompts)


def main() -> int:
    """Measure and print."""
    parser = options(__doc__)
    parser.add_argument("policies", nargs="+", metavar="NAME=POLICY")
    parser.add_argument("--prompts", type=int, default=16)
    config, given, flags = read_words(parser, sys.argv[1:])
    run: Any = parse_run([str(config), *flags])
    if not run.training.beta:
        raise ConfigError("beta=0: without a KL term groups of equal rewards have no gradient. Write --beta 0.04")
    rows: list[Record] = []
    with one_thread():
        reference = rollout_parts(run, given.prompts)
        for name, _, policy in (word.partition("=") for word in given.policies):
            found = measured(of_policy(run, policy, given.prompts), reference, run.training.beta)
            rows.append({"policy": name, "beta": run.training.beta, "prompts": given.prompts, **found})
            print(*(f"{what} {value:.3g}" if isinstance(value, float) else value for what, value in rows[-1].items()))
    write(given.output, beside(given.output, rows, "policy"), [run.training.seed])
    return 0


if __name__ == "__main__":
    sys.exit(main())
