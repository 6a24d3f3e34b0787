"""Layouts that are wrong, as one would write them: kernels in the place of ours, and rows that are built wrongly."""

from dataclasses import replace
from functools import partial

import torch
from packing_models import WINDOW
from packing_varlen import OwnSums
from torch.nn import functional as F

from dppo.packing.kernels import by_segment, segment_sdpa
from dppo.packing.rows import UNSCORED
from dppo.packing.two_calls import in_two_calls
from dppo.verification.controls import wrong_kernels


def seeing(visible):
    """Attention over trunk and branch with ``visible(queries, keys)``, a bool mask, in place of the right one."""

    def attend(query, key, value, segments, scale, window):
        output = []
        for q, k, v in by_segment(query, key, value, segments):
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


def windows_in_every_layer(query, key, value, segments, scale, window):
    return segment_sdpa(query, key, value, segments, scale, WINDOW)


def windows_in_places(query, key, value, segments, scale, window):
    """Between a branch and its trunk lie other branches: distance in the row is not distance in the sequence."""
    lengths, place = torch.tensor(segments.length_S), torch.arange(segments.total)
    own_T = torch.arange(len(lengths)).repeat_interleave(lengths)
    trunk_T = torch.tensor(segments.trunk_S).repeat_interleave(lengths)
    related = (own_T[:, None] == own_T) | (trunk_T[:, None] == own_T)
    apart = place[:, None] - place
    mask = related & (apart >= 0) & (apart < (window or segments.total))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=True)


def detached_keys(query, key, value, segments, scale, window):
    """Right in value, and no gradient through the keys."""
    return segment_sdpa(query, key.detach(), value, segments, scale, window)


WRONG_IN_VALUE = {name: kernel.attend for name, kernel in wrong_kernels().items()} | {
    "branches do not see their prompt": without_trunks,
    "branches miss their prompt's last token": seeing(partial(causal, hidden=-1)),
    "the next token is seen": seeing(partial(causal, ahead=1)),
    "a bool mask that is added": seeing(lambda queries, keys: torch.ones(queries, keys, dtype=torch.bool)),
}
WRONG_IN_WINDOW = {"none": without_windows, "in every layer": windows_in_every_layer, "in places": windows_in_places}
WRONG_IN_GRADIENT = {
    "two calls whose backward takes its own sums": in_two_calls(OwnSums(), segment_sdpa),
    "keys without a gradient": detached_keys,
}


def positions_go_on(row):
    """Positions counted along the row: they do not start again with a prompt."""
    return replace(row, position_ids=torch.arange(row.segments.total)[None])


def scored_from_the_neighbour(row):
    """Every label one place too early, where the state of another token, or of another sequence, is."""
    labels = torch.cat([row.labels[:, 1:], row.labels.new_full((1, 1), UNSCORED)], 1)
    return replace(row, labels=labels, scored_L=row.scored_L - 1)


def on_another_trunk(row):
    """Branches see the trunk of the next prompt, those of the last prompt the first trunk."""
    parents = sorted({trunk for trunk in row.segments.trunk_S if trunk >= 0})
    following = {-1: -1} | dict(zip(parents, [*parents[1:], parents[0]], strict=True))
    trunk_S = tuple(following[trunk] for trunk in row.segments.trunk_S)
    return replace(row, segments=replace(row.segments, trunk_S=trunk_S))


WRONG_ROWS = {
    "positions go on": positions_go_on,
    "scored from the neighbour": scored_from_the_neighbour,
    "on another trunk": on_another_trunk,
}
