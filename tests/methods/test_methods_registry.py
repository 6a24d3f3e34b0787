"""Every preset by its name, and what it claims."""

import pickle

import pytest

from dppo.methods import METHODS, ROW_METHODS

ROUNDS = {"dapo", "greso", "greso_compat"}
RANKED = {"cppo", "cppo_trl", "cppo_verl", "pods"}
BIASED = ROUNDS | RANKED | {"gdpo", "dppo_gdpo", "dppo_deterministic", "dppo_unweighted"}


@pytest.mark.parametrize("method", [*METHODS.values(), *ROW_METHODS.values()], ids=[*METHODS, *ROW_METHODS])
def test_presets_go_to_other_processes(method):
    assert pickle.loads(pickle.dumps(method)).describe() == method.describe()


def test_which_presets_claim_to_be_unbiased():
    """``tests/methods/test_methods_estimator.py`` proves each of these."""
    rates = {name: 0.0 if name in ROUNDS else 0.5 for name in METHODS}
    pruned = {name: METHODS[name].with_rates(prompt=rate, completion=0.5) for name, rate in rates.items()}
    assert {name for name, method in pruned.items() if method.biases()} == BIASED
    unpruned = {name: method.with_rates(prompt=0.0, completion=0.0) for name, method in METHODS.items()}
    assert {name for name, method in unpruned.items() if method.biases()} == ROUNDS


@pytest.mark.parametrize("name", METHODS)
def test_the_description_tells_method_paper_bias_and_deviations(name):
    method, prompt = METHODS[name], None if name in ROUNDS else 0.3
    assert name == method.name and method.paper.startswith("arXiv:")
    for variant in (method, method.with_rates(prompt=prompt, completion=0.5)):
        for steps in (1, 2):
            text = variant.describe(steps)
            assert ("Gradient: unbiased." in text) == (not variant.biases(steps))
            for named in (variant.name, variant.paper, *variant.biases(steps), *variant.deviations):
                assert named in text
