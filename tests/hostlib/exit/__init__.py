# SPDX-License-Identifier: Apache-2.0
"""Programs that end in every state of a group and in every way. None of them may abort or hang.

`cases` lists the states and the ways to end, `states` is the program, `test_exit` runs a part of the cases, and `hunt`
repeats all of them many times (`make exit-hunt`).
"""
