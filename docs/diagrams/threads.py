# SPDX-License-Identifier: Apache-2.0
"""The threads of a worker, and what they hand to one another (architecture.md)."""

from drawing import CONTROL, HOST, SWITCH, arrow, box, diagram, note

with diagram("threads", 9.2, 4.1) as axes:
    box(axes, 0.3, 0.4, 2.2, 1.0, "the program's\nsubmits sums,\nwaits, delivers", HOST)
    box(axes, 3.6, 0.4, 2.3, 1.0, "packet thread\nengine and UDP socket;\nno GIL", HOST)
    box(axes, 7.0, 0.4, 1.9, 1.0, "switch\nUDP", SWITCH)
    arrow(axes, (2.5, 0.7), (3.6, 0.7), "sums")
    arrow(axes, (3.6, 1.15), (2.5, 1.15), "done", above=-0.22)
    arrow(axes, (5.9, 0.9), (7.0, 0.9), "packets", both=True)
    box(axes, 0.3, 1.9, 2.2, 0.8, "completers\ncall back (DDP, futures)", HOST)
    arrow(axes, (3.9, 1.4), (2.5, 2.2), "", bend=-0.1)
    note(axes, 3.65, 2.1, "watched sums\nthat are done")
    box(axes, 4.3, 2.1, 2.3, 0.8, "scan, pack, unpack\none CUDA stream each", HOST)
    arrow(axes, (5.2, 1.4), (5.2, 2.1), both=True)
    note(axes, 5.75, 1.75, "progress\nof blocks")
    box(axes, 0.3, 2.95, 2.2, 0.7, "heartbeat\nlearns of failures", HOST)
    box(axes, 3.6, 3.35, 2.3, 0.6, "presence\nno GIL", HOST)
    box(axes, 7.0, 3.0, 1.9, 0.9, "controller\nHTTP", CONTROL)
    arrow(axes, (2.5, 3.15), (7.0, 3.15), both=True)
    arrow(axes, (5.9, 3.65), (7.0, 3.65))
