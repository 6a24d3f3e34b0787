"""The calculator in headless Chromium: its figures are the model's, at the inputs of a plan and at others."""

import json
import re
from dataclasses import replace

import pytest
from planning_worlds import COSTS, STEP, WORLD, planned, sample_of, tokens_of, workload

from dppo_lab.planning.figures import Figures
from dppo_lab.planning.records import Length, Step
from dppo_lab.planning.written import calculator

PRICES = {"gpus": 2, "gpu_hour": 3.0}
HOSTILE = "</script><script>window.stolen = 1</script><img src=x onerror='window.stolen = 1'>"


def opened(browser, folder, plan, width=1280):
    path = folder / "plan.html"
    path.write_text(calculator(plan), encoding="utf-8")
    browser.screen(width, 900, "light")
    browser.open(path)
    return path


def computed(browser):
    return browser.evaluate("dppoPlan.compute(dppoPlan.read())")


def typed(browser, **values):
    for name, value in values.items():
        browser.evaluate(
            f"(() => {{ const f = document.getElementById({name!r}); f.value = {json.dumps(str(value))};"
            "f.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )


def same(rows, plan, rel=1e-4):
    """Inputs show shares to six digits and tokens to one, so figures agree to about that."""
    assert [row["name"] for row in rows] == [row.option.name for row in plan.rows]
    for found, row in zip(rows, plan.rows, strict=True):
        expected = {
            "per_step": row.per_step.value, "noise": row.noise.value, "hours": row.hours.value,
            "equal_hours": row.equal_hours.value, "speedup": row.speedup.value, "price": row.price,
            "tokens": row.tokens, "completions": row.completions,
        }  # fmt: skip
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=rel), (row.option.name, name)
        for name in ("generated", "forwarded", "trained", "completions"):
            assert found["work"][name] == pytest.approx(getattr(row.work, name), rel=rel), (row.option.name, name)


@pytest.mark.parametrize(
    "step",
    [
        STEP,
        Step(prompts=7, generations=3, scaled="group", floor=0.05),
        Step(prompts=16, generations=4, token_power=0.0, passes=2, shares=2),
        Step(prompts=16, generations=8, every=True, least=None),
    ],
)
@pytest.mark.parametrize("tokens", [None, sample_of(*tokens_of())], ids=["lengths", "tokens"])
def test_figures_are_those_of_the_model(browser, tmp_path, step, tokens):
    figures = replace(WORLD, tokens=tokens, costs=replace(COSTS, head_token=1e-3 if tokens else None))
    plan = planned(figures, step, **PRICES)
    assert len(plan.rows) == (10 if tokens and step.generations == 8 else 8)
    opened(browser, tmp_path, plan)
    same(computed(browser), plan)
    assert not browser.console_errors()


def test_a_plan_of_any_rate_and_group_is_shown(browser, tmp_path):
    """The wrong twin takes multiples of 0.05 and groups of up to 64, and shows nothing of another plan."""
    plan = planned(step=Step(prompts=2, generations=96), rates=(0.333, 0.97, None, None))
    opened(browser, tmp_path, plan)
    assert len(computed(browser)) == 8 and browser.evaluate("document.getElementById('problem').innerText") == ""


def test_figures_follow_what_is_typed_and_go_back(browser, tmp_path):
    opened(browser, tmp_path, planned(**PRICES))
    before = browser.evaluate("document.getElementById('rows').innerText")
    typed(browser, prompts=64, generations=4, gpus=8, price=2, steps=50, first_epoch=5, completion_rate=0.7,
          prompt_rate=0.6, prompt_tokens=30, length=2, decoding=4, rate_1=0.5)  # fmt: skip
    kinds = (0.0, 0.2), (0.5, 0.3), (0.8, 0.3), (1.0, 0.2)
    changed = workload(*kinds, right=40.0, wrong=80.0, prompt=30.0, longest=100.0)
    costs = replace(COSTS, rollout_token=COSTS.rollout_token / 4)
    expected = planned(
        Figures(workload=changed, costs=costs), Step(prompts=64, generations=4), Length(steps=50, first_epoch=5),
        (0.7, 0.6, None, None), gpus=8, gpu_hour=2.0,
    )  # fmt: skip
    rows = computed(browser)
    for row, wanted in zip(rows, expected.rows, strict=True):
        row["name"] = wanted.option.name
    same(rows, expected)
    first = rows[3]["per_step"]
    assert f"{first:.2f}" in browser.evaluate("document.getElementById('rows').innerText"), "the table follows"
    assert "completions 0.7" in browser.evaluate("document.getElementById('chart').textContent"), (
        "and so does the chart"
    )
    browser.evaluate("document.getElementById('reset').click()")
    assert browser.evaluate("document.getElementById('rows').innerText") == before


def test_a_wrong_formula_is_caught(browser, tmp_path):
    plan = planned(**PRICES)
    path = opened(browser, tmp_path, plan)
    page = path.read_text()
    wrong = page.replace("score ** 2) / u.prob", "score ** 2) * u.prob")
    assert wrong != page
    path.write_text(re.sub(r"; script-src '[^']*'", "; script-src 'unsafe-inline'", wrong))
    browser.open(path)
    with pytest.raises(AssertionError, match="noise"):
        same(computed(browser), plan)


@pytest.mark.parametrize("width", [1280, 400])
def test_it_fits_the_screen_and_works_offline_and_by_keyboard(browser, tmp_path, width):
    path = opened(browser, tmp_path, planned(title=HOSTILE, **PRICES), width)
    assert browser.requests() == [path.resolve().as_uri()] and not browser.console_errors()
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("window.stolen") is None, "words of others are text"
    boxes = browser.evaluate("document.querySelectorAll('#chart rect').length")
    assert boxes == 3 * 8
    inside = (
        "Array.from(document.querySelectorAll('#chart text')).every(t => t.getBoundingClientRect().right <= innerWidth)"
    )
    assert browser.evaluate(inside), "no label is cut off"
    unlabelled = "Array.from(document.querySelectorAll('input')).filter(i => !i.labels.length).length"
    assert browser.evaluate(unlabelled) == 0
    browser.evaluate("document.getElementById('prompts').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.ask("Input.dispatchKeyEvent", type=kind, key="ArrowUp", code="ArrowUp", windowsVirtualKeyCode=38)
    assert browser.evaluate("document.getElementById('prompts').value") == "17"


def test_what_is_out_of_range_is_said_and_nothing_is_computed_from_it(browser, tmp_path):
    opened(browser, tmp_path, planned(**PRICES))
    typed(browser, completion_rate=1)
    assert "out of range" in browser.evaluate("document.getElementById('problem').textContent")
    assert browser.evaluate("dppoPlan.read()") is None
