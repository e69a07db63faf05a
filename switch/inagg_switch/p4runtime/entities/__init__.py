# SPDX-License-Identifier: Apache-2.0
"""P4Runtime entities: converts each kind between its message and the program, one kind a module.

Read `target` first (a program with the state that P4Runtime keeps about it), then `names` (P4Info ids), `values`
(binary strings) and `entries` (table entries). The other modules add one kind of entity each.
"""
