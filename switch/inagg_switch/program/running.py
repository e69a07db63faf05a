# SPDX-License-Identifier: Apache-2.0
"""The protocol of a running program, for the parts of Switch and for the P4Runtime server."""

from contextlib import AbstractContextManager
from typing import Protocol

from p4.config.v1 import p4info_pb2

from inagg_switch.program.abi import Api
from inagg_switch.program.externs import Externs


class Program(Protocol):
    """A running program, such as inagg_switch.switch.Switch."""

    @property
    def p4info(self) -> p4info_pb2.P4Info: ...

    @property
    def layout(self) -> p4info_pb2.P4Info: ...

    @property
    def api_address(self) -> int: ...

    @property
    def handle(self) -> int: ...

    @property
    def threads(self) -> int: ...

    @property
    def externs(self) -> Externs: ...

    def locked(self) -> AbstractContextManager[tuple[Api, int]]: ...
