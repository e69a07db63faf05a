# SPDX-License-Identifier: Apache-2.0
"""Pages of benchmarks: of `inagg bench allreduce` (`allreduce`) and of `inagg bench suite` (`suite`).

Both are made of rows, whose tables and pictures `rows` has.
"""
