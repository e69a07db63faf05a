# SPDX-License-Identifier: Apache-2.0
"""Tests of hostlib/inagg/device. CPU tensors stand in for CUDA tensors where there is no GPU.

Read `rank_sessions` first: it makes ranks in one process. `test_numerics` compares with the C++ core, `test_staged`
sums whole tensors, and `test_cuda` with `cuda_worker` needs a GPU.
"""
