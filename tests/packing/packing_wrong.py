"""Layouts that are wrong, as one would write them: kernels in the place of ours, and rows that are built wrongly."""

from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional as F

from dppo.packing.kernels import segment_sdpa
from dppo.packing.rows import UNSCORED
from dppo.verification.dense_rows import wrong_kernels


def attention_parts(query, key, value, segments):
    """Per segment: query, own key and value, the trunk's key and value or None."""
    repeat = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeat, 1) for x in (key, value))
    cut = [x.split(list(segments.length_S), 2) for x in (query, key, value)]
    for s, trunk in enumerate(segments.trunk_S):
        yield (*(x[s] for x in cut), *((None, None) if trunk < 0 else (cut[1][trunk], cut[2][trunk])))


def top_left(query, key, value, segments, scale, window):
    """Branches through ``is_causal``, which aligns the first query with the first key."""
    output = []
    for q, k, v, trunk_k, trunk_v in attention_parts(query, key, value, segments):
        if trunk_k is not None:
            k, v = torch.cat([trunk_k, k], 2), torch.cat([trunk_v, v], 2)
        output.append(F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale))
    return torch.cat(output, 2)


def attend_with_lse(q, k, v, scale, causal):
    score = q @ k.transpose(2, 3) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        score = score.masked_fill(torch.ones(score.shape[-2:]).tril().logical_not(), -torch.inf)
    return score.softmax(-1) @ v, score.logsumexp(-1, keepdim=True)


def merged(query, key, value, segments, scale, window, *, lse_gradient):
    """A branch as two calls, itself and its trunk, merged by their log-sum-exp."""
    output = []
    for q, k, v, trunk_k, trunk_v in attention_parts(query, key, value, segments):
        out, lse = attend_with_lse(q, k, v, scale, True)
        if trunk_k is not None:
            trunk_out, trunk_lse = attend_with_lse(q, trunk_k, trunk_v, scale, False)
            share = (lse - trunk_lse).sigmoid()
            share = share if lse_gradient else share.detach()
            out = share * out + (1 - share) * trunk_out
        output.append(out)
    return torch.cat(output, 2)


def seeing(visible):
    """Attention over trunk and branch with ``visible(queries, keys)``, a bool mask, in place of the right one."""

    def attend(query, key, value, segments, scale, window):
        output = []
        for q, k, v, trunk_k, trunk_v in attention_parts(query, key, value, segments):
            if trunk_k is not None:
                k, v = torch.cat([trunk_k, k], 2), torch.cat([trunk_v, v], 2)
            mask = visible(q.shape[2], k.shape[2])
            output.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale))
        return torch.cat(output, 2)

    return attend


def causal(queries, keys, *, ahead=0, hidden=None):
    """The right mask, or one that looks ``ahead``, or that hides the key ``hidden`` places after the trunk's end."""
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries + ahead)
    if hidden is not None and keys > queries:
        mask[:, keys - queries + hidden] = False
    return mask


def without_trunks(query, key, value, segments, scale, window):
    """Sequences told apart by positions that restart: a branch does not see its prompt."""
    alone = replace(segments, trunk_S=(-1,) * len(segments.trunk_S))
    return segment_sdpa(query, key, value, alone, scale, window)


def without_windows(query, key, value, segments, scale, window):
    """A window that does not reach the kernel."""
    return segment_sdpa(query, key, value, segments, scale, None)


def detached_keys(query, key, value, segments, scale, window):
    """Right in value, and no gradient through the keys."""
    return segment_sdpa(query, key.detach(), value, segments, scale, window)


WRONG_IN_VALUE = {name: kernel.attend for name, kernel in wrong_kernels().items()} | {
    "branches do not see their prompt": without_trunks,
    "branches miss their prompt's last token": seeing(partial(causal, hidden=-1)),
    "the next token is seen": seeing(partial(causal, ahead=1)),
    "a bool mask that is added": seeing(lambda queries, keys: torch.ones(queries, keys, dtype=torch.bool)),
}
WRONG_IN_GRADIENT = {
    "merged by log-sum-exp without its gradient": partial(merged, lse_gradient=False),
    "keys without a gradient": detached_keys,
}


def positions_go_on(row):
    """Positions counted along the row: they do not start again with a prompt."""
    return replace(row, position_ids=torch.arange(row.segments.total)[None])


def scored_from_the_neighbour(row):
    """Every label one place too early, where the state of another token, or of another sequence, is."""
    labels = torch.cat([row.labels[:, 1:], row.labels.new_full((1, 1), UNSCORED)], 1)
    return replace(row, labels=labels, scored_L=row.scored_L - 1)


WRONG_ROWS = {"positions go on": positions_go_on, "scored from the neighbour": scored_from_the_neighbour}
