# SPDX-License-Identifier: Apache-2.0
"""Testbeds from a topology.json, as the exercises of p4lang/tutorials have it.

`documents` reads the files, `layout` makes a fabric of them, `entries` loads tables over P4Runtime, `console` runs
commands of simple_switch_CLI, `relay` gives each switch a TCP port, and `testbed` puts the parts together.
"""
