# SPDX-License-Identifier: Apache-2.0
"""Shows the author of a program its tables, memory and headers (`inagg-switch explain`).

`stages` computes them from the IR; read it first. `report` prints them.
"""
