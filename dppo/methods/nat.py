"""NAT, arXiv:2603.06619: a part of the tokens of every completion, chosen without a look at what they hold."""

from dppo.methods.method import Scheme
from dppo.pruning import TokenPruning, all_alike, random_prefix

_PAPER = "arXiv:2603.06619, Not All Tokens Are Needed: Token-Efficient Reinforcement Learning"

NAT_URS = Scheme(
    name="nat_urs",
    paper=_PAPER,
    tokens=TokenPruning(head_rate=0.5, head_rule=all_alike),
    deviations=("tokens that are left out do not reach the head, and those behind the last one drawn no layer",),
)
"""Uniform random sampling: every token has the same probability."""

NAT_RPC = Scheme(
    name="nat_rpc",
    paper=_PAPER,
    tokens=TokenPruning(rate=0.5, cut_rule=random_prefix),
    deviations=("the shortest prefix is the share of each completion that makes the mean rate the one asked for",),
)
"""Random prefix cutting: every completion up to a uniform length."""
