# SPDX-License-Identifier: Apache-2.0
"""topology.json and the runtime JSON of a switch: their form, which is that of p4lang/tutorials, and their reader.

topology.json has
- hosts: ip (with the length of the prefix), mac, and commands that a shell runs in the host;
- switches: runtime_json, the file of table entries; cli_input, commands of simple_switch_CLI; program, if it is not the
  exercise's; cpu_port; priority_queues;
- links: [end, end, latency, bandwidth], the last two optional. An end is a host or a port such as s1-p1. The latency of
  each direction is a number of ms, or text such as "2ms" (without a unit: us). The bandwidth is in Mbit/s.

Unlike utils/run_exercise.py, the reader refuses what it does not know, so that a misspelt key has an effect.
"""

import difflib
import ipaddress
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StrictStr
from pydantic import ValidationError as Invalid

from inagg_contract.documents import Mac
from inagg_testbed.errors import ConfigurationError

HIGHEST_PORT = 510
_SHOWN_FAULTS = 5
_SECONDS = {"": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_DEFAULT_PREFIX = 8  # Mininet's
_PORT = re.compile(r"(?P<switch>.+)-p(?P<port>\d{1,3})", re.ASCII)
_LATENCY = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|)", re.ASCII)


def _with_prefix(text: str) -> str:
    return ipaddress.IPv4Interface(text if "/" in text else f"{text}/{_DEFAULT_PREFIX}").with_prefixlen


def _link(value: Any) -> Any:
    """The keys of `Link` for a list."""
    if not isinstance(value, list) or not 2 <= len(value) <= 4:
        raise ValueError('want [end, end, latency, bandwidth], such as ["h1", "s1-p1", "5ms", 10]')
    first, second, latency, bandwidth = (*value, None, None)[:4]
    return {"ends": (first, second), "delay_s": _delay_s(latency), "rate_bps": _rate_bps(bandwidth)}


def _delay_s(value: Any) -> float:
    if value is None:
        return 0.0
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value) / 1000
    if not isinstance(value, str) or (match := _LATENCY.fullmatch(value)) is None:
        raise ValueError(f'latency {value!r}: want a number of ms, or text such as "5ms" or "200us"')
    return float(match[1]) * _SECONDS[match[2]]


def _rate_bps(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1e-3 <= value <= 1e6:
        raise ValueError(f"bandwidth {value!r}: want a number of Mbit/s")
    return round(value * 1e6)


_Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=15)]
_Port = Annotated[int, Field(ge=0, le=HIGHEST_PORT)]
_Value = StrictInt | StrictStr


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Host(_Document):
    """A host."""

    ip: Annotated[str, AfterValidator(_with_prefix)]
    mac: Mac
    commands: list[str] = []


class Switch(_Document):
    """A switch."""

    runtime_json: str | None = None
    cli_input: str | None = None
    program: str | None = None
    cpu_port: Annotated[int, Field(ge=1, le=HIGHEST_PORT)] | None = None
    priority_queues: Annotated[int, Field(ge=1, le=8)] = 1


class Link(_Document):
    """A link. rate_bps: None: unshaped."""

    ends: tuple[str, str]
    delay_s: float
    rate_bps: int | None


class Topology(_Document):
    """topology.json."""

    hosts: Annotated[dict[_Name, Host], Field(min_length=1)]
    switches: Annotated[dict[_Name, Switch], Field(min_length=1)]
    links: list[Annotated[Link, BeforeValidator(_link)]]


class TableEntry(_Document):
    """An entry of a table, or its default action."""

    table: str
    match: dict[str, _Value | list[_Value]] | None = None
    default_action: bool | None = None
    action_name: str
    action_params: dict[str, _Value | list[_Value]] = {}
    priority: int | None = None


class Replica(_Document):
    """A copy."""

    egress_port: _Port
    instance: int = 0


class MulticastGroup(_Document):
    """A multicast group."""

    multicast_group_id: Annotated[int, Field(ge=1)]
    replicas: list[Replica]


class CloneSession(_Document):
    """A clone session. packet_length_bytes: where copies are cut; 0: nowhere."""

    clone_session_id: Annotated[int, Field(ge=1)]
    replicas: list[Replica]
    packet_length_bytes: int = 0


class Runtime(_Document):
    """The runtime JSON of a switch. p4info, bmv2_json: p4c's output, of which only the program's name counts here."""

    target: Literal["bmv2"]
    p4info: str
    bmv2_json: str
    table_entries: list[TableEntry] = []
    multicast_group_entries: list[MulticastGroup] = []
    clone_session_entries: list[CloneSession] = []


T = TypeVar("T", bound=BaseModel)


def read_document(kind: type[T], path: Path) -> T:
    """Read a file. Raises ConfigurationError, which names the file and its faults."""
    try:
        return kind.model_validate(json.loads(path.read_text(), object_pairs_hook=_unique))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{path}:{error.lineno}:{error.colno}: no JSON: {error.msg}") from error
    except Invalid as error:
        raise refusal(f"{path}: {fault}" for fault in _faults(kind, error)) from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: {error}") from error


def refusal(faults: Iterable[str]) -> ConfigurationError:
    """The error for faults, each of which a line tells."""
    lines = list(faults)
    more = f"\nand {len(lines) - _SHOWN_FAULTS} more" if len(lines) > _SHOWN_FAULTS else ""
    return ConfigurationError("\n".join(lines[:_SHOWN_FAULTS]) + more)


def _faults(kind: type[BaseModel], error: Invalid) -> list[str]:
    """The faults that pydantic has found, each with its place. A key that is misspelt is not missing, too."""
    found: dict[str, str] = {}
    meant: set[tuple[str, ...]] = set()
    for each in sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden"):
        # The types of a union are parts of the place.
        parts = [str(part) for part in each["loc"] if not (isinstance(part, str) and "[" in part)]
        text = each["msg"].removeprefix("Value error, ")
        if each["type"] == "extra_forbidden":
            known = _keys_at(kind, parts[:-1])
            close = difflib.get_close_matches(parts[-1], known, 1)
            meant |= {(*parts[:-1], name) for name in close}
            hint = f'did you mean "{close[0]}"?' if close else f"known are {', '.join(known)}"
            text = f"unknown key; {hint}"
        if each["type"] != "missing" or tuple(parts) not in meant:
            found.setdefault(".".join(parts), text)  # the first of a union's
    return [f"{place}: {text}" for place, text in found.items()]


def _keys_at(kind: type[BaseModel], place: Sequence[str]) -> list[str]:
    """The keys of the object at a place of a document."""
    for part in place:
        if part in kind.model_fields:  # not the name of a host, nor a number in a list
            kind = _document_in(kind.model_fields[part].annotation) or kind
    return list(kind.model_fields)


def _document_in(annotation: Any) -> type[BaseModel] | None:
    """The document of which a field has one, or a collection."""
    if isinstance(annotation, type) and issubclass(annotation, _Document):
        return annotation
    return next(filter(None, map(_document_in, get_args(annotation))), None)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'"{twice}" is there twice in one object')
    return found


def parse_port(text: str) -> tuple[str, int] | None:
    """The switch and the port of an end such as s1-p1; None if it is not written so."""
    match = _PORT.fullmatch(text)
    return None if match is None else (match["switch"], int(match["port"]))
