# SPDX-License-Identifier: Apache-2.0
"""Makes the P4Info of a lowered program: its description for P4Runtime controllers.

Names, ids and their order are those of p4c. Read `messages` (tables, actions, externs), then `ids` (how ids are chosen)
and `types` (translated and serialisable types).
"""
