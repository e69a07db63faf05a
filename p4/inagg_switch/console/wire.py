# SPDX-License-Identifier: Apache-2.0
"""What a client and the console exchange over TCP: a line of JSON for each command, and one for its answer."""

import json
from dataclasses import asdict, dataclass
from io import BufferedIOBase

MAX_LINE = 1 << 20  # bytes of a command


@dataclass(frozen=True)
class Answer:
    """text: what the command prints, with its line breaks. notes: what BMv2's client prints on stderr."""

    text: str
    notes: str = ""


def ask(stream: BufferedIOBase, command: str) -> Answer:
    """Send a command and wait for its answer. Raises OSError if the switch has gone."""
    stream.write(json.dumps(command).encode() + b"\n")
    stream.flush()
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise ConnectionResetError("the switch has ended")
    return Answer(**json.loads(line))


def receive(stream: BufferedIOBase) -> str | None:
    """The next command of a client; None if it has gone, or sends something else."""
    line = stream.readline(MAX_LINE)
    if not line.endswith(b"\n"):
        return None
    try:
        command = json.loads(line)
    except ValueError:
        return None
    return command if isinstance(command, str) else None


def answer(stream: BufferedIOBase, reply: Answer) -> None:
    """Send an answer."""
    stream.write(json.dumps(asdict(reply)).encode() + b"\n")
    stream.flush()
