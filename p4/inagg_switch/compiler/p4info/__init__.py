# SPDX-License-Identifier: Apache-2.0
"""The P4Info of a lowered program: what P4Runtime controllers see.

Read `messages` (tables, actions, externs), then `ids` (how ids are chosen, as p4c does) and `types` (translated and
serialisable types).
"""
