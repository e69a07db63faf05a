# SPDX-License-Identifier: Apache-2.0
"""What slots do with packets (docs/protocol.md, 5.2 and 5.7), as data.

A rule is a row: the facts for which it holds, what is done, and what counts it. A table has exactly one rule for each
combination of its facts. The reference switch and the explorations of
tests/conformance execute them. The P4 program and the C++ server are held against them in every state of small jobs.

| module | what it has |
|---|---|
| `table` | what a table is |
| `packets` | packets, and the sums that they carry and slots hold |
| `versions` | the versions of leased slots, and those of servers |
| `shared` | the slots that jobs share |
"""
