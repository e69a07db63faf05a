# SPDX-License-Identifier: Apache-2.0
"""A P4Info made by hand, without a compiler: the parts of inagg.p4's that the controller reads."""

from p4.config.v1 import p4info_pb2

from inagg_controller.switch.entries import (
    ADMISSION,
    BOUND_PORT,
    DISPLACEMENT,
    HOME,
    LINKED_PORT,
    PARENT,
    QUEUE,
    SERVER,
    SHARING,
    SOURCE_IP,
    SOURCE_MAC,
    STATION,
    UPLINK,
)

WORDS = 4
SLOT_VERSIONS = 64

_GUARD = "InaggIngress.source_guard"

_LEASE = {"all": 64, "slot_base": 32, "slot_mask": 32, "epoch": 32, "result_group": 16}

# table -> ({match field: bits}, action, {parameter: bits}), as in p4/include/*.p4
TABLES: dict[str, tuple[dict[str, int], str, dict[str, int]]] = {
    "InaggIngress.ingress_loss.ingress_loss": (
        {"port": 9, "aggregation": 1},
        "InaggIngress.ingress_loss.inject_ingress_loss",
        {"threshold": 32},
    ),
    "InaggEgress.egress_loss.egress_loss": (
        {"port": 9, "aggregation": 1},
        "InaggEgress.egress_loss.inject_egress_loss",
        {"threshold": 32},
    ),
    "InaggIngress.arp_responder.arp_responder": (
        {"ip": 32},
        "InaggIngress.arp_responder.answer",
        {"mac": 48},
    ),
    "InaggIngress.ping_responder.ping_responder": (
        {"ip": 32},
        "InaggIngress.ping_responder.answer_ping",
        {"mac": 48},
    ),
    SOURCE_MAC: ({"mac": 48}, f"{_GUARD}.mac_of_port", {"port": 9}),
    SOURCE_IP: ({"ip": 32}, f"{_GUARD}.ip_of_host", {"port": 9, "mac": 48}),
    BOUND_PORT: ({"port": 9}, f"{_GUARD}.refuse_stranger", {}),
    STATION: ({"mac": 48}, "InaggIngress.l2.to_port", {"port": 9}),
    ADMISSION: (
        {"port": 9, "source": 32, "job": 16, "rank": 8},
        "InaggIngress.admission.admit",
        {"member": 64, **_LEASE, "first_chunk": 32, "parents": 8, "run_bits": 8},
    ),
    PARENT: (
        {"port": 9, "source": 32, "job": 16},
        "InaggIngress.admission.accept_result",
        {**_LEASE, "mac": 48, "ip": 32, "first_port": 9},
    ),
    UPLINK: (
        {"job": 16, "parent": 8},
        "InaggIngress.slots.send_up",
        {"port": 9, "mac": 48, "ip": 32, "rank": 8},
    ),
    SHARING: (
        {"job": 16},
        "InaggIngress.shared_slots.share",
        {
            "base": 32,
            "mask": 32,
            "offset": 32,
            "servers": 8,
            "run_bits": 8,
            "homes": 64,
            "job_priority": 8,
            "expiry_us": 48,
            "mac": 48,
            "ip": 32,
        },
    ),
    SERVER: (
        {"job": 16, "server": 8},
        "InaggIngress.shared_slots.send",
        {"port": 9, "mac": 48, "ip": 32, "udp_port": 16, "rank": 8},
    ),
    DISPLACEMENT: ({"job": 16, "expired": 1}, "InaggIngress.shared_slots.count_displaced", {}),
    HOME: ({"job": 16, "rank": 8, "port": 9}, "InaggEgress.delivery.skip", {}),
    QUEUE: ({"port": 9}, "InaggEgress.mark_congestion.mark_beyond", {"packets": 19}),
    LINKED_PORT: ({"port": 9}, "InaggIngress.beacons.to_controller", {}),
    "InaggEgress.delivery.receiver": (
        {"job": 16, "rank": 8},
        "InaggEgress.delivery.deliver",
        {"mac": 48, "ip": 32, "udp_port": 16},
    ),
}
# The second actions of the tables that have two, and their parameters.
OTHER_ACTIONS: dict[str, tuple[str, dict[str, int]]] = {
    SOURCE_MAC: (f"{_GUARD}.mac_of_aggregator", {}),
    SOURCE_IP: (f"{_GUARD}.ip_of_aggregator", {}),
    PARENT: ("InaggIngress.admission.relay_result", {"epoch": 32, "up": 9}),
}
COUNTERS = ("InaggIngress.slots.started", "InaggEgress.delivery.result_sent")
DIRECT_COUNTERS = {
    ADMISSION: "InaggIngress.admission.admitted",
    DISPLACEMENT: "InaggIngress.shared_slots.displaced",
}
REGISTERS = {"slot_epoch": SLOT_VERSIONS, "pool": SLOT_VERSIONS * WORDS}


def build_p4info() -> p4info_pb2.P4Info:
    """The tables, counters and registers of inagg.p4 that the controller reads."""
    p4info = p4info_pb2.P4Info()
    for number, name in enumerate(TABLES, start=1):
        _add_table(p4info, number, name)
    for number, name in enumerate(COUNTERS, start=1):
        counter = p4info.counters.add(size=512)
        counter.preamble.id, counter.preamble.name = 0x12000000 + number, name
        counter.spec.unit = p4info_pb2.CounterSpec.BOTH
    for number, (name, size) in enumerate(REGISTERS.items(), start=1):
        register = p4info.registers.add(size=size)
        register.preamble.id, register.preamble.name = 0x16000000 + number, f"InaggIngress.{name}"
    return p4info


def _add_table(p4info: p4info_pb2.P4Info, number: int, name: str) -> None:
    match, action, params = TABLES[name]
    table = p4info.tables.add(size=4096)
    table.preamble.id, table.preamble.name = 0x02000000 + number, name
    for index, (field, bits) in enumerate(match.items(), start=1):
        table.match_fields.add(id=index, name=field, bitwidth=bits, match_type=p4info_pb2.MatchField.EXACT)
    actions = [(action, params)] + ([OTHER_ACTIONS[name]] if name in OTHER_ACTIONS else [])
    for order, (action, params) in enumerate(actions):
        described = p4info.actions.add()
        described.preamble.id, described.preamble.name = 0x01000000 + 0x100 * order + number, action
        table.action_refs.add(id=described.preamble.id)
        for index, (param, bits) in enumerate(params.items(), start=1):
            described.params.add(id=index, name=param, bitwidth=bits)
    if name in DIRECT_COUNTERS:
        counter = p4info.direct_counters.add(direct_table_id=table.preamble.id)
        counter.preamble.id, counter.preamble.name = 0x13000000 + number, DIRECT_COUNTERS[name]
        counter.spec.unit = p4info_pb2.CounterSpec.BOTH
        table.direct_resource_ids.append(0x13000000 + number)
