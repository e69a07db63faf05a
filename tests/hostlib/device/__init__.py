# SPDX-License-Identifier: Apache-2.0
"""Tests of hostlib/inagg/device. CPU tensors stand in for CUDA tensors where there is no GPU.

Read `rank_sessions` first: it makes ranks in one process. `test_numerics` and `test_kernels` compare with the C++ core,
`test_sums` sums whole tensors, and `test_cuda` with `cuda_worker` needs a GPU. Triton's kernels run on a GPU, or in
Triton's interpreter, in processes of their own (`test_interpreter`).
"""
