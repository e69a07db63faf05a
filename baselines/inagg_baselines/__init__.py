# SPDX-License-Identifier: Apache-2.0
"""All-reduces without a programmable switch, with which inagg is compared.

`catalog` names them, each with its theory of bytes and steps, and needs no torch. `collectives` does them. A further
one is an entry of the catalog, and a class of collectives.
"""
