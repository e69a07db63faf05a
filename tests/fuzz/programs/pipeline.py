# SPDX-License-Identifier: Apache-2.0
"""What simple_switch does with a packet between the blocks of a program: clones, multicast copies, further rounds,
drops and truncation. Multicast groups and clone sessions are the same for all programs."""

from dataclasses import dataclass
from typing import Any

from tests.fuzz.programs.expressions import Environment, Ref, Type
from tests.fuzz.programs.statements import Statement

CLONE, RESUBMIT, RECIRCULATE, LENGTH, TRUNCATED = (
    "$clone", "$resubmit", "$recirculate", "$length", "$truncated"
)  # fmt: skip
EGRESS_SPEC = Ref(Type(9), "sm.egress_spec")
MCAST_GRP = Ref(Type(16), "sm.mcast_grp")
DROP_PORT = 511
NORMAL, INGRESS_CLONE, EGRESS_CLONE, RECIRCULATED, REPLICATED, RESUBMITTED = 0, 1, 2, 4, 5, 6
Replicas = dict[int, list[tuple[int, int]]]  # number to (port, replication id)
GROUPS: Replicas = {1: [(1, 1), (2, 7)], 2: [(3, 0)], 3: [(4, 1), (1, 15)]}  # 4: not there
SESSIONS: Replicas = {1: [(5, 1)], 2: [(6, 2), (7, 3)], 3: [(1, 0)]}  # 4: not there
FIELD_LISTS = (1, 2, 3)


@dataclass
class Clone(Statement):
    """A clone(); only the last one of a pass takes effect."""

    kind: str  # I2E, E2E
    session: int
    fields: int

    def p4(self) -> list[str]:
        return [f"clone_preserving_field_list(CloneType.{self.kind}, {self.session}, {self.fields});"]

    def run(self, env: Environment) -> None:
        env[CLONE] = self.session, self.fields


@dataclass
class Again(Statement):
    """resubmit or recirculate"""

    how: str
    fields: int

    def p4(self) -> list[str]:
        return [f"{self.how}_preserving_field_list({self.fields});"]

    def run(self, env: Environment) -> None:
        env[f"${self.how}"] = self.fields


@dataclass
class Drop(Statement):
    def p4(self) -> list[str]:
        return ["mark_to_drop(sm);"]

    def run(self, env: Environment) -> None:
        env[EGRESS_SPEC.path] = DROP_PORT
        env[MCAST_GRP.path] = 0


@dataclass
class Truncate(Statement):
    """A truncate(); the smallest length of a pass takes effect."""

    length: int

    def p4(self) -> list[str]:
        return [f"truncate({self.length});"]

    def run(self, env: Environment) -> None:
        known = env[TRUNCATED]
        env[TRUNCATED] = self.length if known is None else min(self.length, known)


@dataclass
class Round:
    """A frame before the parser, with the metadata that it kept from the previous round."""

    frame: bytes
    kept: dict[str, Any]
    instance: int


def clear_registers(env: Environment) -> None:
    """Removes a packet's requests from the environment of its copy."""
    env.update({CLONE: None, RESUBMIT: None, RECIRCULATE: None, TRUNCATED: None})
