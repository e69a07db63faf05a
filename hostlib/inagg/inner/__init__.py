# SPDX-License-Identifier: Apache-2.0
"""The inner process group: collectives that the switch does not sum, done by gloo, or by NCCL for CUDA tensors.

Read `group` (which wraps both), then `gloo` (how it is made), `work` (futures and waits), `host_copies` (device tensors
through gloo), `connections` and `devices` (gloo's sockets), `cuda` (whether NCCL can be used) and `scaling` (AVG by
SUM).
"""
