"""Layout of kept completions for the forward pass. It depends on lengths, never on methods.

Parts that need transformers are imported by name: ``dppo.packing.attention``, ``head``, ``forward`` and ``check``.
"""

from dppo.packing.bins import longest_processing_time, sorted_micro_batches, split_group
from dppo.packing.kernels import SEGMENT_SDPA, Kernel, choose_kernel, first_passing, kernels_for
from dppo.packing.rows import Row, Segments, build_row, plan_rows, row_tokens

__all__ = ["SEGMENT_SDPA", "Kernel", "Row", "Segments", "build_row", "choose_kernel", "first_passing", "kernels_for"]
__all__ += ["longest_processing_time", "plan_rows", "row_tokens", "sorted_micro_batches", "split_group"]
