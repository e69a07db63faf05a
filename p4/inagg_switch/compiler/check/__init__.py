# SPDX-License-Identifier: Apache-2.0
"""Stage 4: the types of a program, and what each name and call refers to.

Every function takes the `Checker` of `context`: the names in scope, the types declared, the errors found. Read
`program` (the whole), then `parsers`, `functions`, `tables` and `statements`; `calls`, `arguments`, `expressions` and
`operators`; `types`, `names`, `values` and `conversions`. Each uses only those behind it.
"""
