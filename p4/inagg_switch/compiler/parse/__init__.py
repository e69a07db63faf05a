# SPDX-License-Identifier: Apache-2.0
"""Stages 1 to 3: text to a syntax tree.

Read `preprocess` (directives and macros: `condition`, `macros`), `lexer` (text to tokens), then `parser` (tokens to the
classes of `compiler.syntax`), which uses `tokens`, `expressions`, `statements`, `tables` and `blocks`, in this order.
"""
