# SPDX-License-Identifier: Apache-2.0
"""Prints an Explanation as tables."""

from rich import box
from rich.console import Console
from rich.table import Table

from inagg_switch.explain.stages import Explanation


def print_explanation(explanation: Explanation, console: Console | None = None) -> None:
    """Prints the explanation to `console`, or else to the terminal."""
    console = console or Console()
    for made in (_pipeline, _tables, _memory, _digests, _headers):
        table = made(explanation)
        if table.row_count:
            console.print(table)
    console.print(
        f"headers and metadata of a packet: {explanation.packet_bytes:,} bytes; "
        f"state: {explanation.state_bytes:,} bytes"
    )


def _new(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _pipeline(explanation: Explanation) -> Table:
    table = _new("Pipeline", "stage", "block", "parser states, or tables by stage")
    for part in explanation.pipeline:
        table.add_row(part.stage, part.name, "\n".join(part.detail))
    return table


def _tables(explanation: Explanation) -> Table:
    table = _new("Tables", "table", "stage", "keys", "actions (default last)", "size", "bytes an entry",
                 right=("stage", "size", "bytes an entry"))  # fmt: skip
    for one in explanation.tables:
        keys = "\n".join(f"{name}: {kind}, {bits} bits" for name, kind, bits in one.keys)
        actions = [name for name in one.actions if name != one.default_action]
        size = f"{one.size:,}" + (f" ({one.const_entries} const)" if one.const_entries else "")
        table.add_row(
            one.name,
            str(one.stage),
            keys,
            "\n".join([*actions, one.default_action]),
            size,
            str(one.entry_bytes),
        )
    return table


def _memory(explanation: Explanation) -> Table:
    table = _new(
        "Memory", "object", "kind", "cells", "bits each", "bytes", right=("cells", "bits each", "bytes")
    )
    for one in explanation.memory:
        table.add_row(one.name, one.kind, f"{one.size:,}", f"{one.bits:,}", f"{one.bytes:,}")
    return table


def _digests(explanation: Explanation) -> Table:
    table = _new("Digests", "digest", "fields", "bytes", right=("bytes",))
    for one in explanation.digests:
        table.add_row(
            one.name, "\n".join(f"{name}: {bits} bits" for name, bits in one.fields), f"{one.bytes:,}"
        )
    return table


def _headers(explanation: Explanation) -> Table:
    table = _new("Headers", "header", "type", "bytes each", "count", right=("bytes each", "count"))
    for one in explanation.headers:
        table.add_row(one.name, one.type, f"{one.bits / 8:g}", str(one.count))
    return table
