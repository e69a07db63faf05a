# SPDX-License-Identifier: Apache-2.0
"""Commands of the multicast engine and of clone sessions.

In BMv2 a group consists of nodes, and a node is a replication id and its ports. P4Runtime's groups have replicas, so
the console keeps the nodes, and writes a group again when its nodes change.
"""

from collections.abc import Sequence

from p4.v1 import p4runtime_pb2

from inagg_switch.console.context import (
    DELETE,
    INSERT,
    MODIFY,
    CommandError,
    Context,
    Node,
    at_least,
    exactly,
    number,
    wrong,
)
from inagg_switch.ports import MAX_PORT

_MAX_RID = (1 << 16) - 1


def _ports(words: Sequence[str]) -> tuple[int, ...]:
    """The ports of a node, ascending: the order of copies."""
    listed = list(words)
    if "|" in listed:
        cut = listed.index("|")
        if listed[cut + 1 :]:
            raise wrong("this switch has no LAGs: leave out what follows |")
        listed = listed[:cut]
    ports = sorted(number(word, "port", MAX_PORT) for word in listed)
    for port in ports:
        if ports.count(port) > 1:
            raise wrong(f"Found duplicate port number '{port}'")
    return tuple(ports)


def _port_map(ports: Sequence[int]) -> str:
    """A bit for each port, port 0 last."""
    return f"{sum(1 << port for port in ports):b}" if ports else ""


def _group(context: Context, word: str) -> int:
    group = number(word, "multicast group id")
    if group not in context.target.groups:
        raise CommandError("Invalid PRE operation (INVALID_MGID)")
    return group


def _handle(context: Context, word: str) -> int:
    handle = number(word, "node handle")
    if handle not in context.kept.nodes:
        raise CommandError("Invalid PRE operation (INVALID_L1_HANDLE)")
    return handle


def _write_group(context: Context, kind: int, group: int, handles: Sequence[int]) -> None:
    entity = p4runtime_pb2.Entity()
    message = entity.packet_replication_engine_entry.multicast_group_entry
    message.multicast_group_id = group
    for handle in handles:
        node = context.kept.nodes[handle]
        for port in node.ports:
            message.replicas.add(egress_port=port, instance=node.rid)
    context.write(kind, entity, "PRE")
    for session, mirrored in context.kept.mirrors.items():
        if mirrored == group and kind == MODIFY:
            _write_session(context, MODIFY, session, message.replicas)


def mc_mgrp_create(context: Context, words: list[str]) -> None:
    """Create multicast group: mc_mgrp_create <group id>"""
    exactly(words, 1)
    group = number(words[0], "multicast group id")
    context.print(f"Creating multicast group {group}")
    _write_group(context, INSERT, group, [])
    context.kept.members[group] = []


def mc_mgrp_destroy(context: Context, words: list[str]) -> None:
    """Destroy multicast group: mc_mgrp_destroy <group id>"""
    exactly(words, 1)
    group = _group(context, words[0])
    context.print(f"Destroying multicast group {group}")
    _write_group(context, DELETE, group, [])
    context.kept.members.pop(group, None)


def mc_node_create(context: Context, words: list[str]) -> None:
    """Create multicast node: mc_node_create <rid> <space-separated port list>"""
    at_least(words, 1)
    node = Node(number(words[0], "rid", _MAX_RID), _ports(words[1:]))
    handle = context.kept.next_node
    context.print(f"Creating node with rid {node.rid} , port map {_port_map(node.ports)} and lag map ")
    context.kept.nodes[handle] = node
    context.kept.next_node += 1
    context.print(f"node was created with handle {handle}")


def mc_node_update(context: Context, words: list[str]) -> None:
    """Update multicast node: mc_node_update <node handle> <space-separated port list>"""
    at_least(words, 2)
    handle = _handle(context, words[0])
    before = context.kept.nodes[handle]
    after = Node(before.rid, _ports(words[1:]))
    context.print(f"Updating node {handle} with port map {_port_map(after.ports)} and lag map ")
    context.kept.nodes[handle] = after
    try:
        for group, handles in context.kept.members.items():
            if handle in handles:
                _write_group(context, MODIFY, group, handles)
    except CommandError:
        context.kept.nodes[handle] = before
        raise


def _change_members(context: Context, group: int, handles: list[int]) -> None:
    _write_group(context, MODIFY, group, handles)
    context.kept.members[group] = handles


def mc_node_associate(context: Context, words: list[str]) -> None:
    """Associate node to multicast group: mc_node_associate <group id> <node handle>"""
    exactly(words, 2)
    group, handle = _group(context, words[0]), _handle(context, words[1])
    context.print(f"Associating node {handle} to multicast group {group}")
    if any(handle in handles for handles in context.kept.members.values()):
        raise CommandError("Invalid PRE operation (ERROR): the node is in a group")
    if group not in context.kept.members:
        raise wrong(f"a P4Runtime controller made multicast group {group}: it has no nodes")
    _change_members(context, group, [*context.kept.members[group], handle])


def mc_node_dissociate(context: Context, words: list[str]) -> None:
    """Dissociate node from multicast group: mc_node_dissociate <group id> <node handle>"""
    exactly(words, 2)
    group, handle = _group(context, words[0]), _handle(context, words[1])
    context.print(f"Dissociating node {handle} from multicast group {group}")
    members = context.kept.members.get(group, [])
    if handle not in members:
        raise CommandError("Invalid PRE operation (ERROR): the node is not in the group")
    _change_members(context, group, [one for one in members if one != handle])


def mc_node_destroy(context: Context, words: list[str]) -> None:
    """Destroy multicast node: mc_node_destroy <node handle>"""
    exactly(words, 1)
    handle = _handle(context, words[0])
    context.print(f"Destroying node {handle}")
    for group, handles in context.kept.members.items():
        if handle in handles:
            _change_members(context, group, [one for one in handles if one != handle])
            break
    del context.kept.nodes[handle]


def mc_dump(context: Context, words: list[str]) -> None:
    """Dump entries in multicast engine: mc_dump"""
    exactly(words, 0)
    context.print("==========")
    context.print("MC ENTRIES")
    for group, message in sorted(context.target.groups.items()):
        context.print("**********")
        context.print(f"mgrp({group})")
        if group in context.kept.members:
            for handle in context.kept.members[group]:
                node = context.kept.nodes[handle]
                ports = ", ".join(map(str, node.ports))
                context.print(f"  -> (L1h={handle}, rid={node.rid}) -> (ports=[{ports}], lags=[])")
        else:
            for replica in message.replicas:
                port = int.from_bytes(replica.port, "big") if replica.port else replica.egress_port
                context.print(f"  -> (rid={replica.instance}) -> (ports=[{port}], lags=[])")
    context.print("==========")
    context.print("LAGS")
    context.print("==========")


def _write_session(
    context: Context, kind: int, session: int, replicas: Sequence[p4runtime_pb2.Replica]
) -> None:
    entity = p4runtime_pb2.Entity()
    message = entity.packet_replication_engine_entry.clone_session_entry
    message.session_id = session
    message.replicas.extend(replicas)
    context.write(kind, entity, "mirroring")


def _session(word: str) -> int:
    session = number(word, "mirror_id")
    if session == 0:
        raise wrong("clone session 0: P4Runtime has no such session; use another number")
    return session


def mirroring_add(context: Context, words: list[str]) -> None:
    """Add mirroring session to unicast port: mirroring_add <mirror_id> <egress_port>"""
    exactly(words, 2)
    session = _session(words[0])
    replica = p4runtime_pb2.Replica(egress_port=number(words[1], "egress_port", MAX_PORT))
    kind = MODIFY if session in context.target.sessions else INSERT
    _write_session(context, kind, session, [replica])
    context.kept.mirrors.pop(session, None)


def mirroring_add_mc(context: Context, words: list[str]) -> None:
    """Add mirroring session to multicast group: mirroring_add_mc <mirror_id> <mgrp>"""
    exactly(words, 2)
    session, group = _session(words[0]), _group(context, words[1])
    kind = MODIFY if session in context.target.sessions else INSERT
    _write_session(context, kind, session, context.target.groups[group].replicas)
    context.kept.mirrors[session] = group


def mirroring_delete(context: Context, words: list[str]) -> None:
    """Delete mirroring session: mirroring_delete <mirror_id>"""
    exactly(words, 1)
    session = _session(words[0])
    _write_session(context, DELETE, session, [])
    context.kept.mirrors.pop(session, None)


def mirroring_get(context: Context, words: list[str]) -> None:
    """Display mirroring session: mirroring_get <mirror_id>"""
    exactly(words, 1)
    session = _session(words[0])
    message = context.target.sessions.get(session)
    if message is None:
        raise CommandError("Invalid mirroring operation (SESSION_NOT_FOUND)")
    group = context.kept.mirrors.get(session)
    ports = [one.egress_port for one in message.replicas]
    port = ports[0] if group is None and ports else None
    context.print(f"MirroringSessionConfig(port={port}, mgid={group})")


COMMANDS = {
    command.__name__: command
    for command in (
        mc_mgrp_create,
        mc_mgrp_destroy,
        mc_node_create,
        mc_node_update,
        mc_node_associate,
        mc_node_dissociate,
        mc_node_destroy,
        mc_dump,
        mirroring_add,
        mirroring_add_mc,
        mirroring_delete,
        mirroring_get,
    )
}
