# SPDX-License-Identifier: Apache-2.0
"""Architectures of distributed training without a programmable switch, with which inagg is compared.

`catalog` names them, each with its theory of bytes and steps, and needs no torch. `collectives` has those that sum
gradients; `exchanges` those that exchange weights, which `attachment` puts into a program. A further one is a form of
the catalog, and a class with a line in `make` of collectives or exchanges.
"""
