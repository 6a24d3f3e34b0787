"""Training on drawn pairs: TRL's loss and gradient where nothing is dropped, and on average where pairs are."""

import pytest
import torch
from datasets import Dataset
from dpo_runs import by_length, ours, pairs, stock
from refusals import refused
from sft_runs import as_trl, trained
from tiny_runs import relative_difference

from dppo.errors import ConfigError, DataError, RewardError
from dppo.objective import margin_weights
from dppo.packing import plan_rows
from dppo.trl.layouts import RowLayout


@pytest.mark.filterwarnings("ignore:one prompt with its answers")
def test_pairs_stay_whole_in_rows_that_are_too_small_for_them(tiny_path, tmp_path, monkeypatch):
    """Of a stream nobody knows the longest pair. The wrong twin packs answers one by one."""
    stream = dict(data=pairs().to_iterable_dataset(), max_steps=3)
    with pytest.warns(UserWarning, match="one prompt with its answers is .* over max_tokens_per_row=4"):
        as_trl(stock, ours, tiny_path, tmp_path, only={"max_tokens_per_row": 4}, **stream)
    monkeypatch.setattr(RowLayout, "places", torn)
    with pytest.raises(ValueError, match="not enough values to unpack"):  # one answer in a row
        as_trl(stock, ours, tiny_path, tmp_path, only={"max_tokens_per_row": 4}, **stream)


def torn(layout, rank_batch, kept, max_tokens):
    """Passes as of sequences that do not belong together."""
    return plan_rows(*layout._sizes(rank_batch, kept), max_tokens)


def test_margin_weights_multiply_the_preference_loss_and_come_from_one_call(tiny_path, tmp_path):
    calls = []

    def counted(prompts, completions, *, source, **others):
        """As data have it, without the end that TRL puts behind every text."""
        calls.append(len(completions))
        assert not others and source == list(range(10)) and not any("<eos>" in text for text in completions)
        return by_length(prompts, completions)

    data = pairs().add_column("source", list(range(10)))
    trainer = ours(tiny_path, tmp_path, data=data, own={"margin_reward": counted}, margin_scale=2.0)
    margin = torch.tensor(by_length(None, data["chosen"])).double() - torch.tensor(by_length(None, data["rejected"]))
    wanted = margin_weights(margin, centre=float(margin.mean()), scale=2.0)
    assert trainer._margin_weight.tolist() == pytest.approx(wanted.tolist()) and calls == [10, 10]
    weighted, _ = trained(ours, tiny_path, tmp_path, data=data, own={"margin_reward": counted}, row_prune_rate=0.0)
    plain, _ = trained(ours, tiny_path, tmp_path, row_prune_rate=0.0)
    assert relative_difference(weighted[0], plain[0]) > 0.01


def test_data_that_cannot_be_trained_on_is_refused(tiny_path, tmp_path):
    rows = [*pairs(3), {"prompt": "w1", "chosen": " w2", "rejected": " w2"}]
    with refused(DataError, "1 of 4", "from 0: 3", "filter"):
        ours(tiny_path, tmp_path, data=Dataset.from_list(rows))
    apart = [{"chosen": "w1 w2 w3", "rejected": "w1 w2 w4"}, {"chosen": "w1 w2", "rejected": "w3 w4"}]
    with refused(DataError, "1 of 2", "row['chosen'].split()[:1] == row['rejected'].split()[:1]"):
        ours(tiny_path, tmp_path, data=Dataset.from_list(apart))
    for losses in (["nca_pair"], ["sigmoid", "sft"]):  # equal answers have a gradient there
        ours(tiny_path, tmp_path, data=Dataset.from_list(rows), loss_type=losses)
    alike = Dataset.from_list([{"prompt": "w1 w2 w3", "chosen": " w4", "rejected": " w4 w5"}])
    with refused(DataError, "equal answers", "max_length=4"):
        ours(tiny_path, tmp_path, data=alike, max_length=4)


def test_a_reward_model_that_fails_is_named(tiny_path, tmp_path):
    def broken(prompts, completions, **_):
        raise ValueError("no such model")

    def silent(prompts, completions, **_):
        return [None] * len(completions)

    async def later(prompts, completions, **_):
        return [0.0] * len(completions)

    for wrong, kind, *named in (
        (broken, RewardError, "broken", "no such model"),
        (silent, RewardError, "margin_reward", "10 of 10"),
        (later, ConfigError, "margin_reward", "asyncio.run"),
        ("a model", ConfigError, "margin_reward", "a model"),
    ):
        with refused(kind, *named):
            ours(tiny_path, tmp_path, own={"margin_reward": wrong})
