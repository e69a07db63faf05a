# SPDX-License-Identifier: Apache-2.0
"""Sums of CUDA tensors, through pinned host memory.

Read `ways` (who makes the lanes of a tensor), `threads` (which threads do its sum), `sums` (what they do), then how a
device makes lanes: `by_torch` with `numerics` (torch operations, the reference) or `by_triton` with `kernels` (fused,
one launch each). `streams` has streams and events of any device.
"""
