"""The table of docs/methods.md, from the methods' own records. ``make tables`` draws it."""

import re

from dppo.methods import METHODS, Method
from dppo.methods.pods import widest
from dppo.methods.ranking import Ranking
from dppo.pruning import Pruning

HEADINGS = ("method", "paper", "prunes", "biased", "for")
DPPO_PAPER = "2603.04135"
GROUPS = {
    ("grpo",): "the baseline: tune it first",
    ("dppo",): "the default",
    ("dppo_threshold",): "comparing with the DPPO paper, at rates of 0.3 to 0.9",
    ("dr_grpo", "dapo_loss", "gspo", "divergence_ppo_tv", "divergence_ppo_kl"): "another objective",
    ("dppo_dapo", "dppo_gspo", "dppo_divergence_ppo_tv", "dppo_divergence_ppo_kl"): "these objectives, pruned",
    ("dppo_threshold_dapo", "dppo_threshold_gspo"): "the same by the paper's rule",
    ("gdpo",): "several rewards of which one hides the others",
    ("dppo_gdpo",): "the same, pruned",
    ("grpo_history",): "groups of 1 or 2, with a baseline from history",
    ("dppo_history", "dppo_history_scaled", "dppo_history_sizes"): "the same, pruned; `_sizes` chooses group sizes",
    ("a_star_po",): "[values from before training](a_star_po.md)",
    ("dppo_a_star_po",): "the same, pruned",
    ("infobatch",): "prompts alone",
    ("nat_urs",): "tokens alone",
    ("nat_rpc",): "tokens alone; also on verl",
    ("dapo",): "DAPO's dynamic sampling",
    ("greso", "greso_compat"): "GRESO; `_compat` has the thresholds of its code",
    ("cppo",): "CPPO's paper",
    ("cppo_trl",): "CPPO's code",
    ("cppo_verl",): "CPPO in verl",
    ("pods",): "PODS",
    ("dppo_deterministic",): "Algorithm 1 of the DPPO paper, as read here",
    ("dppo_unweighted",): "a control: no weights",
}
"""Methods that share a row, and when to take them."""


def papers(methods: list[Method], names: tuple[str, ...]) -> str:
    """Links to the papers of a row. A pruned objective has the paper of the objective alone."""
    found = [number for method in methods for number in re.findall(r"\d{4}\.\d{5}", method.paper)]
    numbers = [number for number in dict.fromkeys(found) if number != DPPO_PAPER or len(set(found)) == 1]
    assert numbers, names
    return ", ".join(f"[{number}](https://arxiv.org/abs/{number})" for number in numbers)


def dropped(method: Method) -> str:
    """Units that a method leaves out."""
    completions = method.completions
    parts = ["groups that do not count, in rounds"] if method.rounds is not None else []
    if isinstance(completions, Ranking) and completions.choose is widest:
        parts.append("completions; the subset with the widest rewards is kept")
    elif not isinstance(completions, Pruning):
        parts.append(f"completions, {str(completions).partition('pruned, ')[2].removesuffix(', without chance')}")
    elif completions.rate:
        parts.append(f"completions, `{completions.rule.__name__}`; prompts")
    elif method.prompts.rate:
        parts.append("prompts")
    parts += ["tokens behind a random cut"] if method.tokens.rate else []
    parts += ["tokens, at random"] if method.tokens.head_rate else []
    return "; ".join(parts) or "nothing"


def biased(method: Method) -> str:
    """Bias at the method's own rates, or with prompts pruned if the method prunes completions."""
    if method.biases():
        return "**yes**"
    if not isinstance(method.completions, Pruning) or not method.completions.rate:
        return "no"
    return "**yes**, if prompts are pruned" if method.with_rates(prompt=0.5).biases() else "no"


def table() -> str:
    """One row for each group of methods."""
    rows, listed = [HEADINGS, tuple("---" for _ in HEADINGS)], sorted(name for names in GROUPS for name in names)
    assert listed == sorted(METHODS), f"GROUPS must have each method once; not so: {set(METHODS) ^ {*listed} or listed}"
    for names, purpose in GROUPS.items():
        methods = [METHODS[name] for name in names]
        (prunes,) = {dropped(method) for method in methods}
        (bias,) = {biased(method) for method in methods}
        rows.append((", ".join(f"`{name}`" for name in names), papers(methods, names), prunes, bias, purpose))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
