# SPDX-License-Identifier: Apache-2.0
"""What a client and the console exchange over TCP: a line of JSON for each command, and one for its answer."""

import json
from dataclasses import asdict, dataclass
from io import BufferedIOBase

MAX_LINE = 1 << 20  # bytes of a command


@dataclass(frozen=True)
class Answer:
    """text: what the command prints, with its line breaks. notes: what BMv2's client prints on stderr. refusal: of the
    text, why the command was refused; empty if it was carried out."""

    text: str
    notes: str = ""
    refusal: str = ""


def ask(stream: BufferedIOBase, command: str) -> Answer:
    """Send a command and wait for its answer. Raises OSError if the switch has gone."""
    stream.write(json.dumps(command).encode() + b"\n")
    stream.flush()
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise ConnectionResetError("the switch has ended")
    return Answer(**json.loads(line))


def receive(stream: BufferedIOBase) -> str | None:
    """The next command of a client; None if it has gone. Raises ValueError for anything else, such as Thrift."""
    first = stream.read(1)  # alone, because a client of Thrift sends no line break and waits
    if not first:
        return None
    if first != b'"':
        raise ValueError("not a command")
    command = json.loads(first + stream.readline(MAX_LINE))
    if not isinstance(command, str):
        raise ValueError("not a command")
    return command


def answer(stream: BufferedIOBase, reply: Answer) -> None:
    """Send an answer."""
    stream.write(json.dumps(asdict(reply)).encode() + b"\n")
    stream.flush()
