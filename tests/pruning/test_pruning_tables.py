"""Every public part has examples here, good and bad: adding one without them fails the suite."""

import inspect
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from arrays import tensor

from dppo.errors import ConfigError, DesignError
from dppo.pruning import DESIGNS, RULES, SCHEDULES, SCORES, Budget, Design
from dppo.pruning import designs as designs_module
from dppo.pruning import level as level_module
from dppo.pruning import probabilities as probabilities_module
from dppo.pruning import scores as scores_module
from dppo.pruning.designs import WEIGHTINGS, Weighting
from dppo.rng import generator
from dppo.types import Completions

ROWS = Completions(
    advantage_N=tensor([2, -1]),
    tokens_N=torch.tensor([4, 9]),
    group_N=torch.tensor([0, 0]),
    live_N=torch.tensor([True, True]),
    uncertainty_N=tensor([0.5, 3]),
)
SILENT = Completions(advantage_N=tensor([2]), tokens_N=tensor([1]), group_N=tensor([0]), live_N=torch.tensor([True]))

RULE_EXAMPLES = {
    "proportional": ([1, 1, 4, 2], [0.25, 0.25, 1, 0.5]),
    "threshold": ([1, 1, 4, 2], [0.5, 0.5, 1, 1]),
    "uniform": ([1, 1, 4, 2], [0.5, 0.5, 0.5, 0.5]),
}
"""Scores and the probabilities they get at rate 0.5; the bad example is a negative score."""

DESIGN_EXAMPLES = {
    "pivotal": ([1, 0, 0.5, 0.5], {2}),
    "systematic": ([1, 0, 0.5, 0.5], {2}),
    "poisson": ([1, 0, 0.5, 0.5], {1, 2, 3}),
    "deterministic": ([1, 0, 0.5, 0.5], {2}),
}
"""Probabilities and the sizes a draw may have."""

SCORE_EXAMPLES = {"advantage": [2, 1], "length": [4, 3], "uncertainty": [1, 3], "uniform": [1, 1]}
"""Scores of ``ROWS``."""

WEIGHTING_EXAMPLES = {"inverse_probability": [4, 0, 1], "unweighted": [1, 0, 1], "kept_mean": [1.5, 0, 1.5]}
"""Weights of rows kept, dropped, kept, with probabilities 0.25, 0.5 and 1."""

SCHEDULE_EXAMPLES = {"constant": [1, 1, 1], "stop": [1, 0, 0], "fade": [1, 0.5, 0]}
"""Factors at 0, 3/4 and 1 of a run whose full rates last until its middle."""

TABLES = {
    "rules": (RULES, RULE_EXAMPLES),
    "designs": (DESIGNS, DESIGN_EXAMPLES),
    "scores": (SCORES, SCORE_EXAMPLES),
    "weightings": (WEIGHTINGS, WEIGHTING_EXAMPLES),
    "schedules": (SCHEDULES, SCHEDULE_EXAMPLES),
}


def public_functions(module: ModuleType, parameters: list[str]) -> set[Callable]:
    """Functions written in ``module`` whose arguments start with ``parameters``."""
    return {
        function
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and not name.startswith("_")
        and list(inspect.signature(function).parameters)[: len(parameters)] == parameters
    }


def records(module: ModuleType, kind: type) -> dict:
    """Values of a record that are written in ``module``, by the names they give themselves."""
    return {value.name: value for value in vars(module).values() if isinstance(value, kind)}


@pytest.mark.parametrize(("registry", "examples"), TABLES.values(), ids=TABLES)
def test_every_public_part_has_an_example(registry, examples):
    assert set(examples) == set(registry)


def test_every_part_that_exists_is_registered_under_its_name():
    assert public_functions(probabilities_module, ["score_N", "budget"]) == set(RULES.values())
    assert public_functions(scores_module, ["completions"]) == set(SCORES.values())
    assert public_functions(level_module, ["done"]) == set(SCHEDULES.values())
    assert records(designs_module, Weighting) == WEIGHTINGS
    assert records(designs_module, Design) == DESIGNS
    draws = {design.draw for design in DESIGNS.values()}
    assert draws == public_functions(designs_module, ["prob_N", "score_N", "rng"])
    for name, part in (RULES | SCHEDULES).items():
        assert part.__name__ == name


@pytest.mark.parametrize("name", RULES)
def test_rules(name):
    score, expected = RULE_EXAMPLES[name]
    budget = Budget(rate=0.5, floor=0.1)
    torch.testing.assert_close(RULES[name](tensor(score), budget), tensor(expected))
    with pytest.raises(DesignError, match=r"finite and >= 0"):
        RULES[name](tensor([-1, 2]), budget)


@pytest.mark.parametrize("name", DESIGNS)
def test_designs(name):
    prob, sizes = DESIGN_EXAMPLES[name]
    found = {int(DESIGNS[name].draw(tensor(prob), tensor(prob), generator(seed)).sum()) for seed in range(50)}
    assert found == sizes


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    score = SCORES[name](ROWS)
    assert score.tolist() == SCORE_EXAMPLES[name] and score.dtype == torch.float64
    if name == "uncertainty":
        with pytest.raises(ConfigError, match=r"log-probabilities.*Use advantage_with_length"):
            SCORES[name](SILENT)
    else:
        assert SCORES[name](SILENT).shape == (1,)


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_weightings(name):
    keep, prob = torch.tensor([True, False, True]), tensor([0.25, 0.5, 1])
    weight = WEIGHTINGS[name].compute(keep, prob)
    assert weight.tolist() == WEIGHTING_EXAMPLES[name] and weight.dtype == torch.float64
    assert WEIGHTINGS[name].compute(keep & ~keep, prob).tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    assert [SCHEDULES[name](done, until=0.5) for done in (0.0, 0.75, 1.0)] == SCHEDULE_EXAMPLES[name]
    assert SCHEDULES[name](0.874) == 1.0, "InfoBatch prunes in 0.875 of a run, and so do all by default"
    assert SCHEDULES[name](0.0, until=1.0) == 1.0
