# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of single parts. They print their settings, report medians, and never pass or fail.

`numerics` compares conversions with memcpy; `ports` counts packets through a running switch; `switch_load` writes loads
for `inagg-switch bench`. Run one with `python -m tests.bench.numerics`; `inagg bench` has the benchmarks of the whole
system.
"""
