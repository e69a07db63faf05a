# SPDX-License-Identifier: Apache-2.0
"""The parts of inagg and what they say to one another."""

from drawing import CONTROL, HOST, QUIET, SWITCH, arrow, box, diagram, note

with diagram("parts", 9.2, 3.5) as axes:
    for row, rank in enumerate(("0", "1", "N-1")):
        box(
            axes,
            0.2,
            0.25 + 1.1 * row,
            2.6,
            0.8,
            f"worker, rank {rank}\ntorch, inagg\nengine and numerics (C++)",
            HOST,
        )
        arrow(axes, (2.8, 0.65 + 1.1 * row), (4.4, 1.45 + 0.15 * row), both=True)
    note(axes, 1.5, 2.34, "…")
    note(axes, 3.65, 0.72, "UDP: contributions up,\nresults down")
    box(axes, 4.4, 1.05, 2.0, 1.1, "switch\np4/inagg.p4 on\nthe switch model\nor BMv2", SWITCH)
    box(axes, 7.2, 1.05, 1.8, 1.1, "controller\njobs, leases,\nepochs, health", CONTROL)
    arrow(axes, (7.2, 1.6), (6.4, 1.6), "P4Runtime")
    arrow(axes, (2.8, 2.95), (8.1, 2.15), bend=0.18, linestyle="--", colour=QUIET)
    note(axes, 5.6, 3.35, "HTTP: join, heartbeat, leave")
