# SPDX-License-Identifier: Apache-2.0
"""Benchmarks on a testbed: all-reduce beside gloo, stragglers, convergence, sums of tensors on a GPU.

Read `allreduce` with `plan` (what its workers are asked to do), `allreduce_worker` (what they do) and `rows` (how
their reports become figures). `suite` runs every experiment; `report`, `targets` and `plots` present the results.
"""
