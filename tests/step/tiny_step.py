"""``plan_step`` on the tiny policy, with every real draw of its completions."""

from dataclasses import replace

import torch
from pruning_enumeration import boxes_of_level
from tiny_policy import CONTEXT, EVERY_ROW, N, P, T, among_all, parts, rolled_out

from dppo.methods import METHODS
from dppo.rng import Purpose, step_streams
from dppo.step import UpdateSchedule, completions_of, plan_step, whole_block

EXACT = 1e-12
GRPO, DPPO = METHODS["grpo"], METHODS["dppo"]
ALL, EVERYTHING, STREAMS = replace(whole_block(P, N), context=CONTEXT), rolled_out(), step_streams(0, 0)


def plan_of(method, *, prompts=ALL, given=EVERYTHING, streams=STREAMS, **settings):
    return plan_step(method, given, prompts, streams=streams, max_tokens=T, **settings)


def every_draw(method, *, prompts=ALL, given=EVERYTHING):
    """The plan of a step with as many passes as its completion draw has outcomes, and the chance of each."""
    weight_N = prompts.weight_Q[given.rewards.group_N]
    boxes = boxes_of_level(method.completions, completions_of(method, given, prompts.context, weight_N=weight_N))

    def streams(purpose, *key):
        return boxes[key[0]].rng() if purpose == Purpose.COMPLETION_DRAW else None

    plan = plan_of(method, prompts=prompts, given=given, streams=streams, passes=UpdateSchedule(passes=len(boxes)))
    return plan, torch.tensor([box.chance for box in boxes], dtype=torch.float64)


def gradients(method, plan, weight_UN=None, *, keep_N=EVERY_ROW):
    """(S, PARAMETERS) gradient of each draw, of completions that are ``keep_N`` (N,) of the tiny problem's."""
    weight_UN = among_all(plan.weight_UN if weight_UN is None else weight_UN, keep_N)
    return weight_UN @ parts(method, among_all(plan.advantage_N, keep_N), plan.sizes)
