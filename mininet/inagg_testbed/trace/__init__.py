# SPDX-License-Identifier: Apache-2.0
"""Traces: what ranks and switches do in the last steps of a training, as one file that Perfetto opens.

Ranks record their spans (`inagg.spans`) and write them with their clocks (`inagg.tracing`); `ranks` reads the files.
On a testbed `recording` also keeps the packets at the switches' ports (`packet_ring`), and `passages` says what they
were. `events` makes the file of both.
"""
