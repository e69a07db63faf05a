# SPDX-License-Identifier: Apache-2.0
"""Stage 5: a checked syntax tree to the IR (`compiler.ir`), with instances made and generic code specialised.

Read `program` (the whole), then `blocks` (parsers, controls, functions) and `instances`; `expressions`, `integers`,
`externs`, `calls`, `loops`, `statements`, `tables` and `parsers` lower what their names say.
"""
