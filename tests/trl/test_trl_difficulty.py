"""``difficulty_features`` of a run: what they read, what they refuse, and that the trainer learns from them."""

import numpy as np
import pytest
from conftest_trl import CONFIG
from datasets import Dataset
from refusals import refused

from dppo.errors import DataError
from dppo.trl import DPPOConfig
from dppo.trl.grpo.prompts import difficulty_predictor

CONFIG = CONFIG | dict(per_device_train_batch_size=8, method="dppo_history")
TABLE = Dataset.from_dict(
    {
        "prompt": ["a", "bcd", "ef"],
        "level": [1, 3, 2],
        "text": ["x", "y", "z"],
        "gaps": [1.0, None, 2.0],
        "chat": [[{"role": "user", "content": "ab"}]] * 3,
    }
)


def features(names, table=TABLE, functions=1, **options):
    predictor = difficulty_predictor(table, DPPOConfig(**CONFIG, difficulty_features=names, **options), functions)
    return predictor._design(np.arange(len(table)))[:, 1:]


def standardised(values):
    return (np.array(values) - np.mean(values)) / np.std(values)


def test_lengths_and_columns_are_read_in_the_order_given():
    found = features("column:level, length")
    np.testing.assert_allclose(found[:, 0], standardised([1, 3, 2]), rtol=1e-6)
    np.testing.assert_allclose(found[:, 1], standardised(np.log([2, 4, 3])), rtol=1e-6)
    chats = TABLE.remove_columns("prompt").rename_column("chat", "prompt")
    assert (features("length", chats) == 0).all()
    assert difficulty_predictor(TABLE, DPPOConfig(**CONFIG), 1) is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("column:text", "column 'text', row 0: 'x' is text"),
        ("length,column:gaps", "column 'gaps', row 1: None is no finite number"),
        ("column:none", "no column 'none', only 'prompt', 'level'"),
    ],
)
def test_columns_that_cannot_be_read_are_named(names, message):
    with pytest.raises(DataError, match=message):
        features(names)


def test_ranges_are_of_all_functions_or_of_each():
    one = DPPOConfig(**CONFIG, difficulty_features="length", reward_range=[-1, 3])
    assert difficulty_predictor(TABLE, one, 2).predict([0], 0).tolist() == [[1.0, 1.0]]
    each = DPPOConfig(**CONFIG, difficulty_features="length", reward_range=[0, 1, -1, 0])
    assert difficulty_predictor(TABLE, each, 2).predict([0], 0).tolist() == [[0.5, -0.5]]
    with refused(DataError, "reward_range", 2, 3):
        difficulty_predictor(TABLE, each, 3)
