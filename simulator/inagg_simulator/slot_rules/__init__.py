# SPDX-License-Identifier: Apache-2.0
"""What slots do with packets (docs/protocol.md, 5.2 and 5.7), as data.

A rule is a row: the facts for which it holds, what is done, and what counts it. A table has exactly one rule for each
combination of its facts. The page's tables are generated from these (`page`). The reference switch and the
explorations of tests/conformance execute them. Tests compare the P4 program and the C++ server with them in every state
of small jobs.

| module | what it has |
|---|---|
| `table` | what a table is |
| `packets` | packets, and the sums that they carry and slots hold |
| `versions` | the versions of leased slots, and those of servers |
| `shared` | the slots that jobs share |
| `page` | writes the tables into docs/protocol.md |
"""
