"""The method without a trainer: a policy over five answers, in plain PyTorch, on ``dppo.session``.

python examples/without_trainer.py
"""

import numpy as np
import torch

from dppo.methods import METHODS
from dppo.objective import Tokens
from dppo.pruning import PromptHistory, PromptStream
from dppo.rng import Purpose, torch_generator
from dppo.session import Session
from dppo.step import PromptSource, RolledOut
from dppo.types import Rewards

PROMPTS, GENERATIONS, ANSWERS, STEPS, SEED = 64, 8, 5, 100, 0
logits = torch.zeros(PROMPTS, ANSWERS, requires_grad=True)
wanted = torch.arange(PROMPTS) % ANSWERS
optimizer = torch.optim.Adam([logits], lr=0.1)

method = METHODS["dppo"].with_rates(prompt=0.3, completion=0.5)
history = PromptHistory(np.arange(PROMPTS, dtype="uint64"))
source = PromptSource(PromptStream(PROMPTS, SEED), history, prompts=16)
session = Session(method, source, seed=SEED, generations=GENERATIONS, max_tokens=1)

for step in range(STEPS):
    # Which prompts are rolled out, with which probability; what nobody learns from is drawn less often.
    prompts = session.prompts()
    row_N = prompts.row_Q.repeat_interleave(GENERATIONS)
    rng = torch_generator(SEED, Purpose.ROLLOUT, step)
    token_N = logits.detach()[row_N].softmax(1).multinomial(1, generator=rng)[:, 0]
    rewards = Rewards.of_groups((token_N == wanted[row_N]).double().view(-1, GENERATIONS))

    # Advantages and the denominator of whole groups, then the draw, then weights of one over its probabilities.
    plan = session.plan(prompts, RolledOut(rewards=rewards, tokens_N=torch.ones_like(token_N)))

    # Only what is kept is forwarded.
    kept = plan.kept(0)
    logp_BT = logits.log_softmax(1)[row_N[kept], token_N[kept]][:, None]
    tokens = Tokens(
        logp_BT=logp_BT,
        old_logp_BT=logp_BT.detach(),
        advantage_B=plan.advantage_N[kept],
        mask_BT=torch.ones_like(logp_BT),
    )
    session.loss(tokens, plan.weight_UN[0, kept], plan.sizes).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 19:
        rolled_out_share, trained_share = len(prompts.row_Q) / 16, len(kept) / len(token_N)
        print(
            f"step {step + 1}: {rolled_out_share:.0%} of the prompts rolled out, {trained_share:.0%} of their "
            f"completions trained on, mean reward {float(rewards.total_N.mean()):.2f}"
        )
