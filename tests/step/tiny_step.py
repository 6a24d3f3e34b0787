"""``plan_step`` on the tiny policy, with every real draw of its completions."""

from dataclasses import replace

import torch
from pruning_enumeration import boxes_of_level
from tiny_policy import CONTEXT, LENGTH_N, MASK_NT, OLD_NT, N, P, T, parts, rewards

from dppo.methods import METHODS
from dppo.pruning import uncertainty
from dppo.rng import Purpose, step_streams
from dppo.step import RolledOut, UpdateSchedule, completions_of, plan_step, whole_block

EXACT = 1e-12
GRPO, DPPO = METHODS["grpo"], METHODS["dppo"]
ALL = replace(whole_block(P, N), context=CONTEXT)


def rolled_out(keep_N=None):
    """What was rolled out of the tiny problem."""
    keep_N = torch.ones(N, dtype=torch.bool) if keep_N is None else keep_N
    length_N, old_NT, mask_NT = (torch.from_numpy(value)[keep_N] for value in (LENGTH_N, OLD_NT, MASK_NT))
    return RolledOut(rewards=rewards(keep_N), tokens_N=length_N, uncertainty_N=uncertainty(old_NT, mask_NT))


def plan_of(method, *, prompts=ALL, given=None, streams=None, **settings):
    given = rolled_out() if given is None else given
    return plan_step(
        method, given, prompts, streams=step_streams(0, 0) if streams is None else streams, max_tokens=T, **settings
    )


def every_draw(method, *, prompts=ALL, given=None):
    """The plan of a step with as many passes as its completion draw has outcomes, and the chance of each."""
    given = rolled_out() if given is None else given
    weight_N = prompts.weight_Q[given.rewards.group_N]
    boxes = boxes_of_level(method.completions, completions_of(method, given, prompts.context, weight_N=weight_N))
    plan = plan_of(
        method,
        prompts=prompts,
        given=given,
        streams=lambda purpose, *key: boxes[key[0]].rng() if purpose == Purpose.COMPLETION_DRAW else None,
        passes=UpdateSchedule(passes=len(boxes)),
    )
    return plan, torch.tensor([box.chance for box in boxes], dtype=torch.float64)


def gradients(method, plan, weight_UN=None, *, keep_N=None, advantage_N=None):
    """(S, PARAMETERS) gradient of each draw, of completions that are ``keep_N`` (N,) of the tiny problem's."""
    keep_N = torch.ones(N, dtype=torch.bool) if keep_N is None else keep_N
    weight_UN = plan.weight_UN if weight_UN is None else weight_UN
    everywhere = torch.zeros(N, dtype=torch.float64)
    everywhere[keep_N] = plan.advantage_N if advantage_N is None else advantage_N
    return weight_UN @ parts(method, everywhere, plan.sizes.denominator, plan.sizes.tokens)[keep_N]
