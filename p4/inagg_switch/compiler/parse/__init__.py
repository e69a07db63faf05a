# SPDX-License-Identifier: Apache-2.0
"""Stages 1 to 3: text to a syntax tree.

`preprocess` (`condition`, `macros`) makes one text of the files, and `lexer` tokens of the text. Every function of the
parser takes the `TokenStream` of `tokens`: read `parser` (the whole), then `blocks`, `tables`, `statements`,
`annotations` and `expressions`. Each uses only those behind it.
"""
