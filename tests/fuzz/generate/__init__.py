# SPDX-License-Identifier: Apache-2.0
"""Makes random P4 programs and packets from a seed.

Start with `generator`, which puts a program together. `expressions` and `statements` make code; `parsers`,
`routines` and `tables` make the declarations that the code uses.
"""
