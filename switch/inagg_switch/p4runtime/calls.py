# SPDX-License-Identifier: Apache-2.0
"""Connects the service to gRPC: decodes requests, counts calls, and ends calls that keep the switch waiting too long.

All methods are streams to gRPC, though most take one message: gRPC calls a unary method only after its client has sent
the message, and then the switch could not end a call that never sends it.

Writes and pipeline configs have threads of their own, since they wait for each other. Those that wait for a thread are
not received yet, and leave the server's threads to other calls.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message
from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.batch import WriteBatch
from inagg_switch.p4runtime.errors import RequestError
from inagg_switch.p4runtime.requests import (
    MAX_STREAM_MESSAGE_BYTES,
    PipelineRequest,
    ReadElements,
    decode,
)
from inagg_switch.p4runtime.service import MAX_WRITES, P4RuntimeService, abort

logger = logging.getLogger(__name__)

PATIENCE_S = 30.0  # with a client that does not read its answer, or does not send its arbitration message
REQUEST_PATIENCE_S = 5.0  # with a client that has called and does not send its request
_TICK_S = 0.5


class Patience:
    """Ends calls for whose clients the switch has waited too long."""

    def __init__(self) -> None:
        self._until: dict[grpc.ServicerContext, float] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def begin(self, context: grpc.ServicerContext, seconds: float = PATIENCE_S) -> None:
        """Start waiting for a client."""
        with self._lock:
            self._until[context] = time.monotonic() + seconds

    def end(self, context: grpc.ServicerContext) -> None:
        """Stop waiting for a client."""
        with self._lock:
            self._until.pop(context, None)

    def waiting(self) -> int:
        """Number of clients for which the switch waits."""
        with self._lock:
            return len(self._until)

    def run(self) -> None:
        """End overdue calls until stop()."""
        while not self._stop.wait(_TICK_S):
            self.lose(time.monotonic())

    def lose(self, now: float) -> None:
        """End the calls whose time is over at `now`."""
        with self._lock:
            overdue = [context for context, until in self._until.items() if until <= now]
        for context in overdue:
            logger.warning("a client keeps the switch waiting: its call is ended (%s)", context.peer())
            context.cancel()
            self.end(context)

    def stop(self) -> None:
        """End run()."""
        self._stop.set()


class Calls:
    """The methods of p4.v1.P4Runtime, for a gRPC server."""

    def __init__(self, service: P4RuntimeService) -> None:
        self._service = service
        self.patience = Patience()
        self.writers = ThreadPoolExecutor(MAX_WRITES, thread_name_prefix="p4runtime-write")
        self._ended: Counter[tuple[str, str]] = Counter()
        self._begun: Counter[str] = Counter()
        self._lock = threading.Lock()

    def ended(self) -> dict[tuple[str, str], int]:
        """(method, status) -> number of calls that have ended."""
        with self._lock:
            return dict(self._ended)

    def open(self, method: str) -> int:
        """Number of calls of a method that have not ended."""
        with self._lock:
            return self._begun[method] - sum(n for (name, _), n in self._ended.items() if name == method)

    def handlers(self) -> grpc.GenericRpcHandler:
        """The handlers for the gRPC server."""
        service = self._service
        return grpc.method_handlers_generic_handler(
            "p4.v1.P4Runtime",
            {
                "Capabilities": self._unary(
                    "Capabilities", _of(p4runtime_pb2.CapabilitiesRequest), service.Capabilities
                ),
                "SetForwardingPipelineConfig": self._unary(
                    "SetForwardingPipelineConfig",
                    PipelineRequest,
                    service.SetForwardingPipelineConfig,
                    self.writers,
                ),
                "GetForwardingPipelineConfig": self._unary(
                    "GetForwardingPipelineConfig",
                    _of(p4runtime_pb2.GetForwardingPipelineConfigRequest),
                    service.GetForwardingPipelineConfig,
                ),
                "Write": self._unary("Write", WriteBatch, service.Write, self.writers),
                "Read": grpc.stream_stream_rpc_method_handler(self._read),
                "StreamChannel": grpc.stream_stream_rpc_method_handler(self._stream_channel),
            },
        )

    def _unary(
        self,
        name: str,
        decoded: Callable[[bytes], Any],
        behaviour: Callable[[Any, grpc.ServicerContext], Message],
        threads: ThreadPoolExecutor | None = None,
    ) -> grpc.RpcMethodHandler:
        def call(messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            with self._counted(name, context):
                request = self._request(messages, context, decoded)
                return bytes(behaviour(request, context).SerializeToString())

        # grpcio uses the server's threads unless it finds others here.
        call.experimental_thread_pool = threads  # type: ignore[attr-defined]
        return grpc.stream_unary_rpc_method_handler(call)

    def _read(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._counted("Read", context):
            request = self._request(messages, context, ReadElements)
            for response in self._service.Read(request, context):
                self.patience.begin(context)
                try:
                    yield response
                finally:
                    self.patience.end(context)

    def _stream_channel(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        def requests() -> Iterator[p4runtime_pb2.StreamMessageRequest]:
            for message in messages:
                request = decode(p4runtime_pb2.StreamMessageRequest, message, MAX_STREAM_MESSAGE_BYTES)
                if request.HasField("arbitration"):
                    self.patience.end(context)
                yield request

        with self._counted("StreamChannel", context):
            self.patience.begin(context)
            try:
                yield from self._service.StreamChannel(requests(), context)
            finally:
                self.patience.end(context)

    def _request(
        self,
        messages: Iterator[bytes],
        context: grpc.ServicerContext,
        decoded: Callable[[bytes], Any],
    ) -> Any:
        """The decoded request of a call."""
        self.patience.begin(context, REQUEST_PATIENCE_S)
        try:
            message = next(messages, None)
        finally:
            self.patience.end(context)
        if message is None:
            _refuse(context, "the call has no request")
        try:
            return decoded(message)
        except RequestError as error:
            abort(context, error)

    @contextmanager
    def _counted(self, name: str, context: grpc.ServicerContext) -> Iterator[None]:
        with self._lock:
            self._begun[name] += 1
        try:
            yield
        except GeneratorExit:
            self._count(name, "CANCELLED")
            raise
        except BaseException:
            code = context.code()
            gone = code is None and not context.is_active()
            self._count(name, "CANCELLED" if gone else code.name if code is not None else "UNKNOWN")
            raise
        self._count(name, "OK" if context.is_active() else "CANCELLED")

    def _count(self, name: str, code: str) -> None:
        with self._lock:
            self._ended[name, code] += 1


def _of(kind: type[Message]) -> Callable[[bytes], Message]:
    return lambda message: decode(kind, message)


def _refuse(context: grpc.ServicerContext, why: str) -> NoReturn:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
    raise AssertionError("abort() raises")
