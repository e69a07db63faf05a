# SPDX-License-Identifier: Apache-2.0
"""Sums of CUDA tensors: quantised on the device, copied in portions through pinned memory.

Read `staged` (the threads of a device and its sums), then `numerics` (quantisation in torch operations, bit-identical
to the C++ core's) and `streams` (streams and events of any device).
"""
