# SPDX-License-Identifier: Apache-2.0
"""A compiled program as Python objects: what `Switch` is made of.

Read `abi` (the C ABI for ctypes), `externs` and `lock` (its calls) and `running` (what the others need of a program),
then `values` and `arguments` (from Python to bytes and the checks on them), `entries`, `profiles` and `arrays` (tables,
action profiles, counters and registers).
"""
