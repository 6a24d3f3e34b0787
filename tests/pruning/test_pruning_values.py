"""Values and reference rewards of prompts: read by who a prompt is, and the prior that its own completions move."""

import json

import numpy as np
import torch
from arrays import rewards_of, tensor
from drafts import Run
from refusals import refused

from dppo.errors import DataError, FileError, ShapeError
from dppo.methods import METHODS
from dppo.pruning import PromptHistory, PromptValues
from dppo.pruning.prior import prompt_key, read_values

REWARDS = [[1.0, 1, 1, 0], [0.0, 0], [1.0], [0.0, 1, 0, 0]]
IDS = np.array([2**64 - 1, 7, 2**53 + 1, 2**53], dtype=np.uint64)


def file_of(path):
    for value, (key, rewards) in enumerate(zip(IDS, REWARDS, strict=True)):
        line = json.dumps({"prompt": prompt_key(int(key)), "value": float(value), "rewards": rewards})
        path.write_text((path.read_text() if value else "") + line + "\n")
    return path


def test_values_go_to_their_prompts_in_any_order_and_to_repeated_rows(tmp_path):
    """Two identities that JSON's numbers would take for one are two."""
    found = read_values(file_of(tmp_path / "v.jsonl"), IDS[[3, 0, 2, 2]])
    assert found.value_P.tolist() == [3.0, 0.0, 2.0, 2.0]
    assert found.count_P.tolist() == [4, 4, 1, 1] and found.mean_P.tolist() == [0.25, 0.75, 1, 1]
    assert float(int(IDS[2])) == float(int(IDS[3])), "the wrong twin: keys as floats"


def test_the_prior_is_a_beta_distribution_that_completions_move(tmp_path):
    """(a, b) = (k + 2 m, n - k + 2 (1 - m)), then + right and + wrong, by hand."""
    values, rows = read_values(file_of(tmp_path / "v.jsonl"), IDS), torch.arange(4)
    right_P, count_P = tensor([3, 0, 1, 1]), tensor([4, 2, 1, 4])
    a, b = right_P + 2 * 5 / 11, count_P - right_P + 2 * (1 - 5 / 11)
    prior = values.expected(rows)
    torch.testing.assert_close(prior.mean_QF[:, 0], a / (a + b))
    torch.testing.assert_close(prior.variance_QF[:, 0], a * b / (a + b) ** 2)
    torch.testing.assert_close(prior.strength_QF[:, 0], a + b + 1)
    assert ((prior.mean_QF > 0) & (prior.mean_QF < 1)).all(), "no prompt is taken for certain"
    history = PromptHistory(IDS, half_life=1e12)
    history.update(torch.tensor([1]), rewards_of([1, 1, 0]), torch.ones(1), torch.ones(3), 0)
    after = history.expected(rows, 0, prior)
    torch.testing.assert_close(after.mean_QF[1, 0], (a[1] + 2) / (a[1] + b[1] + 3))
    torch.testing.assert_close(after.mean_QF[0], prior.mean_QF[0])
    assert not torch.allclose(history.expected(rows, 0).mean_QF[0], prior.mean_QF[0]), "the wrong twin: no prior"


def test_values_are_the_prior_of_a_prompt_until_its_first_visit(tmp_path):
    values = read_values(file_of(tmp_path / "v.jsonl"), IDS)
    source, plain = Run.over(4, METHODS["grpo_history"], prompts=4, values=values), PromptHistory(IDS, half_life=1e9)
    for each in (source.history, plain):
        each.update(torch.tensor([0, 2]), rewards_of([1, 0], [1, 1]), torch.ones(2), torch.ones(4), 0)
    prompts = source.block(1, generations=2)
    seen_Q = (prompts.row_Q == 0) | (prompts.row_Q == 2)
    own, before = plain.expected(prompts.row_Q, 1), values.expected(prompts.row_Q)
    assert int(seen_Q.sum()) == 2
    for name in ("mean_QF", "variance_QF", "strength_QF"):
        found = getattr(prompts.context.expected, name)
        torch.testing.assert_close(found[seen_Q], getattr(own, name)[seen_Q])
        torch.testing.assert_close(found[~seen_Q], getattr(before, name)[~seen_Q])
        assert not torch.allclose(getattr(own, name)[~seen_Q], getattr(before, name)[~seen_Q])


def test_files_that_cannot_be_used_are_errors_with_their_line(tmp_path):
    with refused(FileError, "cannot be read"):
        read_values(tmp_path / "none.jsonl", IDS)
    file = file_of(tmp_path / "v.jsonl")
    with refused(DataError, "1 of 5", "row 4"):
        read_values(file, np.append(IDS, np.uint64(1)))
    file.write_text(file.read_text() + '{"half')
    with refused(FileError, "line 5 is damaged"):
        read_values(file, IDS)
    one = torch.ones(2, dtype=torch.float64)
    with refused(ShapeError, "square_P has shape"):
        PromptValues(value_P=one, count_P=one, mean_P=one, square_P=torch.ones(3))
    with refused(DataError, "one sample"):
        PromptValues(value_P=one, count_P=one * 0, mean_P=one, square_P=one)
