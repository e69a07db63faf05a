# SPDX-License-Identifier: Apache-2.0
"""Stages 1 to 3: text to a syntax tree.

`preprocess` (with `align`) makes one text of the files; `lexer` makes tokens of the text. Every function
of the parser takes the `TokenStream` of `tokens`. Read `parser` (the whole program), then `blocks`, `tables`,
`statements`, `annotations` and `expressions`. Each module uses only those later in this list.
"""
