# SPDX-License-Identifier: Apache-2.0
"""Stage 5: a checked syntax tree to the IR (`compiler.ir`), with instances made and generic code specialised.

Every function takes a `Scope` of `context`: the block or function that is being lowered, and the `Lowering` that all of
them share. Read `program` (the whole), then `blocks`, `parsers`, `tables` and `statements` (`loops`); `calls`,
`externs`, `arguments` and `instances`; `expressions`, `integers` and `constants`. Each uses only those behind it.
"""
