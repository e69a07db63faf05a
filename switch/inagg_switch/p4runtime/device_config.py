# SPDX-License-Identifier: Apache-2.0
"""The device config of a pipeline config: preprocessed P4 source, bare or in one of the forms that clients wrap it in.

- p4.tmp.P4DeviceConfig, a message that older clients make (p4lang/tutorials' p4runtime_lib) and that PI unwraps;
- a JSON object with the source as its `p4_source`, for clients that parse the file before they send it, as BMv2's is
  JSON.
"""

import json

from inagg_switch.p4runtime.errors import RequestError, invalid
from inagg_switch.p4runtime.requests import varint

SOURCE = "p4_source"
_EXPECTED = "expected preprocessed P4 source"

# The fields of p4.tmp.P4DeviceConfig: its number -> its wire type.
_REASSIGN, _EXTRAS, _DEVICE_DATA = 1, 2, 3
_VARINT, _BYTES = 0, 2
_WIRE_TYPES = {_REASSIGN: _VARINT, _EXTRAS: _BYTES, _DEVICE_DATA: _BYTES}


def as_json(source: str) -> str:
    """The JSON form of a program's source."""
    return json.dumps({SOURCE: source}, indent=1) + "\n"


def source_of(config: bytes) -> str:
    """The P4 source in a device config. Raises RequestError."""
    unwrapped = _device_data(config)
    try:
        text = (config if unwrapped is None else unwrapped).decode()
    except UnicodeDecodeError:
        raise invalid(f"the device config is not UTF-8 text: {_EXPECTED}") from None
    if text.lstrip().startswith("{"):
        text = _source_in_json(text)
    if not text.strip():
        raise invalid(f"the device config is empty: {_EXPECTED}")
    return text


def _source_in_json(text: str) -> str:
    try:
        source = json.loads(text).get(SOURCE)
    except (ValueError, RecursionError) as error:
        raise invalid(f"the device config begins as JSON does, and is not: {error}; {_EXPECTED}") from None
    if not isinstance(source, str):
        raise invalid(
            f"the device config is JSON without {SOURCE!r}, such as BMv2's: {_EXPECTED}, from inagg-switch compile"
        )
    return source


def _device_data(config: bytes) -> bytes | None:
    """The device_data of a p4.tmp.P4DeviceConfig; None if the bytes are none, as P4 source never is."""
    data, place = None, 0
    while place < len(config):
        try:
            tag, place = varint(config, place)
            value, place = varint(config, place)
        except RequestError:
            return None
        number, wire_type = tag >> 3, tag & 7
        if _WIRE_TYPES.get(number) != wire_type:
            return None
        if wire_type == _BYTES:
            if place + value > len(config):
                return None
            if number == _DEVICE_DATA:
                data = config[place : place + value]
            place += value
    return data
