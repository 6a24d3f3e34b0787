"""Every preset by its name, what it claims, and a test for each file of a paper."""

import pickle
from pathlib import Path

import pytest
from claims import WRITTEN, claims

from dppo.methods import METHODS, ROW_METHODS

HERE = Path(__file__).parent
UNBIASED = claims("UNBIASED")


@pytest.mark.parametrize("name", WRITTEN)
def test_every_file_of_methods_has_a_test_file(name):
    assert (HERE / f"test_methods_{name}.py").is_file()


def test_presets_are_listed_by_their_names_and_each_is_of_a_paper():
    assert set(METHODS) == set(UNBIASED)
    assert all(name == method.name and method.paper.startswith("arXiv:") for name, method in METHODS.items())


@pytest.mark.parametrize("method", [*METHODS.values(), *ROW_METHODS.values()], ids=[*METHODS, *ROW_METHODS])
def test_presets_go_to_other_processes(method):
    assert pickle.loads(pickle.dumps(method)).describe() == method.describe()


def test_which_presets_claim_to_be_unbiased():
    """``tests/methods/test_methods_estimator.py`` proves each of these."""
    rates = {name: 0.5 if method.rounds is None else 0.0 for name, method in METHODS.items()}
    pruned = {name: METHODS[name].with_rates(prompt=rate, completion=0.5) for name, rate in rates.items()}
    assert {name: not method.biases() for name, method in pruned.items()} == UNBIASED
    unpruned = {name: method.with_rates(prompt=0.0, completion=0.0) for name, method in METHODS.items()}
    assert [name for name, method in unpruned.items() if method.biases()] == ["dapo", "greso", "greso_compat"]


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_the_description_tells_method_paper_bias_and_deviations(method):
    prompt = 0.3 if method.rounds is None else None
    for variant in (method, method.with_rates(prompt=prompt, completion=0.5)):
        for steps in (1, 2):
            text = variant.describe(steps)
            assert ("Gradient: unbiased." in text) == (not variant.biases(steps))
            for named in (variant.name, variant.paper, *variant.biases(steps), *variant.deviations):
                assert named in text
