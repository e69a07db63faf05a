# SPDX-License-Identifier: Apache-2.0
"""The states of a slot version, by the packets of chunk c that reach it (protocol.md, 5.2)."""

from drawing import CONTROL, HOST, QUIET, arrow, box, diagram, note

with diagram("slot", 9.2, 3.4) as axes:
    box(axes, 0.3, 1.1, 2.1, 0.9, "free for c\nholds an older chunk,\nor another epoch", "white")
    box(axes, 3.6, 1.1, 2.1, 0.9, "summing c\nsome workers' bits set", HOST)
    box(axes, 6.9, 1.1, 2.0, 0.9, "complete\nall bits set", CONTROL)
    arrow(axes, (2.4, 1.55), (3.6, 1.55), "first contribution\nstart: overwrite")
    arrow(axes, (5.7, 1.55), (6.9, 1.55), "last contribution\nmulticast the result")
    arrow(
        axes, (4.3, 1.1), (5.0, 1.1), "another contribution: add\nits own again: drop", bend=-0.9, above=0.42
    )
    arrow(
        axes,
        (7.6, 1.1),
        (8.3, 1.1),
        "a contribution again:\nresend the result to its sender",
        bend=-0.9,
        above=0.42,
    )
    arrow(axes, (7.9, 2.0), (1.35, 2.0), bend=-0.28, linestyle="--", colour=QUIET)
    note(
        axes,
        4.6,
        2.5,
        "start of c + 2S: nobody sends it before\nall workers have the result of c + S",
        color="#444444",
    )
    note(
        axes,
        4.6,
        3.2,
        "Nothing is ever cleared. Every other packet is dropped and counted: stale, ahead, wrong epoch.",
    )
