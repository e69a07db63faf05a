# SPDX-License-Identifier: Apache-2.0
"""Stage 6: the IR to one C++ file.

Read `program` (the whole file), then `structs`, `expressions`, `primitives` and `externs`, `statements`, `parsers` and
`tables`. `literals` spells C++ strings; `untouched` finds the headers that copies of a multicast can share.
"""
