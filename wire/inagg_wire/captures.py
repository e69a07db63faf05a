# SPDX-License-Identifier: Apache-2.0
"""Reads capture files, pcap or pcapng, several at once in the order of time.

scapy reads the files, frame by frame. A frame's place follows from the file's name, or from pcapng's interface:

| file | place |
|---|---|
| port1_in.pcap, port1_out.pcap (`--pcap DIR`) | port 1, in or out; with files of several folders: the folder's port 1 |
| h1.pcap, leaf1-p101.pcap (`inagg capture`) | h1, leaf1-p101 |
| a pcapng file | its interfaces' names, with the direction if the file has it |
"""

import heapq
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from inagg_wire.errors import CaptureError
from inagg_wire.frames import LINK_TYPES, interface

_LONGEST = 1 << 18  # bytes of a frame: what `inagg capture` and tcpdump write at most
_BY_DIRECTION = re.compile(r"(?:port(?P<port>\d+)|(?P<name>.+))_(?P<way>in|out)")
_DIRECTIONS = {1: "in", 2: "out"}  # of pcapng's epb_flags
_NS = 1_000_000_000


class Place(NamedTuple):
    """Where a frame was captured. `way`: "in" or "out", seen from the node; "" if the file does not say."""

    node: str
    port: str
    way: str

    @property
    def location(self) -> tuple[str, str]:
        """The place without the direction."""
        return self.node, self.port

    def __str__(self) -> str:
        return " ".join(word for word in self if word)


class Frame(NamedTuple):
    """A frame as captured. `wire_length` is the frame's own length in bytes."""

    time_ns: int
    place: Place
    link_type: int
    data: bytes
    wire_length: int


@dataclass
class Captures:
    """The files of one command. `notes` is complete after `frames` has ended: what is wrong with which file."""

    paths: Sequence[Path]
    notes: list[str] = field(default_factory=list)
    _reading: Path | None = None

    def frames(self) -> Iterator[Frame]:
        """All frames in the order of time, as far as each file is in order. Raises CaptureError."""
        several = len({path.resolve().parent for path in self.paths}) > 1
        files = [self._read(path, path.resolve().parent.name if several else "") for path in self.paths]
        with _warnings(self._note):
            yield from heapq.merge(*files, key=lambda frame: frame.time_ns)

    def _note(self, text: str) -> None:
        """Note what is wrong with the file that is being read."""
        note = f"{self._reading}: {text}"
        if self._reading is not None and note not in self.notes:
            self.notes.append(note)

    def _read(self, path: Path, node: str) -> Iterator[Frame]:
        self._reading = path
        with _opened(path) as reader:
            at = place_of(path, node)
            end = 24  # of what has been read of a pcap file
            is_pcap = not hasattr(reader, "interfaces")
            while True:
                self._reading = None if is_pcap else path  # of pcap, the end is checked below
                try:
                    data, about = reader._read_packet(size=_LONGEST)
                except EOFError:
                    break
                if is_pcap:
                    place, link_type = at, reader.linktype
                    time_ns = about.sec * _NS + about.usec * (1 if reader.nano else 1000)
                    end += 16 + about.caplen
                    if len(data) < min(about.caplen, _LONGEST):
                        break
                else:
                    place, link_type = self._place(at, about), about.linktype
                    time_ns = ((about.tshigh or 0) << 32 | (about.tslow or 0)) * _NS // about.tsresol
                if link_type not in LINK_TYPES:
                    raise CaptureError(f"{path}: link type {link_type}; want Ethernet, cooked or raw IPv4")
                if (number := interface(data, link_type)) is not None:
                    place = place._replace(port=f"{place.port} interface {number}".strip())
                yield Frame(time_ns, place, link_type, data, about.wirelen)
            if is_pcap and reader.f.tell() != end:
                self._reading = path
                self._note("the file ends within a frame")

    @staticmethod
    def _place(at: Place, about: Any) -> Place:
        name = getattr(about, "ifname", None)
        way = _DIRECTIONS.get(getattr(about, "direction", None) or 0, at.way)
        return Place(at.node, name.decode(errors="replace") if name else at.port, way)


def place_of(path: Path, node: str) -> Place:
    """What a file's name says. `node`: the folder's name if the files are of several folders, else ""."""
    name = path.name.removesuffix(".gz")
    name = re.sub(r"\.(pcap|pcapng|cap)$", "", name)
    if (match := _BY_DIRECTION.fullmatch(name)) is None:
        return Place(node, name, "")
    return Place(node, f"port {match['port']}" if match["port"] else match["name"], match["way"])


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A reader of the file. Raises CaptureError."""
    from scapy.error import Scapy_Exception
    from scapy.utils import RawPcapReader

    open_file: Callable[[Any], Any] = RawPcapReader  # whose annotations know paths only
    try:
        file = path.open("rb")
    except OSError as error:
        raise CaptureError(f"cannot read {path}: {error.strerror}") from error
    with file:
        try:
            reader = open_file(file)
        except (Scapy_Exception, EOFError, OSError) as error:
            raise CaptureError(f"{path}: not a pcap or pcapng file ({error})") from error
        yield reader


@contextmanager
def _warnings(note: Callable[[str], object]) -> Iterator[None]:
    """Pass on what scapy's readers warn of. Otherwise scapy writes lines that name no file to stderr."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note(record.getMessage().removeprefix("PcapNg: ").removeprefix("Pcap: "))

    logger = logging.getLogger("scapy.runtime")
    before = logger.propagate, logger.handlers
    logger.propagate, logger.handlers = False, [Handler(logging.WARNING)]
    try:
        yield
    finally:
        logger.propagate, logger.handlers = before
