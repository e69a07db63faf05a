# SPDX-License-Identifier: Apache-2.0
"""The parts of `Switch`: a compiled program as Python objects.

Read `abi` (the C ABI for ctypes), `externs` and `lock` (its calls) and `running` (the protocol of a program), then
`values` and `arguments` (conversion of Python values to bytes, and their checks), `entries`, `profiles` and `arrays`
(tables, action profiles, counters and registers).
"""
