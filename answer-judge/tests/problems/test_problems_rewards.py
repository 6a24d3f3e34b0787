"""The rewards that come with the library, and the check of columns before training."""

from datasets import Dataset
from refusals import refused

from answer_judge.errors import ConfigError, DataError
from answer_judge.grading import REASONS
from answer_judge.problems import accuracy_reward, check_rewards, format_reward

QUESTIONS = ["1/2 of 1?"] * 4
TEXTS = [r"\boxed{0.5}", r"\boxed{2}", "no idea", r"\boxed{\frac{1}{2}}"]
GOLDS = [r"\frac{1}{2}"] * 4


def test_accuracy_and_the_share_of_every_reason(verifier):
    """Every reason is logged every time: ranks must agree on the names."""
    metrics, tables = {}, {}
    log = {"log_metric": metrics.__setitem__, "log_extra": tables.__setitem__}
    messages = [[{"role": "assistant", "content": text}] for text in TEXTS]
    for completions in (TEXTS, messages):
        found = accuracy_reward(verifier=verifier)(QUESTIONS, completions, answer=GOLDS, **log)
        assert found == [1.0, 0.0, 0.0, 1.0]
    assert metrics == {f"verify/{r}": {"right": 0.5, "wrong": 0.25, "no_answer": 0.25}.get(r, 0.0) for r in REASONS}
    assert tables == {"verdict": ["right", "wrong", "no_answer", "right"]}


def test_format_and_completions_of_several_messages_and_parts(verifier):
    texts = [r"\boxed{}", r"\boxed{no matter what}", "7", r"\boxed{7"]
    assert format_reward()(prompts=["q"] * 4, completions=texts) == [0.0, 1.0, 0.0, 0.0]
    tools = [
        {"role": "assistant", "content": r"\boxed{1}"},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": [{"type": "text", "text": r"so \boxed"}, {"type": "text", "text": "{4}"}]},
    ]
    silent = [{"role": "assistant", "content": None}]
    assert accuracy_reward(verifier=verifier)(["q"] * 3, [tools, silent, []], answer=["4"] * 3) == [1.0, 0.0, 0.0]


def test_accuracy_refuses_what_would_be_a_silent_zero(verifier):
    reward = accuracy_reward(verifier=verifier)
    with refused(DataError, "'answer'", "'gold'"):
        reward(QUESTIONS, TEXTS, gold=GOLDS, trainer_state=None)
    with refused(DataError, "gold answer 1 is ''"):
        reward(["q"] * 2, TEXTS[:2], answer=["1", None])
    with refused(DataError, "text or a number"):
        reward(["q"], [r"\boxed{5}"], answer=[["5"]])
    with refused(ConfigError, "limit_seconds=0"):
        accuracy_reward(limit_seconds=0)


def test_columns_are_checked_before_training(verifier):
    good = Dataset.from_dict({"prompt": ["a", "b"], "answer": ["1", "0"]})
    reward = accuracy_reward(verifier=verifier)
    needs = [reward, format_reward()]
    check_rewards(good, [*needs, "owner/reward-model"])
    check_rewards(good.to_iterable_dataset(), needs)
    with refused(DataError, "'gold'", "'prompt', 'answer'"):
        check_rewards(good, [lambda completions, gold: []])
    holes = Dataset.from_dict({"answer": ["1", "", None, " "] + [""] * 5})
    with refused(DataError, "8 rows (counted from 0: 1, 2, 3, 4, 5, ...) of 9"):
        check_rewards(holes, needs)
    with refused(DataError, "text or a number"):
        check_rewards(Dataset.from_dict({"answer": [["5"]]}), needs)
    with refused(DataError, "'log_metric'"):
        check_rewards(good.add_column("log_metric", [1, 2]), needs)
    said = {"answer": ["5", "5"], "tolerance": ["1e-2", None], "unit": ["km", ""], "is_multiple_answer": ["False", "1"]}
    check_rewards(Dataset.from_dict(said), [reward])
    check_rewards(Dataset.from_dict(said | {"tolerance": [0.01, float("nan")]}), [reward])
    check_rewards(Dataset.from_dict({"tolerance": ["any"]}), [format_reward()])
    for name, value in (("tolerance", "1e-2,1e-1"), ("tolerance", "1%"), ("is_multiple_answer", "maybe")):
        with refused(DataError, f"column '{name}', row 1: {name}='{value}'"):
            check_rewards(Dataset.from_dict(said | {name: ["1", value]}), [reward])
    for gold, named in ((float("nan"), "empty cell"), ("So it is 8 * 9 = 72.\n#### 72", "'####'")):
        with refused(DataError, "gold answer", "'answer'", named):
            check_rewards(Dataset.from_dict({"answer": [gold]}), [reward])
        with refused(DataError, "gold answer", "'answer'", named):
            reward(["q"], [r"\boxed{72}"], answer=[gold])
