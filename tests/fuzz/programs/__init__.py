# SPDX-License-Identifier: Apache-2.0
"""P4 programs as nodes that print themselves and evaluate themselves, so that a random program has a known result.

Start with `expressions` and `statements`. `program` joins the parts, `evaluate` runs it.
"""
