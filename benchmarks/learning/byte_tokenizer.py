"""A small byte-level tokenizer trained on some texts: for benchmarks and tests that need no model of a hub."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dppo.verification.tiny_tokenizer import ASSISTANT, EOS, PAD, USER, chat_tokenizer

SPECIAL = (PAD, USER, ASSISTANT, EOS)
"""The first tokens of the vocabulary; a token's id is its position."""
VOCABULARY = 2048


def train_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of at most ``VOCABULARY`` tokens, with a chat template and one token per digit."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return chat_tokenizer(core)
