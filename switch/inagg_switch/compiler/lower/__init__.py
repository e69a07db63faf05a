# SPDX-License-Identifier: Apache-2.0
"""Stage 5: a checked syntax tree to the IR (`compiler.ir`). It makes the instances and specialises generic code.

Every function takes a `Scope` of `context`: the present block or function, and the `Lowering` that all scopes share.
Read `program` (the whole program), then `blocks`, `parsers`, `tables` and `statements` (with `loops`); `calls`,
`externs`, `arguments` and `instances`; `expressions`, `integers` and `constants`. Each module uses only those later in
this list.
"""
