# SPDX-License-Identifier: Apache-2.0
"""Stage 4: finds the types of a program, and the declaration of each name and call.

Every function takes the `Checker` of `context`: the names in scope, the declared types, the errors found. Read
`program` (the whole program), then `parsers`, `functions`, `tables` and `statements`; `calls`, `arguments`,
`expressions` and `operators`; `types`, `names`, `values` and `conversions`. Each module uses only those later in this
list.
"""
