"""Decoding with drafts: earlier completions of a prompt are verified in one forward pass, the rest is decoded.

A draft is a guess that is fixed before the draw. While the policy draws the tokens of a draft, the draft is followed;
at the first other token it ends, and that token is kept. So completions have the policy's distribution for any drafts,
and only the speed depends on them.

Completions of a prompt begin alike, so its drafts form a tree, which is read once for all its new completions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dppo.packing.micro_batches import sorted_micro_batches
from dppo_lab.demo.cache import Cache
from dppo_lab.demo.decode import Rollout, Unfinished, check_model, choose, complete, each_size, end_tokens

PASS_TOKENS = 512
"""Tokens of one verifying pass, padding included; trees of similar size are read together."""

Decoder = Callable[..., Rollout]
"""A function with the signature of ``decode.sample``."""


def accept_or_resample(
    logits_BV: Tensor, draft_BG: Tensor, generator: torch.Generator | None, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Accept the draft token x with probability pi(x), otherwise draw from pi without x.

    One draw from pi does both: it is x with probability pi(x), and otherwise it is a draw from pi without x. The same
    holds for several different drafts, of which at most one is accepted; -1 in ``draft_BG`` is none.

    Gives (B,) tokens, (B,) their log-probabilities as in ``sample``, and (B,) the place of the accepted draft, or -1.

    Source: Leviathan et al. (2022), arXiv:2211.17192, for a draft that is certain of its token.
    """
    token_B, logp_B = choose(logits_BV, generator, temperature)
    place_B = torch.full_like(token_B, -1)
    row_M, draft_M = (draft_BG == token_B[:, None]).nonzero(as_tuple=True)
    place_B[row_M] = draft_M
    return token_B, logp_B, place_B


@torch.no_grad()
def sample_drafted(
    model: Qwen3ForCausalLM,
    prompts: list[list[int]],
    drafts: Sequence[Sequence[Sequence[int]]],
    generator: torch.Generator | None,
    *,
    samples: int | Sequence[int] = 1,
    max_new_tokens: int,
    temperature: float = 1.0,
) -> Rollout:
    """Completions with the distribution of ``sample``, in less time where the drafts are good.

    Arguments are those of ``sample``, and for each prompt any number of ``drafts`` of any lengths, as token ids. Tokens
    of a draft after an end of sequence or beyond ``max_new_tokens`` are ignored. Drafts must not depend on what
    ``generator`` will draw. Random numbers are used in another order than in ``sample``, so completions differ.
    """
    sizes = each_size(samples, prompts)
    check_model(model)
    end = set(end_tokens(model))
    cut = [[tuple(takewhile(lambda x: x not in end, d[: max_new_tokens - 1])) for d in of_one] for of_one in drafts]
    trees = build_trees(prompts, cut, model.device)
    store, logits_PTV = _read_trees(model, trees)

    tree_N = torch.arange(len(prompts), device=model.device).repeat_interleave(torch.tensor(sizes, device=model.device))
    made = Unfinished(model, len(tree_N), max_new_tokens)
    node_N = _walk(trees, logits_PTV, tree_N, made, generator, temperature)
    row_B = made.open_N.nonzero()[:, 0]
    if len(row_B) > 0:
        length_B = made.length_N[row_B]
        room = max_new_tokens - int(length_B.min())
        cache = _beginnings(model, trees, store, tree_N[row_B], node_N[row_B], room)
        logits_BV = cache.read_tokens(made.token_NT[row_B, length_B - 1])
        complete(cache, logits_BV, row_B, made, generator, temperature)
    return made.rollout()


class LastCompletions:
    """A decoder whose drafts are the last completions of each prompt; a new prompt has none."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, ...], list[list[int]]] = {}

    def __call__(
        self,
        model: Qwen3ForCausalLM,
        prompts: list[list[int]],
        generator: torch.Generator | None,
        *,
        samples: int | Sequence[int] = 1,
        max_new_tokens: int,
        temperature: float = 1.0,
    ) -> Rollout:
        """Completions as from ``sample``, which become the drafts of the next call with the same prompt."""
        keys = [tuple(prompt) for prompt in prompts]
        drafts = [self._last.get(key, []) for key in keys]
        made = sample_drafted(
            model,
            prompts,
            drafts,
            generator,
            samples=samples,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
        )
        texts, new = iter(made.token_lists), dict[tuple[int, ...], list[list[int]]]()
        for key, size in zip(keys, each_size(samples, prompts), strict=True):  # a prompt may be there more than once
            new.setdefault(key, []).extend(islice(texts, size))
        self._last |= new
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """Each prompt with its drafts as a tree in preorder: the nodes under a node follow it without a gap."""

    token_PT: Tensor
    """(P, T) int64 tokens, those of the prompt first; 0 where there is no node."""
    depth_PT: Tensor
    """(P, T) int64 position of the token in its text, from 0."""
    stop_PT: Tensor
    """(P, T) int64, one past the last node of the subtree at a node; 0 where there is no node."""
    child_PTG: Tensor
    """(P, T, G) int64 children of a node, -1 where there is none."""
    root_P: Tensor
    """(P,) int64 node of the last token of the prompt."""
    size_P: Tensor
    """(P,) int64 nodes."""

    def above(self, tree_B: Tensor, node_B: Tensor) -> Tensor:
        """(B, T) bool, True at the nodes on the path from the first token of the prompt to a node, itself included."""
        stop_BT = self.stop_PT[tree_B]
        column = torch.arange(stop_BT.shape[1], device=stop_BT.device)
        return (column <= node_B[:, None]) & (node_B[:, None] < stop_BT)


def build_trees(
    prompts: Sequence[Sequence[int]], drafts: Sequence[Sequence[Sequence[int]]], device: torch.device
) -> Trees:
    """The trees of all prompts with their drafts."""
    made = [_build_tree(prompt, of_one) for prompt, of_one in zip(prompts, drafts, strict=True)]
    width = max(len(tokens) for tokens, _, _ in made)
    branches = max(len(under) for _, _, children in made for under in children)
    child_PTG = torch.full((len(made), width, max(branches, 1)), -1)
    places = [
        (tree, node, place, child)
        for tree, (_, _, children) in enumerate(made)
        for node, under in enumerate(children)
        for place, child in enumerate(under)
    ]
    tree_M, node_M, place_M, value_M = torch.tensor(places or [(0, 0, 0, -1)]).T
    child_PTG[tree_M, node_M, place_M] = value_M

    def padded(rows: list[list[int]]) -> Tensor:
        return torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)

    return Trees(
        token_PT=padded([tokens for tokens, _, _ in made]),
        depth_PT=padded([depths for _, depths, _ in made]),
        stop_PT=padded([_stops(children) for _, _, children in made]),
        child_PTG=child_PTG.to(device),
        root_P=torch.tensor([len(prompt) - 1 for prompt in prompts], device=device),
        size_P=torch.tensor([len(tokens) for tokens, _, _ in made], device=device),
    )


def _build_tree(prompt: Sequence[int], drafts: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[list[int]]]:
    """Tokens, depths and children of the nodes. Drafts are sorted, so a branch that was left is never extended."""
    tokens, depths = list(prompt), list(range(len(prompt)))
    children = [*([node + 1] for node in range(len(prompt) - 1)), []]
    path: list[int] = []
    for draft in sorted({tuple(draft) for draft in drafts}):
        shared = sum(1 for _ in takewhile(lambda pair: tokens[pair[0]] == pair[1], zip(path, draft, strict=False)))
        path = path[:shared]
        for token in draft[shared:]:
            children[path[-1] if path else len(prompt) - 1].append(len(tokens))
            path.append(len(tokens))
            depths.append(len(prompt) + len(path) - 1)
            tokens.append(token)
            children.append([])
    return tokens, depths, children


def _stops(children: list[list[int]]) -> list[int]:
    """One past the last node of the subtree at each node."""
    stops = [node + 1 for node in range(len(children))]
    for node in reversed(range(len(children))):
        if children[node]:
            stops[node] = stops[children[node][-1]]
    return stops


def _read_trees(model: Qwen3ForCausalLM, trees: Trees) -> tuple[Tensor, Tensor]:
    """Keys and values of all nodes, as a ``Cache`` stores them, and (P, T, V) logits after each node."""
    count, width = trees.token_PT.shape
    store = Cache(model, torch.zeros_like(trees.size_P), width).store
    logits_PTV = store.new_empty(count, width, model.config.vocab_size)
    for tree_B in sorted_micro_batches(trees.size_P.cpu(), PASS_TOKENS):
        tree_B = tree_B.to(model.device)
        wide = int(trees.size_P[tree_B].max())
        part = Cache(model, torch.zeros_like(tree_B), wide)
        column = torch.arange(wide, device=model.device)
        stop_BT = trees.stop_PT[tree_B, :wide]
        seen_BTT = (column <= column[:, None]) & (column[:, None] < stop_BT[:, None])
        bias = torch.zeros_like(seen_BTT, dtype=part.dtype).masked_fill_(~seen_BTT, part.unseen)
        hidden_BTD = part.forward(trees.token_PT[tree_B, :wide], trees.depth_PT[tree_B, :wide], bias)
        store[:, :, tree_B, :, :wide] = part.store
        logits_PTV[tree_B, :wide] = model.lm_head(hidden_BTD)
    return store, logits_PTV


def _walk(
    trees: Trees,
    logits_PTV: Tensor,
    tree_N: Tensor,
    made: Unfinished,
    generator: torch.Generator | None,
    temperature: float,
) -> Tensor:
    """Draw the tokens of each completion until it leaves its tree or ends; (N,) the last node on its way."""
    node_N, row_B = trees.root_P[tree_N], torch.arange(len(tree_N), device=tree_N.device)
    while len(row_B) > 0:
        tree_B, node_B = tree_N[row_B], node_N[row_B]
        child_BG = trees.child_PTG[tree_B, node_B]
        draft_BG = trees.token_PT[tree_B[:, None], child_BG].masked_fill(child_BG < 0, -1)
        token_B, logp_B, place_B = accept_or_resample(logits_PTV[tree_B, node_B], draft_BG, generator, temperature)
        on_B = made.append(row_B, token_B, logp_B) & (place_B >= 0)
        row_B = row_B[on_B]
        node_N[row_B] = child_BG[on_B, place_B[on_B]]
    return node_N


def _beginnings(
    model: Qwen3ForCausalLM, trees: Trees, store: Tensor, tree_B: Tensor, node_B: Tensor, room: int
) -> Cache:
    """A cache with the text of each completion up to its node, and columns for ``room`` more tokens."""
    above_BT = trees.above(tree_B, node_B)
    size_B = above_BT.sum(1)
    wide = int(size_B.max())
    column = torch.arange(above_BT.shape[1], device=above_BT.device)
    # Sorted, columns off the path come first: they are the padding on the left.
    source_BT = torch.where(above_BT, column, -1).sort(1).values[:, -wide:].clamp_min(0)
    cache = Cache(model, wide - size_B, wide + room)
    cache.store[..., :wide, :] = store.transpose(3, 4)[:, :, tree_B[:, None], source_BT].transpose(3, 4)
    cache.filled = wide
    return cache
