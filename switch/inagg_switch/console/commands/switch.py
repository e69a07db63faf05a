# SPDX-License-Identifier: Apache-2.0
"""Commands of the switch as a whole: ports, queues, time; and those of BMv2 that this switch refuses."""

import time
from collections.abc import Callable

from inagg_switch.console.context import Context, at_least, exactly, number, wrong
from inagg_switch.impairment import ImpairmentError, parse_or_off
from inagg_switch.ports import PortError


def show_ports(context: Context, words: list[str]) -> None:
    """Shows the ports connected to the switch: show_ports"""
    exactly(words, 0)
    context.print(f"{'port #':^10}{'iface name':^20}{'status':^10}extra info")
    context.print("=" * 50)
    for port in context.ports.statistics():
        context.print(f"{port.id:^10}{port.interface:^20}{'UP' if port.up else 'DOWN':^10}")


def switch_info(context: Context, words: list[str]) -> None:
    """Show some basic info about the switch: switch_info"""
    exactly(words, 0)
    context.print("switch: inagg-switch")
    context.print(f"ports: {len(context.ports.statistics())}")
    context.print(f"tables: {len(context.target.names.tables)}")


def get_time_elapsed(context: Context, words: list[str]) -> None:
    """Get time elapsed (in microseconds) since the switch started: get_time_elapsed"""
    exactly(words, 0)
    context.print(str(round(context.ports.now() * 1e6)))


def get_time_since_epoch(context: Context, words: list[str]) -> None:
    """Get time elapsed (in microseconds) since the epoch: get_time_since_epoch"""
    exactly(words, 0)
    context.print(str(time.time_ns() // 1000))


def _queues(words: list[str], what: str) -> tuple[int, int | None, int | None]:
    """VALUE [PORT [PRIORITY]]"""
    at_least(words, 1)
    if len(words) > 3:
        exactly(words, 3)
    value, *where = (
        number(word, name) for word, name in zip(words, (what, "egress_port", "priority"), strict=False)
    )
    port, priority = (*where, None, None)[:2]
    return value, port, priority


def set_queue_rate(context: Context, words: list[str]) -> None:
    """Set rate of one / all egress queue(s): set_queue_rate <rate_pps> [<egress_port> [<priority>]]"""
    rate, port, priority = _queues(words, "rate_pps")
    try:
        context.ports.set_queue_rate(rate, port, priority)
    except PortError as error:
        raise wrong(str(error)) from None


def set_queue_depth(context: Context, words: list[str]) -> None:
    """Set depth of one / all egress queue(s): set_queue_depth <nb_pkts> [<egress_port> [<priority>]]"""
    depth, port, priority = _queues(words, "nb_pkts")
    try:
        context.ports.set_queue_depth(depth, port, priority)
    except PortError as error:
        raise wrong(str(error)) from None


def impair(context: Context, words: list[str]) -> None:
    """Impair the packets that a port receives (in) or sends (out), or show what is: impair [<port> <in|out>
    <loss=1%,delay=5ms,...|off>]"""
    if not words:
        for (port, direction), impairment in sorted(context.ports.impairments().items()):
            context.print(f"{port} {direction} {impairment}")
        return
    exactly(words, 3)
    port = number(words[0], "port")
    if words[1] not in ("in", "out"):
        raise wrong(f"Invalid direction ({words[1]}), expected in or out")
    try:
        context.ports.impair(port, "in" if words[1] == "in" else "out", parse_or_off(words[2]))
    except (ImpairmentError, PortError) as error:
        raise wrong(str(error)) from None


def reset_state(context: Context, words: list[str]) -> None:
    """Reset all state in the switch (table entries, registers, ...), but the program is kept: reset_state"""
    exactly(words, 0)
    context.restart()


def _refused(name: str, why: str) -> Callable[[Context, list[str]], None]:
    def refuse(context: Context, words: list[str]) -> None:
        raise wrong(f"{name}: {why}")

    refuse.__doc__ = f"Not supported by this switch: {why}"
    return refuse


_REFUSED = {
    "load_new_config_file": "start the switch with the program, or set it over P4Runtime",
    "swap_configs": "start the switch with the program, or set it over P4Runtime",
    "port_add": "ports are given when the switch starts (-i)",
    "port_remove": "ports are given when the switch starts (-i)",
    "serialize_state": "read the state with table_dump and register_read, or over P4Runtime",
    "write_config_to_file": "the program is the JSON that the switch was started with",
    "set_crc16_parameters": "the parameters of crc16_custom are fixed",
    "set_crc32_parameters": "the parameters of crc32_custom are fixed",
    "set_toeplitz_hash_key": "v1model has no Toeplitz hash",
    "mc_set_lag_membership": "this switch has no LAGs",
}

COMMANDS: dict[str, Callable[[Context, list[str]], None]] = {
    **{
        command.__name__: command
        for command in (
            show_ports,
            switch_info,
            get_time_elapsed,
            get_time_since_epoch,
            set_queue_rate,
            set_queue_depth,
            impair,
            reset_state,
        )
    },
    **{name: _refused(name, why) for name, why in _REFUSED.items()},
}
