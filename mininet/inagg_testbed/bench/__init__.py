# SPDX-License-Identifier: Apache-2.0
"""Benchmarks on a testbed: all-reduce compared with gloo, stragglers, convergence, sums of tensors on a GPU.

Read `allreduce` with `plan` (the workers' task), `allreduce_worker` (what they do) and `rows` (how their events become
figures). `suite` runs every experiment; `report`, `targets` and `plots` present the results.
"""
