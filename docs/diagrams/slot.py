# SPDX-License-Identifier: Apache-2.0
"""The states of a slot version, by the packets of chunk c that reach it (protocol.md, 5.2)."""

from drawing import CONTROL, HOST, QUIET, arrow, box, diagram, note

with diagram("slot", 12.4, 3.6) as axes:
    box(axes, 0.3, 1.1, 2.1, 0.9, "free for c\nholds an older chunk,\nor another epoch", "white")
    box(axes, 3.6, 1.1, 2.1, 0.9, "summing c\nsome members' bits set", HOST)
    box(axes, 6.9, 1.1, 2.1, 0.9, "partial\nall bits set,\nwaits for the switch above", HOST)
    box(axes, 10.2, 1.1, 1.9, 0.9, "final\nthe job's sum", CONTROL)
    arrow(axes, (2.4, 1.55), (3.6, 1.55), "first contribution\nstart: overwrite")
    arrow(axes, (5.7, 1.55), (6.9, 1.55), "last contribution\nsend it up")
    arrow(axes, (9.0, 1.55), (10.2, 1.55), "result from above\nkeep and multicast")
    arrow(
        axes, (4.3, 1.1), (5.0, 1.1), "another contribution: add\nits own again: drop", bend=-0.9, above=0.42
    )
    arrow(axes, (7.6, 1.1), (8.3, 1.1), "member 0's again:\nsend it up again", bend=-0.9, above=0.42)
    arrow(
        axes,
        (10.8, 1.1),
        (11.5, 1.1),
        "a contribution again:\nresend the result to its sender",
        bend=-0.9,
        above=0.42,
    )
    arrow(axes, (5.0, 2.0), (10.8, 2.0), bend=0.1)
    note(axes, 7.9, 2.45, "at a root: last contribution, multicast the result", color="#222222")
    arrow(axes, (11.4, 2.0), (1.35, 2.0), bend=-0.22, linestyle="--", colour=QUIET)
    note(
        axes,
        1.5,
        2.75,
        "start of c + 2S: nobody sends it before\nall workers have the result of c + S",
        color="#444444",
    )
    note(
        axes,
        6.2,
        3.5,
        "A version is never emptied. Queries are answered, here or above, and change nothing. "
        "The rest is dropped and counted.",
    )
