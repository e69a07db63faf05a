# SPDX-License-Identifier: Apache-2.0
"""Stage 4: the types of a program, and what each name and call refers to.

Read `program` (the whole), then `types` and `conversions`, `operators` and `expressions`, `arguments` and `calls`,
`statements`, `tables` and `parsers`. Each uses those before it.
"""
