"""The warm-up trains on completions only, from training questions only, and makes a policy better."""

from itertools import islice

import torch

from dppo.lab.demo import warmup
from dppo.lab.demo.task import FULL, ArithmeticTask, Teacher, is_held_out
from dppo.lab.demo.warmup import BATCH_TOKENS, warm_up
from dppo.rng import Purpose, generator
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer

TOKENIZER = build_tokenizer()
SURE = Teacher(sure_steps=9, slip_growth=0.0, largest_total=9)
SHORT = ArithmeticTask(easy=(2,), middle=(2,), hard=(2,), largest_total=9, teacher=SURE, warm_up_steps=20)


def test_batches_stay_within_the_token_limit_and_hold_whole_training_demonstrations():
    levels = set()
    for token_BT, label_BT in islice(warmup._batches(TOKENIZER, FULL, generator(0, Purpose.WARM_UP)), 40):
        assert token_BT.numel() <= BATCH_TOKENS
        for token_T, label_T in zip(token_BT, label_BT, strict=True):
            text = TOKENIZER.decode(token_T[token_T > 0])
            question, completion = text.removeprefix("<user>").split("<assistant>")
            assert not is_held_out(question)
            assert TOKENIZER.decode(label_T[label_T >= 0]) == completion and completion.endswith("}<eos>")
            where = (label_T >= 0).nonzero()[:, 0]
            assert torch.equal(token_T[where + 1], label_T[where])  # the label is the next token
            levels.add(sum(map(question.count, "+-")) + 1)
    assert levels == set(FULL.levels)


def test_a_short_warm_up_teaches_short_sums():
    """That it is a function of the seed is tested where the model is saved."""
    model, told = build_model(0), []
    warm_up(model, TOKENIZER, SHORT, seed=0, steps=20, on_step=lambda step, loss: told.append((step, loss)))
    assert [step for step, _ in told] == list(range(1, 21)) and told[-1][1] < 0.6 * told[0][1]
    assert not model.training
