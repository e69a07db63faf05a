# SPDX-License-Identifier: Apache-2.0
"""Two ranks and the switch in time: exponents, data, a lost result and its repair (protocol.md, 3.2, 5.2, 6.1)."""

from drawing import BAD, HOST, SWITCH, arrow, box, diagram, note

RANKS, AGGREGATOR = (1.2, 8.0), 4.6
TRAVEL = 0.28

with diagram("exchange", 9.2, 6.3) as axes:
    for x, text, colour in (
        (RANKS[0], "rank 0", HOST),
        (AGGREGATOR, "switch", SWITCH),
        (RANKS[1], "rank 1", HOST),
    ):
        box(axes, x - 0.6, 0.15, 1.2, 0.4, text, colour)
        axes.plot((x, x), (0.55, 6.15), color="#999999", lw=1, zorder=0)

    def above(text: str) -> float:
        """How far a text is above the middle of its sloping arrow: the more, the longer it is."""
        return 0.06 + 0.0022 * len(text)

    def up(rank: int, at: float, text: str, colour: str = "#222222") -> None:
        arrow(axes, (RANKS[rank], at), (AGGREGATOR, at + TRAVEL), text, colour=colour, above=above(text))

    def down(rank: int, at: float, text: str, colour: str = "#222222") -> None:
        arrow(axes, (AGGREGATOR, at), (RANKS[rank], at + TRAVEL), text, colour=colour, above=above(text))

    up(0, 0.9, "EXPONENT: largest exponent of block 0")
    up(1, 1.0, "EXPONENT")
    note(axes, AGGREGATOR, 1.52, "maximum", backgroundcolor="white")
    down(0, 1.7, "result: the block's scale")
    down(1, 1.7, "result")
    up(0, 2.3, "DATA c: lanes, checksum, exponent of a later block")
    up(1, 2.45, "DATA c")
    note(axes, AGGREGATOR, 2.98, "sum", backgroundcolor="white")
    down(0, 3.15, "result c: sums, checksum of both")
    axes.annotate(
        "", (6.6, 3.31), (AGGREGATOR, 3.15), arrowprops={"arrowstyle": "-|>", "color": BAD, "lw": 1}
    )
    axes.text(6.75, 3.33, "✕", color=BAD, weight="bold", va="center")
    axes.text(6.3, 3.08, "result c is lost", color=BAD, size=8, ha="center")
    up(0, 3.7, "DATA c + 1, …")
    up(1, 3.75, "DATA c + 1, …")
    down(1, 4.22, "result c + 1: all have sent c, so a packet of c is lost")
    up(1, 4.68, "query about c", BAD)
    down(1, 5.02, "answer: again")
    up(1, 5.36, "DATA c again", BAD)
    note(axes, AGGREGATOR - 0.1, 5.73, "the bit is set: nothing is added", ha="right")
    down(1, 5.76, "result c, to rank 1 only")
