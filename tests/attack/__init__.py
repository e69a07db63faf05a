# SPDX-License-Identifier: Apache-2.0
"""Attacks on a testbed whose ranks sum all the time: `make attack`.

Each module of `attacks` is one attack. `siege` starts the testbed and judges it, `ranks` and `worker` make the sums
that are under attack, `outcome` holds the verdict.
"""
