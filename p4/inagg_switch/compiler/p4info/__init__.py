# SPDX-License-Identifier: Apache-2.0
"""The P4Info of a lowered program: what P4Runtime controllers see of it.

Names, ids and their order are those that p4c gives. Read `messages` (tables, actions, externs), then `ids` (how they
are chosen) and `types` (translated and serialisable types).
"""
