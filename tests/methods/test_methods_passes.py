"""Beyond one gradient: several passes over one batch of rollouts, and what optimizers do to an unbiased gradient."""

import pytest
import torch
from tiny_policy import ONES, THETA, at_rates, estimate, expectation, gradient, relative_error, selections

from dppo.methods import DPPO

METHOD = at_rates(DPPO, 0.0, 0.5, beta=0.2)
STEP = 0.5


def after_first_pass(selection):
    """Parameters after one step of plain gradient descent with this selection."""
    return THETA - STEP * estimate(METHOD, selection)


def test_a_new_draw_makes_each_pass_unbiased_at_its_own_parameters():
    """For every outcome of the first draw separately; probabilities do not depend on the parameters."""
    for first in list(selections(METHOD))[::40]:
        theta = after_first_pass(first)
        second = expectation(METHOD, lambda selection, theta=theta: estimate(METHOD, selection, theta=theta))
        assert relative_error(second, gradient(METHOD, ONES, theta=theta)) < 1e-12


def test_reusing_the_draw_biases_the_second_pass():
    """The parameters then depend on the very rows that the second gradient is made of."""
    reused = expectation(METHOD, lambda s: estimate(METHOD, s, theta=after_first_pass(s)))
    wanted = expectation(METHOD, lambda s: gradient(METHOD, ONES, theta=after_first_pass(s)))
    assert relative_error(reused, wanted) > 1e-2


def test_the_prompt_draw_is_shared_by_all_passes_so_only_the_first_is_for_the_whole_block():
    """Completions can be drawn anew for the second pass, prompts cannot: its parameters know which were rolled out."""
    method = at_rates(DPPO, 0.5, 0.0, beta=0.2)
    assert relative_error(expectation(method), gradient(method, ONES)) < 1e-12

    def second(selection, of_theta):
        return of_theta(THETA - STEP * estimate(method, selection))

    got = expectation(method, lambda s: second(s, lambda theta: estimate(method, s, theta=theta)))
    wanted = expectation(method, lambda s: second(s, lambda theta: gradient(method, ONES, theta=theta)))
    assert relative_error(got, wanted) > 1e-2


@pytest.mark.parametrize("joint", [False, True], ids=["one draw per step", "one draw over both steps"])
def test_steps_over_parts_of_a_batch_need_their_own_draws(joint):
    """Rows 0 and 1 are the parts of two steps, each kept with probability 1/2. A joint draw keeps exactly one."""
    rows = 2 * torch.eye(len(ONES), dtype=torch.float64)[:2]
    outcomes = [(1, 0), (0, 1)] if joint else [(0, 0), (1, 0), (0, 1), (1, 1)]
    got, wanted = 0.0, 0.0
    for first, second in outcomes:
        theta = THETA - STEP * gradient(METHOD, first * rows[0])
        got = got + gradient(METHOD, second * rows[1], theta=theta) / len(outcomes)
        wanted = wanted + gradient(METHOD, rows[1] / 2, theta=theta) / len(outcomes)
    assert relative_error(got, wanted) > 1e-3 if joint else relative_error(got, wanted) < 1e-12


def test_plain_gradient_descent_moves_to_the_right_place_on_average():
    mean = expectation(METHOD, after_first_pass)
    assert relative_error(mean, THETA - STEP * gradient(METHOD, ONES)) < 1e-12


def clipped(g, most):
    return g * min(1.0, most / g.norm().item())


def adam_first_step(g):
    """Adam's first update after bias correction, with epsilon 1e-8: the gradient over its own magnitude."""
    return g / (g.square().sqrt() + 1e-8)


@pytest.mark.parametrize("name", ["norm clipping", "adam"])
def test_an_unbiased_gradient_is_not_an_unbiased_update(name):
    full = gradient(METHOD, ONES)
    update = {"norm clipping": lambda g: clipped(g, full.norm().item()), "adam": adam_first_step}[name]
    mean = expectation(METHOD, lambda s: update(estimate(METHOD, s)))
    assert relative_error(mean, update(full)) > 1e-2


def test_the_square_that_adam_keeps_grows_by_the_variance():
    """E[g^2] = (E g)^2 + Var g per parameter: pruning makes Adam's steps shorter, never longer, on this account."""
    full = gradient(METHOD, ONES)
    second = expectation(METHOD, lambda s: estimate(METHOD, s).square())
    assert (second >= full.square() - 1e-15).all()
    assert (second - full.square()).max() > 1e-3 * full.square().max()


def test_the_variance_is_the_formula_for_independent_draws():
    """trace Cov = sum (1/prob - 1) |g_i|^2 with g_i the gradient of one completion, from which the rule is derived."""
    full = gradient(METHOD, ONES)
    spread = expectation(METHOD, lambda s: (estimate(METHOD, s) - full).square().sum())
    parts = [gradient(METHOD, row) for row in torch.eye(len(ONES), dtype=torch.float64)]
    prob_N = torch.zeros_like(ONES)
    for selection in selections(METHOD):
        prob_N += selection.chance * selection.keep_N.double()
    formula = sum((1 / p - 1) * g.square().sum() for p, g in zip(prob_N, parts, strict=True))
    torch.testing.assert_close(spread, formula, rtol=1e-10, atol=0)
