"""How kept completions are laid out for the forward pass. Knows lengths, never methods."""

from dppo.packing.micro_batches import padded_tokens, sorted_micro_batches

__all__ = ["padded_tokens", "sorted_micro_batches"]
