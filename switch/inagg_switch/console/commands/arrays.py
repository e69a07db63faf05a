# SPDX-License-Identifier: Apache-2.0
"""Commands of registers, counters and meters. The index of a direct counter or meter is an entry's handle."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from inagg_p4runtime.cells import register_cells
from inagg_p4runtime.names import called
from inagg_switch.console.commands.tables import entry_of
from inagg_switch.console.context import MODIFY, CommandError, Context, at_least, exactly, number, wrong
from inagg_switch.p4runtime.entities.names import Array, Table
from inagg_switch.p4runtime.errors import RequestError
from inagg_switch.p4runtime.read import read_cells

_MAX_COUNT = (1 << 63) - 1
_MICROSECONDS = 1_000_000  # in a second: BMv2's rates are units a microsecond, P4Runtime's units a second


def _register(context: Context, name: str) -> Array:
    return context.find(context.target.names.registers.values(), name, "register")


def _values(context: Context, what: str, entity: p4runtime_pb2.Entity) -> list[p4runtime_pb2.Entity]:
    """The cells that a request selects."""
    with _explained(what):
        return context.read(entity)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Raise the block's RequestError, such as of a wrong index, as an invalid operation."""
    try:
        yield
    except RequestError as error:
        raise CommandError(f"Invalid {what} operation (INVALID_INDEX): {error}") from None


def register_read(context: Context, words: list[str]) -> None:
    """Read register value: register_read <name> [index]"""
    at_least(words, 1)
    entity = p4runtime_pb2.Entity()
    entity.register_entry.register_id = _register(context, words[0]).id
    if len(words) > 1:
        exactly(words, 2)
        entity.register_entry.index.index = number(words[1], "index")
    else:
        context.note("register index omitted, reading entire array")
    with _explained("register"):
        cells = [cell for part in read_cells(context.target, entity) for cell in register_cells(part)]
    values = [str(int.from_bytes(cell.value, "big")) for cell in cells]
    context.print(
        f"{words[0]}[{words[1]}]= {values[0]}" if len(words) > 1 else f"{words[0]}= {', '.join(values)}"
    )


def register_write(context: Context, words: list[str]) -> None:
    """Write register value: register_write <name> <index> <value>"""
    exactly(words, 3)
    register = _register(context, words[0])
    try:
        value = int(words[2], 0)
    except ValueError:
        raise wrong("Bad format for value, must be an integer") from None
    if not 0 <= value < 1 << register.bit_width:
        raise wrong(f"the value does not fit into {register.bit_width} bits")
    entity = p4runtime_pb2.Entity()
    entity.register_entry.index.index = number(words[1], "index")
    _write_register(context, entity, register, value)


def register_reset(context: Context, words: list[str]) -> None:
    """Reset all the cells in the register array to 0: register_reset <name>"""
    exactly(words, 1)
    _write_register(context, p4runtime_pb2.Entity(), _register(context, words[0]), 0)


def _write_register(context: Context, entity: p4runtime_pb2.Entity, register: Array, value: int) -> None:
    entity.register_entry.register_id = register.id
    entity.register_entry.data.bitstring = value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")
    context.write(MODIFY, entity, "register")


def _direct(
    context: Context, name: str, messages: Iterable[p4info_pb2.DirectCounter | p4info_pb2.DirectMeter]
) -> Table | None:
    """The table of a direct counter or meter with a name; None if there is no such."""
    found = called(messages, name, lambda one: one.preamble.name)
    return context.target.names.tables[found[0].direct_table_id] if len(found) == 1 else None


def _counter(context: Context, name: str) -> Array | Table:
    """An indexed counter, or the table of a direct one."""
    direct = _direct(context, name, context.target.names.p4info.direct_counters)
    return direct or context.find(context.target.names.counters.values(), name, "counter")


def counter_read(context: Context, words: list[str]) -> None:
    """Read counter value: counter_read <name> <index>"""
    exactly(words, 2)
    counter, entity = _counter(context, words[0]), p4runtime_pb2.Entity()
    index = number(words[1], "index")
    if isinstance(counter, Table):
        context.print(f"this is the direct counter for table {counter.name}")
        entity.direct_counter_entry.table_entry.CopyFrom(entry_of(context, counter, words[1]))
        data = _values(context, "counter", entity)[0].direct_counter_entry.data
    else:
        entity.counter_entry.counter_id, entity.counter_entry.index.index = counter.id, index
        data = _values(context, "counter", entity)[0].counter_entry.data
    context.print(f"{words[0]}[{index}]= ({data.byte_count} bytes, {data.packet_count} packets)")


def counter_write(context: Context, words: list[str]) -> None:
    """Write counter value: counter_write <name> <index> <packets> <bytes>"""
    exactly(words, 4)
    counter, entity = _counter(context, words[0]), p4runtime_pb2.Entity()
    index = number(words[1], "index")
    data = p4runtime_pb2.CounterData(
        packet_count=number(words[2], "packets", _MAX_COUNT), byte_count=number(words[3], "bytes", _MAX_COUNT)
    )
    if isinstance(counter, Table):
        context.print(f"writing to direct counter for table {counter.name}")
        entity.direct_counter_entry.table_entry.CopyFrom(entry_of(context, counter, words[1]))
        entity.direct_counter_entry.data.CopyFrom(data)
    else:
        entity.counter_entry.counter_id, entity.counter_entry.index.index = counter.id, index
        entity.counter_entry.data.CopyFrom(data)
    context.write(MODIFY, entity, "counter")
    context.print(f"{words[0]}[{index}] has been updated")


def counter_reset(context: Context, words: list[str]) -> None:
    """Reset counter: counter_reset <name>"""
    exactly(words, 1)
    counter = _counter(context, words[0])
    zero = p4runtime_pb2.CounterData()
    if isinstance(counter, Table):
        context.print(f"this is the direct counter for table {counter.name}")
        for handle, _ in context.handles(counter).in_order():
            entity = p4runtime_pb2.Entity()
            entity.direct_counter_entry.table_entry.CopyFrom(entry_of(context, counter, str(handle)))
            entity.direct_counter_entry.data.CopyFrom(zero)
            context.write(MODIFY, entity, "counter")
    else:
        entity = p4runtime_pb2.Entity()
        entity.counter_entry.counter_id = counter.id
        entity.counter_entry.data.CopyFrom(zero)
        context.write(MODIFY, entity, "counter")


def _meter(context: Context, name: str) -> Array | Table:
    """An indexed meter, or the table of a direct one."""
    direct = _direct(context, name, context.target.names.p4info.direct_meters)
    return direct or context.find(context.target.names.meters.values(), name, "meter")


def _config(words: list[str]) -> p4runtime_pb2.MeterConfig:
    """RATE:BURST RATE:BURST, in units a microsecond and units."""
    if len(words) != 2:
        raise wrong(f"Invalid number of rates, expected 2 but got {len(words)}")
    config = p4runtime_pb2.MeterConfig()
    (config.cir, config.cburst), (config.pir, config.pburst) = (_rate(word) for word in words)
    return config


def _rate(word: str) -> tuple[int, int]:
    rate, _, burst = word.partition(":")
    try:
        units = float(rate)
    except ValueError:
        units = math.nan
    if not (math.isfinite(units) and units >= 0 and burst.isascii() and burst.isdigit()):
        raise wrong("Error while parsing rates")
    return round(units * _MICROSECONDS), int(burst)


def meter_set_rates(context: Context, words: list[str]) -> None:
    """Configure rates for a meter: meter_set_rates <name> <index> <rate_1>:<burst_1> <rate_2>:<burst_2>
    Rate uses units/microsecond and burst uses units where units is bytes or packets"""
    at_least(words, 2)
    meter, config, entity = _meter(context, words[0]), _config(words[2:]), p4runtime_pb2.Entity()
    index = number(words[1], "index")
    if isinstance(meter, Table):
        entity.direct_meter_entry.table_entry.CopyFrom(entry_of(context, meter, words[1]))
        entity.direct_meter_entry.config.CopyFrom(config)
    else:
        entity.meter_entry.meter_id, entity.meter_entry.index.index = meter.id, index
        entity.meter_entry.config.CopyFrom(config)
    context.write(MODIFY, entity, "meter")


def meter_array_set_rates(context: Context, words: list[str]) -> None:
    """Configure rates for an entire meter array: meter_array_set_rates <name> <rate_1>:<burst_1> <rate_2>:<burst_2>"""
    at_least(words, 1)
    meter, config, entity = _meter(context, words[0]), _config(words[1:]), p4runtime_pb2.Entity()
    if isinstance(meter, Table):
        for handle, _ in context.handles(meter).in_order():
            entity.direct_meter_entry.table_entry.CopyFrom(entry_of(context, meter, str(handle)))
            entity.direct_meter_entry.config.CopyFrom(config)
            context.write(MODIFY, entity, "meter")
        return
    entity.meter_entry.meter_id = meter.id
    entity.meter_entry.config.CopyFrom(config)
    context.write(MODIFY, entity, "meter")


def meter_get_rates(context: Context, words: list[str]) -> None:
    """Retrieve rates for a meter: meter_get_rates <name> <index>"""
    exactly(words, 2)
    meter, entity = _meter(context, words[0]), p4runtime_pb2.Entity()
    index = number(words[1], "index")
    if isinstance(meter, Table):
        entity.direct_meter_entry.table_entry.CopyFrom(entry_of(context, meter, words[1]))
        found = _values(context, "meter", entity)[0].direct_meter_entry
    else:
        entity.meter_entry.meter_id, entity.meter_entry.index.index = meter.id, index
        found = _values(context, "meter", entity)[0].meter_entry
    if not found.HasField("config"):
        context.print("WARNING: expected 2 rates but only received 0")
        return
    rates = ((found.config.cir, found.config.cburst), (found.config.pir, found.config.pburst))
    for place, (rate, burst) in enumerate(rates):
        context.print(f"{place}: info rate = {rate / _MICROSECONDS}, burst size = {burst}")


COMMANDS: dict[str, Callable[[Context, list[str]], None]] = {
    command.__name__: command
    for command in (
        register_read,
        register_write,
        register_reset,
        counter_read,
        counter_write,
        counter_reset,
        meter_set_rates,
        meter_array_set_rates,
        meter_get_rates,
    )
}
