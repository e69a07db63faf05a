# SPDX-License-Identifier: Apache-2.0
"""Stage 6: the IR to one C++ file.

Every function takes the `Emitter` of `context`: the program, its names in C++, and the lines written so far. Read
`program` (the whole file), then `structs`, `tables`, `parsers` and `statements`; `primitives`, `externs`, `calls` and
`expressions`. `literals` writes C++ strings; `views` finds registers that are read by reference; `untouched` and
`outcome` find what copies of a multicast share, and what decides whether they are equal.
"""
