# SPDX-License-Identifier: Apache-2.0
"""Client arbitration: which controller may write (P4Runtime specification, "Client Arbitration").

No gRPC and no locks: `controllers` calls this with its lock held and delivers the notifications that it returns.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.errors import Code, RequestError, invalid

MAX_ROLE_NAME = 256  # characters
MAX_UNUSED_ROLES = 64

ElectionId = tuple[int, int]  # high, low


@dataclass(eq=False)
class Session:
    """One StreamChannel. `role` is None until the first MasterArbitrationUpdate is accepted."""

    role: str | None = None
    election_id: ElectionId | None = None


@dataclass
class _Role:
    highest: ElectionId | None = None
    sessions: list[Session] = field(default_factory=list)

    @property
    def primary(self) -> Session | None:
        if self.highest is None:
            return None
        return next((session for session in self.sessions if session.election_id == self.highest), None)


@dataclass(frozen=True)
class Notification:
    """A message for one session's stream."""

    session: Session
    message: p4runtime_pb2.StreamMessageResponse


def election_id_of(message: p4runtime_pb2.Uint128) -> ElectionId:
    """A 128-bit election id as a pair that compares like the number."""
    return (message.high, message.low)


class Arbitration:
    """The sessions of one device, by role. Every role has full access to the pipeline."""

    def __init__(self, device_id: int) -> None:
        self.device_id = device_id
        self._roles: dict[str, _Role] = {}

    def update(self, session: Session, message: p4runtime_pb2.MasterArbitrationUpdate) -> list[Notification]:
        """Handle a session's MasterArbitrationUpdate. A RequestError must end the stream."""
        role_name = message.role.name
        self._check(session, message, role_name)
        election_id = election_id_of(message.election_id) if message.HasField("election_id") else None
        if self.is_taken(session, message):
            # Begins as PI's message, which clients look for to try another id: finsy, for one.
            raise invalid(f"Election id already exists: another live controller has {election_id}")
        role = self._roles.setdefault(role_name, _Role())
        was_primary = role.primary
        if session.role is None:
            session.role = role_name
            role.sessions.append(session)
        session.election_id = election_id
        if election_id is not None and (role.highest is None or election_id >= role.highest):
            role.highest = election_id
        primary_touched = role.primary is session or was_primary is not role.primary
        return list(self._notify(role_name, role.sessions if primary_touched else [session]))

    def is_taken(self, session: Session, message: p4runtime_pb2.MasterArbitrationUpdate) -> bool:
        """Whether another session of the role has the election id of a message."""
        role = self._roles.get(message.role.name)
        if role is None or not message.HasField("election_id"):
            return False
        wanted = election_id_of(message.election_id)
        return any(other is not session and other.election_id == wanted for other in role.sessions)

    def _check(
        self, session: Session, message: p4runtime_pb2.MasterArbitrationUpdate, role_name: str
    ) -> None:
        is_new = session.role is None
        if message.device_id != self.device_id:
            code = Code.NOT_FOUND if is_new else Code.FAILED_PRECONDITION
            raise RequestError(code, f"the device is {self.device_id}, not {message.device_id}")
        if not is_new and session.role != role_name:
            raise RequestError(
                Code.FAILED_PRECONDITION, "a stream's role cannot be changed: open another stream"
            )
        if len(role_name) > MAX_ROLE_NAME:
            raise invalid(f"the role's name has {len(role_name)} characters; {MAX_ROLE_NAME} are the most")
        if message.role.HasField("config"):
            raise invalid("role.config is not supported: every role has full access to the pipeline")

    def disconnect(self, session: Session) -> list[Notification]:
        """Forget a session whose stream has ended. If it was the primary, its role has none afterwards."""
        if session.role is None:
            return []
        role = self._roles[session.role]
        was_primary = role.primary is session
        role.sessions.remove(session)
        self._forget_roles()
        return list(self._notify(session.role, role.sessions)) if was_primary else []

    def _forget_roles(self) -> None:
        """Keep the highest election ids of few roles without sessions, and of the default role."""
        unused = [name for name, role in self._roles.items() if name and not role.sessions]
        for name in unused[:-MAX_UNUSED_ROLES]:
            del self._roles[name]

    def primaries(self) -> list[Session]:
        """The primary of each role that has one. They receive packets, digests and idle entries."""
        return [role.primary for role in self._roles.values() if role.primary is not None]

    def check_stream(self, session: Session) -> None:
        """Refuse a stream message that only a primary may send. Raises RequestError."""
        if session not in self.primaries():
            raise RequestError(Code.PERMISSION_DENIED, "only the primary controller may send this")

    def check_primary(self, role_name: str, election_id: ElectionId | None) -> None:
        """Refuse a request that does not come from the role's primary. Raises RequestError."""
        role = self._roles.get(role_name)
        if role is None and role_name:
            raise RequestError(Code.NOT_FOUND, f"no controller has the role {role_name!r}")
        primary = role.primary if role is not None else None
        if primary is None or election_id is None or primary.election_id != election_id:
            raise RequestError(Code.PERMISSION_DENIED, "only the primary controller may change the switch")

    def _notify(self, role_name: str, sessions: list[Session]) -> Iterator[Notification]:
        role = self._roles[role_name]
        # The new primary is notified last, after all others (specification, 5.3, case 1.2).
        for session in sorted(sessions, key=lambda one: one is role.primary):
            response = p4runtime_pb2.StreamMessageResponse()
            out = response.arbitration
            out.device_id = self.device_id
            if role_name:
                out.role.name = role_name
            if role.highest is not None:
                out.election_id.high, out.election_id.low = role.highest
            if session is role.primary:
                out.status.code = Code.OK
                out.status.message = "primary"
            elif role.primary is not None:
                out.status.code = Code.ALREADY_EXISTS
                out.status.message = "backup: another controller is the primary"
            else:
                out.status.code = Code.NOT_FOUND
                out.status.message = "backup: there is no primary"
            yield Notification(session, response)
