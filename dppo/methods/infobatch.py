"""InfoBatch, arXiv:2303.04947: prompts below the mean score are pruned at random, and the last epochs are not."""

from dataclasses import replace

from dppo.methods.grpo import GRPO
from dppo.pruning import PromptPruning, stop, threshold

INFOBATCH = replace(
    GRPO,
    name="infobatch",
    paper="arXiv:2303.04947, InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning",
    prompts=PromptPruning(rate=0.5, rule=threshold),
    schedule=stop,
    deviations=(
        "prompts are scored by the signal that history expects, where the paper has the loss of a sample",
        "the mean is that of the step's candidates, where the paper has that of the dataset",
        "a step is scaled as one on all its candidates (per step); the paper averages over what is kept, which makes "
        "fewer steps larger by the same factor (per epoch)",
        "a prompt's first rollout takes the place of the epoch without pruning",
        "the rate is moved to keep a whole number of prompts, and weights are one over what is kept then",
    ),
)
