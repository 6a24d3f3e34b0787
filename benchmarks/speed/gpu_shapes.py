"""Sizes of the models that are measured on a GPU, and the operations a training step of them takes."""

from dataclasses import dataclass

from transformers import Qwen3Config


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Size of a Qwen3 with tied embeddings."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int = 151_936

    def config(self, layers: int | None = None) -> Qwen3Config:
        """The configuration, cut to ``layers`` where given."""
        return Qwen3Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers if layers is None else layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=40_960,
            rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
            tie_word_embeddings=True,
        )

    @property
    def body(self) -> int:
        """Parameters of all linear layers but the head."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)


SHAPES = {
    "0.6B": Shape(hidden=1024, layers=28, heads=16, kv_heads=8, head_dim=128, intermediate=3072),
    "1.7B": Shape(hidden=2048, layers=28, heads=16, kv_heads=8, head_dim=128, intermediate=6144),
    "4B": Shape(hidden=2560, layers=36, heads=32, kv_heads=8, head_dim=128, intermediate=9728),
    "0.6B cut to 4 layers": Shape(hidden=1024, layers=4, heads=16, kv_heads=8, head_dim=128, intermediate=3072),
    "tiny": Shape(hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate=128, vocabulary=512),
}


def flops(shape: Shape, tokens: int, pairs: int, scored: int, *, again: int) -> float:
    """Floating-point operations of one forward and backward.

    Forward, a linear layer takes 2 per parameter and token, attention 4 per pair of query and key, head, head
    dimension and layer (two products), the language model head 2 per parameter and scored token. The backward pass
    takes 2 times the forward of linear layers and 2.5 times that of attention, which recomputes its scores.
    """
    linear = 2.0 * shape.body * tokens
    attention = 4.0 * shape.heads * shape.head_dim * shape.layers * pairs
    head = 2.0 * shape.hidden * shape.vocabulary * scored
    return linear * (3 + again) + attention * (3.5 + again) + head * (3 + again)
