# SPDX-License-Identifier: Apache-2.0
"""Client arbitration: which controller becomes primary, which controllers are notified, which streams end."""

import pytest
from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.arbitration import (
    MAX_UNUSED_ROLES,
    Arbitration,
    ElectionId,
    Notification,
    Session,
)
from inagg_switch.p4runtime.errors import Code, RequestError

DEVICE = 1


def request(
    election_id: ElectionId | None, device_id: int = DEVICE, role: str = ""
) -> p4runtime_pb2.MasterArbitrationUpdate:
    message = p4runtime_pb2.MasterArbitrationUpdate(device_id=device_id)
    if election_id is not None:
        message.election_id.high, message.election_id.low = election_id
    if role:
        message.role.name = role
    return message


def codes(notifications: list[Notification]) -> list[tuple[Session, int]]:
    """(session, status code) of each notification, in order."""
    return [(one.session, one.message.arbitration.status.code) for one in notifications]


def test_the_first_controller_becomes_primary() -> None:
    arbitration, first = Arbitration(DEVICE), Session()
    (notification,) = arbitration.update(first, request((0, 1)))
    assert notification.session is first
    assert notification.message.arbitration.status.code == Code.OK
    assert notification.message.arbitration.election_id.low == 1
    arbitration.check_primary("", (0, 1))


def test_a_lower_election_id_is_a_backup_and_only_it_is_notified() -> None:
    arbitration, first, second = Arbitration(DEVICE), Session(), Session()
    arbitration.update(first, request((0, 5)))
    notifications = arbitration.update(second, request((0, 4)))
    assert codes(notifications) == [(second, Code.ALREADY_EXISTS)]
    assert notifications[0].message.arbitration.election_id.low == 5
    with pytest.raises(RequestError) as caught:
        arbitration.check_primary("", (0, 4))
    assert caught.value.code == Code.PERMISSION_DENIED


def test_a_higher_election_id_takes_over_and_the_new_primary_is_notified_last() -> None:
    arbitration, first, second = Arbitration(DEVICE), Session(), Session()
    arbitration.update(first, request((0, 5)))
    notifications = arbitration.update(second, request((1, 0)))
    assert codes(notifications) == [(first, Code.ALREADY_EXISTS), (second, Code.OK)]
    arbitration.check_primary("", (1, 0))
    with pytest.raises(RequestError):
        arbitration.check_primary("", (0, 5))


def test_when_the_primary_leaves_the_backups_are_notified_that_there_is_no_primary() -> None:
    arbitration, first, second = Arbitration(DEVICE), Session(), Session()
    arbitration.update(first, request((0, 5)))
    arbitration.update(second, request((0, 4)))
    assert codes(arbitration.disconnect(first)) == [(second, Code.NOT_FOUND)]
    with pytest.raises(RequestError):
        arbitration.check_primary("", (0, 4))


def test_nobody_is_notified_when_a_backup_leaves() -> None:
    arbitration, first, second = Arbitration(DEVICE), Session(), Session()
    arbitration.update(first, request((0, 5)))
    arbitration.update(second, request((0, 4)))
    assert arbitration.disconnect(second) == []


def test_after_the_primary_left_a_lower_id_does_not_become_primary_and_the_same_id_does() -> None:
    arbitration, first, second, third = Arbitration(DEVICE), Session(), Session(), Session()
    arbitration.update(first, request((0, 5)))
    arbitration.disconnect(first)
    assert codes(arbitration.update(second, request((0, 4)))) == [(second, Code.NOT_FOUND)]
    assert codes(arbitration.update(third, request((0, 5)))) == [
        (second, Code.ALREADY_EXISTS),
        (third, Code.OK),
    ]


def test_a_primary_that_lowers_its_id_leaves_no_primary() -> None:
    arbitration, first, second = Arbitration(DEVICE), Session(), Session()
    arbitration.update(first, request((0, 5)))
    arbitration.update(second, request((0, 4)))
    notifications = arbitration.update(first, request((0, 1)))
    assert sorted(code for _, code in codes(notifications)) == [Code.NOT_FOUND, Code.NOT_FOUND]
    with pytest.raises(RequestError):
        arbitration.check_primary("", (0, 1))


def test_a_backup_can_raise_its_id_and_take_over() -> None:
    arbitration, first, second = Arbitration(DEVICE), Session(), Session()
    arbitration.update(first, request((0, 5)))
    arbitration.update(second, request((0, 4)))
    assert codes(arbitration.update(second, request((0, 6)))) == [
        (first, Code.ALREADY_EXISTS),
        (second, Code.OK),
    ]


def test_without_an_election_id_a_controller_is_never_primary() -> None:
    arbitration, first = Arbitration(DEVICE), Session()
    (notification,) = arbitration.update(first, request(None))
    assert notification.message.arbitration.status.code == Code.NOT_FOUND
    assert not notification.message.arbitration.HasField("election_id")
    with pytest.raises(RequestError):
        arbitration.check_primary("", None)


def test_zero_is_an_election_id() -> None:
    arbitration, first = Arbitration(DEVICE), Session()
    assert codes(arbitration.update(first, request((0, 0)))) == [(first, Code.OK)]
    arbitration.check_primary("", (0, 0))


def test_each_role_has_its_primary() -> None:
    arbitration, first, second = Arbitration(DEVICE), Session(), Session()
    arbitration.update(first, request((0, 5)))
    (notification,) = arbitration.update(second, request((0, 1), role="metrics"))
    assert notification.message.arbitration.status.code == Code.OK
    assert notification.message.arbitration.role.name == "metrics"
    arbitration.check_primary("", (0, 5))
    arbitration.check_primary("metrics", (0, 1))


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (request((0, 1), device_id=2), Code.NOT_FOUND),
        (request((0, 5)), Code.INVALID_ARGUMENT),  # taken by the live controller
    ],
)
def test_a_refused_first_message_ends_the_stream_and_changes_nothing(
    message: p4runtime_pb2.MasterArbitrationUpdate, code: Code
) -> None:
    arbitration, first, second = Arbitration(DEVICE), Session(), Session()
    arbitration.update(first, request((0, 5)))
    with pytest.raises(RequestError) as caught:
        arbitration.update(second, message)
    assert caught.value.code == code
    assert arbitration.disconnect(second) == []
    arbitration.check_primary("", (0, 5))


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (request((0, 1), device_id=2), Code.FAILED_PRECONDITION),
        (request((0, 1), role="other"), Code.FAILED_PRECONDITION),
        (request((0, 5)), Code.INVALID_ARGUMENT),
    ],
)
def test_a_refused_later_message_ends_the_stream(
    message: p4runtime_pb2.MasterArbitrationUpdate, code: Code
) -> None:
    arbitration, first, second = Arbitration(DEVICE), Session(), Session()
    arbitration.update(first, request((0, 5)))
    arbitration.update(second, request((0, 1)))
    with pytest.raises(RequestError) as caught:
        arbitration.update(second, message)
    assert caught.value.code == code


def test_a_role_config_is_refused() -> None:
    message = request((0, 1), role="r")
    message.role.config.type_url = "anything"
    with pytest.raises(RequestError) as caught:
        Arbitration(DEVICE).update(Session(), message)
    assert caught.value.code == Code.INVALID_ARGUMENT


def test_a_long_name_of_a_role_is_refused() -> None:
    with pytest.raises(RequestError, match="the role's name has 257 characters; 256 are the most"):
        Arbitration(DEVICE).update(Session(), request((0, 1), role="x" * 257))


def test_few_roles_without_streams_are_remembered() -> None:
    arbitration = Arbitration(DEVICE)
    for number in range(1000):
        session = Session()
        arbitration.update(session, request((0, 5), role=f"r{number}"))
        arbitration.disconnect(session)
    assert len(arbitration._roles) == MAX_UNUSED_ROLES
    last = Session()
    (notification,) = arbitration.update(last, request((0, 4), role="r999"))
    assert notification.message.arbitration.status.code == Code.NOT_FOUND  # 5 is the highest that it has had


def test_a_write_for_a_role_without_controllers_is_not_found() -> None:
    with pytest.raises(RequestError) as caught:
        Arbitration(DEVICE).check_primary("nobody", (0, 1))
    assert caught.value.code == Code.NOT_FOUND
