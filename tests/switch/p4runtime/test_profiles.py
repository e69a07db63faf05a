# SPDX-License-Identifier: Apache-2.0
"""Action profiles and selectors over P4Runtime, with their effect on packets."""

import random
from dataclasses import replace

import pytest
from p4.v1 import p4runtime_pb2

from inagg_switch import Switch
from inagg_switch.p4runtime.entities.target import Target
from inagg_switch.p4runtime.errors import Code, RequestError
from inagg_switch.p4runtime.write import apply_update
from tests.switch.p4runtime.client import Controller, action_id, delete, insert, modify, table_id
from tests.switch.p4runtime.objects import Entity, group, member, one_shot, out_ports, refused, route, send

MEMBERS_AND_GROUPS = (
    Entity(action_profile_member=p4runtime_pb2.ActionProfileMember()),
    Entity(action_profile_group=p4runtime_pb2.ActionProfileGroup()),
)


def route_entries(sw: Switch) -> Entity:
    return Entity(table_entry=p4runtime_pb2.TableEntry(table_id=table_id(sw, "route")))


def test_members_and_groups_carry_packets(sw: Switch, client: Controller) -> None:
    client.write(insert(member(sw, 1, 1)), insert(member(sw, 2, 2)), insert(group(sw, 7, (1, 1), (2, 3))))
    client.write(insert(route(sw, 5, member=1)), insert(route(sw, 6, group=7)))
    assert out_ports(sw, 5) == [1]
    stations = random.Random(1)
    seen = [out_ports(sw, 6, stations.getrandbits(48))[0] for _ in range(400)]
    assert set(seen) == {1, 2}
    assert 70 < seen.count(1) < 130  # a quarter
    client.write(modify(member(sw, 1, 4)))
    assert out_ports(sw, 5) == [4]
    client.write(modify(group(sw, 7, (1, 1))))
    assert {out_ports(sw, 6, src)[0] for src in range(8)} == {4}
    client.write(modify(route(sw, 5, group=7)))
    assert out_ports(sw, 5) == [4]


def test_members_groups_and_references_read_back_as_written(sw: Switch, client: Controller) -> None:
    # A member may have the highest id that a message can hold; BMv2 accepts it too.
    written = [member(sw, 1, 1), member(sw, (1 << 32) - 1, 2), group(sw, 7, (1, 1), ((1 << 32) - 1, 3))]
    entries = [route(sw, 5, member=1), route(sw, 6, group=7)]
    client.write(*(insert(entity) for entity in (*written, *entries)))
    assert client.read(*MEMBERS_AND_GROUPS) == written
    assert client.read(route_entries(sw)) == entries


def test_a_profile_takes_either_members_or_one_shot_sets(sw: Switch, client: Controller) -> None:
    """Specification, "One Shot Action Selector Programming"."""
    client.write(insert(member(sw, 1, 1)))
    assert refused(client, insert(one_shot(sw, 8, 1))) == [Code.INVALID_ARGUMENT]
    client.write(delete(member(sw, 1, 1)), insert(one_shot(sw, 8, 1, 2)))
    assert refused(client, insert(member(sw, 1, 1)), insert(group(sw, 1))) == [Code.INVALID_ARGUMENT] * 2
    assert client.read(*MEMBERS_AND_GROUPS, route_entries(sw)) == [one_shot(sw, 8, 1, 2)]


def test_the_largest_size_of_a_group_is_set_when_it_is_inserted(sw: Switch, client: Controller) -> None:
    limited = group(sw, 7, (1, 2))
    limited.action_profile_group.max_size = 2
    client.write(insert(member(sw, 1, 1)), insert(limited))
    larger = group(sw, 7, (1, 3))
    larger.action_profile_group.max_size = 3
    assert refused(client, modify(larger)) == [Code.INVALID_ARGUMENT]


@pytest.mark.parametrize(
    ("members", "counted", "weighed"),
    [
        ([(1, 3), (2, 3)], None, Code.RESOURCE_EXHAUSTED),
        ([(1, 4)], Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED),
        ([(1, 1), (2, 1), (3, 1)], Code.RESOURCE_EXHAUSTED, Code.RESOURCE_EXHAUSTED),
        ([(1, 1), (2, 1)], None, None),
    ],
)
def test_the_size_of_a_group_is_the_number_of_its_members_or_the_sum_of_their_weights(
    sw: Switch, members: list[tuple[int, int]], counted: Code | None, weighed: Code | None
) -> None:
    for number in (1, 2, 3):
        sw.profile("ways").insert(number, "send", {"port": number})
    for is_counted, expected in ((True, counted), (False, weighed)):
        target = Target(sw, p4runtime_pb2.ForwardingPipelineConfig())
        (ways,) = (p for p in target.names.profiles.values() if p.with_selector)
        heaviest = 3 if is_counted else 0
        target.names.profiles[ways.id] = replace(
            ways, max_group_size=2, counts_members=is_counted, max_member_weight=heaviest
        )
        for number in (1, 2, 3):
            target.members[ways.id, number] = member(sw, number, number).action_profile_member
        code = None
        try:
            apply_update(target, insert(group(sw, 7, *members)))
        except RequestError as error:
            code = error.code
        assert code == expected


def test_a_one_shot_set_is_removed_with_its_entry(sw: Switch, client: Controller) -> None:
    client.write(insert(one_shot(sw, 5, 1, 2)))
    assert {out_ports(sw, 5, src)[0] for src in range(16)} == {1, 2}
    client.write(modify(one_shot(sw, 5, 3)))
    assert {out_ports(sw, 5, src)[0] for src in range(16)} == {3}
    for _ in range(20):  # the profile has room for 16 members
        client.write(delete(one_shot(sw, 5)), insert(one_shot(sw, 5, 1, 2)))
    assert refused(client, insert(one_shot(sw, 5, 4))) == [Code.ALREADY_EXISTS]
    assert {out_ports(sw, 5, src)[0] for src in range(16)} == {1, 2}


def test_refused_profile_updates_change_nothing(sw: Switch, client: Controller) -> None:
    client.write(insert(member(sw, 1, 1)), insert(group(sw, 7, (1, 1))), insert(route(sw, 6, group=7)))
    direct = route(sw, 5)
    direct.table_entry.action.action.CopyFrom(send(sw, 1))
    other_action = member(sw, 3, 1)
    other_action.action_profile_member.action.action_id = action_id(sw, "admit")
    watched = group(sw, 8, (1, 1))
    watched.action_profile_group.members[0].watch_port = b"\x01"
    assert refused(
        client,
        insert(member(sw, 1, 2)),
        modify(member(sw, 2, 2)),
        delete(member(sw, 1, 2)),
        insert(member(sw, 0, 2)),
        insert(other_action),
        insert(group(sw, 7)),
        delete(group(sw, 7)),
        insert(group(sw, 8, (2, 1))),
        insert(group(sw, 8, (1, 0))),
        insert(watched),
        insert(route(sw, 5, member=2)),
        insert(direct),
    ) == [
        Code.ALREADY_EXISTS,
        Code.NOT_FOUND,
        Code.FAILED_PRECONDITION,
        Code.INVALID_ARGUMENT,
        Code.INVALID_ARGUMENT,
        Code.ALREADY_EXISTS,
        Code.FAILED_PRECONDITION,
        Code.NOT_FOUND,
        Code.INVALID_ARGUMENT,
        Code.UNIMPLEMENTED,
        Code.NOT_FOUND,
        Code.INVALID_ARGUMENT,
    ]
    assert out_ports(sw, 6) == [1]
    assert out_ports(sw, 5) == [0]
