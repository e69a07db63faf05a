# SPDX-License-Identifier: Apache-2.0
"""A DATA packet, field by field (protocol.md, 2)."""

from drawing import HOST, SWITCH, box, diagram, note

OUTER = (("Ethernet", 14), ("IPv4", 20), ("UDP", 8))
HEADER = (
    ("version\nkind", 1),
    ("rank", 1),
    ("job", 2),
    ("flags\nexponent", 2),
    ("the same in\nother code", 2),
    ("epoch", 4),
    ("chunk", 4),
    ("checksum", 4),
)
BYTE = 0.43  # units
NARROW = 2  # bytes: labels of narrower fields do not fit inside

with diagram("packet", 9.2, 2.7) as axes:
    x = 0.25
    for text, size in OUTER:
        box(axes, x, 0.25, 0.9, 0.6, f"{text}\n{size} B")
        x += 0.9
    header = x
    box(axes, x, 0.25, 1.5, 0.6, "inagg\n20 B", HOST)
    x += 1.5
    for number in range(4):
        box(axes, x, 0.25, 1.1, 0.6, f"word {number}\n256 B", SWITCH)
        x += 1.1
    x = 0.3
    axes.plot((header, x), (0.85, 1.4), color="#999999", lw=0.7)
    axes.plot((header + 1.5, x + 20 * BYTE), (0.85, 1.4), color="#999999", lw=0.7)
    for text, size in HEADER:
        inside = size > NARROW
        box(axes, x, 1.4, size * BYTE, 0.5, f"{text}\n{size} B" if inside else f"{size} B", HOST)
        if not inside:
            note(axes, x + size * BYTE / 2, 2.12, text, color="#222222")
        x += size * BYTE
    note(
        axes,
        4.6,
        2.5,
        "An EXPONENT packet ends after the header. With jumbo frames a DATA packet has 32 words.",
    )
