# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime service of one device, as grpcio calls it: checks the caller, orders requests, returns the status.

`write`, `read` and `pipeline` carry requests out, `controllers` has the sessions. One lock (`_state`) serialises
Writes, look-ups of Reads and changes of the pipeline, so that no Write or Read sees another Write half done. Nothing is
compiled or sent with it held. A call waits for it only while its client is there. `controllers` has its own lock, so
that packets pass during a long Write.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import grpc
from p4.v1 import p4runtime_pb2

from inagg_p4runtime.names import THREADS
from inagg_switch.p4runtime.arbitration import Session, election_id_of
from inagg_switch.p4runtime.batch import NOT_TRIED, WriteBatch, write_each
from inagg_switch.p4runtime.controllers import Controllers
from inagg_switch.p4runtime.entities import idle
from inagg_switch.p4runtime.entities.packets import controller_header, packet_in, packet_out
from inagg_switch.p4runtime.entities.target import Target
from inagg_switch.p4runtime.errors import MAX_ERROR_TEXT, BatchError, Code, RequestError, bounded
from inagg_switch.p4runtime.pipeline import Pipeline
from inagg_switch.p4runtime.read import AllReads, Response, Room, read
from inagg_switch.p4runtime.requests import PipelineRequest, ReadElements
from inagg_switch.p4runtime.rollback import write_all_or_none
from inagg_switch.p4runtime.streams import Stream
from inagg_switch.p4runtime.write import apply_update

logger = logging.getLogger(__name__)

API_VERSION = "1.4.1"  # of the p4runtime package, whose messages this server uses
MAX_READS = 32  # at the same time; each holds a thread
MAX_WRITES = 32  # the same of Writes and pipeline configs; further ones wait without a thread
MAX_PACKET_BYTES = 65_535  # of a packet-out
MAX_QUEUED_DIGESTS = 10_000  # for the thread that sends them; further ones are lost
_LOOK_S = 0.1  # how often a call that waits for a lock looks whether its client is still there

_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}
_GetRequest = p4runtime_pb2.GetForwardingPipelineConfigRequest
_Learned = tuple[Target | None, int, bytes]
_NOTHING: _Learned = (None, 0, b"")


def abort(context: grpc.ServicerContext, error: RequestError) -> NoReturn:
    """End a call with the status of an error."""
    context.abort(_STATUS_CODES[error.code], bounded(error.message))
    raise AssertionError("abort() raises")


def _abort_batch(context: grpc.ServicerContext, error: BatchError) -> NoReturn:
    status = error.status()
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, status.message)
    raise AssertionError("abort() raises")


def _check_there(there: Callable[[], bool]) -> None:
    """Raise RequestError if a client has gone."""
    if not there():
        raise RequestError(Code.CANCELLED, "the client has gone, or its deadline is over")


def _no_cpu_port(_: bytes) -> NoReturn:
    raise RequestError(Code.FAILED_PRECONDITION, "the switch has no CPU port: start it with --cpu-port")


def _stream_error(
    request: p4runtime_pb2.StreamMessageRequest, error: RequestError
) -> p4runtime_pb2.StreamMessageResponse:
    """The answer to a refused message: the message and the reason (specification, "Stream Error Reporting")."""
    response = p4runtime_pb2.StreamMessageResponse()
    out = response.error
    out.canonical_code, out.message, out.space = error.code, error.message[:MAX_ERROR_TEXT], "inagg-switch"
    kind = request.WhichOneof("update")
    if kind == "packet":
        out.packet_out.packet_out.CopyFrom(request.packet)
    elif kind == "digest_ack":
        out.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
    elif kind == "other":
        out.other.other.CopyFrom(request.other)
    else:
        out.other.SetInParent()
    return response


class P4RuntimeService:
    """Implements p4.v1.P4Runtime, with grpcio's method names and signatures."""

    def __init__(
        self, device_id: int, pipeline: Pipeline, send_packet: Callable[[bytes], bool] = _no_cpu_port
    ) -> None:
        """send_packet: runs a frame through the program as received on the CPU port; returns False if it is dropped."""
        self._device_id = device_id
        self._pipeline = pipeline
        self._send_packet = send_packet
        # Digests from the ports' thread; None ends run_notifications().
        self._learned: queue.SimpleQueue[_Learned | None] = queue.SimpleQueue()
        pipeline.on_run = self._watch
        self._controllers = Controllers(device_id)
        self._reads = threading.BoundedSemaphore(MAX_READS)
        self._all_reads = AllReads()
        self._state = (
            threading.Lock()
        )  # guards the pipeline and its targets; taken before the controllers' lock
        self._compiling = threading.Lock()  # one compiler at a time
        self._decoding = threading.Lock()  # one Write at a time, because others need Python's interpreter too

    def close_streams(self) -> None:
        """End every StreamChannel, so that the gRPC server can stop."""
        self._learned.put(None)
        self._controllers.end_all(RequestError(Code.UNAVAILABLE, "the switch is stopping"))

    # Unary calls

    def Capabilities(  # noqa: N802
        self, request: p4runtime_pb2.CapabilitiesRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.CapabilitiesResponse:
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def SetForwardingPipelineConfig(  # noqa: N802
        self, request: PipelineRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.SetForwardingPipelineConfigResponse:
        try:
            self._check_writer(request.head)
            with self._turn(self._compiling, context.is_active):
                whole = request.decoded()
                target = self._pipeline.prepare(whole)
            with self._turn(self._state, context.is_active):
                # Compiling takes seconds, in which the client may have gone and the primary may have changed.
                _check_there(context.is_active)
                self._check_writer(request.head)
                self._pipeline.apply(whole, target)
        except RequestError as error:
            logger.warning("pipeline config refused: %s", bounded(error.message))
            abort(context, error)
        action = p4runtime_pb2.SetForwardingPipelineConfigRequest.Action.Name(request.head.action)
        logger.info("pipeline config: %s", action)
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(  # noqa: N802
        self, request: p4runtime_pb2.GetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.GetForwardingPipelineConfigResponse:
        response = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        try:
            self._check_device(request.device_id)
            target = self._target()
        except RequestError as error:
            abort(context, error)
        context.set_trailing_metadata(((THREADS, str(target.program.threads)),))
        kind, config = request.response_type, target.config
        response.config.SetInParent()
        if config.HasField("cookie"):
            response.config.cookie.CopyFrom(config.cookie)
        if kind in (_GetRequest.ALL, _GetRequest.P4INFO_AND_COOKIE):
            response.config.p4info.CopyFrom(config.p4info)
        if kind in (_GetRequest.ALL, _GetRequest.DEVICE_CONFIG_AND_COOKIE):
            response.config.p4_device_config = config.p4_device_config
        return response

    def Write(  # noqa: N802
        self, batch: WriteBatch, context: grpc.ServicerContext
    ) -> p4runtime_pb2.WriteResponse:
        try:
            self._check_writer(batch.request)
            with self._turn(self._decoding, context.is_active):
                batch.check(lambda: _check_there(context.is_active))
            with self._turn(self._state, context.is_active):
                _check_there(context.is_active)
                self._check_writer(batch.request)  # the primary may have changed
                target = self._target()
                errors = self._write(target, batch, context)
                if batch.has_written("digest_entry"):
                    self._watch(target)
            if any(errors):
                raise BatchError("updates", errors)
        except RequestError as error:
            abort(context, error)
        except BatchError as error:
            logger.warning("write: %s", error)
            if not context.is_active():
                abort(context, NOT_TRIED)
            _abort_batch(context, error)
        return p4runtime_pb2.WriteResponse()

    def _write(
        self, target: Target, batch: WriteBatch, context: grpc.ServicerContext
    ) -> list[RequestError | None]:
        """Apply a batch; return the error of each update."""

        def attempt(target: Target, update: p4runtime_pb2.Update) -> RequestError | None:
            return self._attempt(target, update) if context.is_active() else NOT_TRIED

        atomicity = batch.request.atomicity
        if atomicity == p4runtime_pb2.WriteRequest.ROLLBACK_ON_ERROR:
            return write_all_or_none(target, batch, attempt, self._attempt)
        if atomicity == p4runtime_pb2.WriteRequest.DATAPLANE_ATOMIC:
            with target.program.locked():  # no packet is processed in this block
                return write_all_or_none(target, batch, attempt, self._attempt)
        if atomicity != p4runtime_pb2.WriteRequest.CONTINUE_ON_ERROR:
            raise RequestError(Code.INVALID_ARGUMENT, f"{atomicity} is not an atomicity")
        return write_each(target, batch, self._attempt, context.is_active)

    @staticmethod
    def _attempt(target: Target, update: p4runtime_pb2.Update) -> RequestError | None:
        try:
            apply_update(target, update)
        except RequestError as error:
            return RequestError(error.code, error.message)  # a raised one would keep its frames: 6 KB
        except Exception:  # a defect of ours; the other updates still get their results
            logger.exception("update failed: %s", update)
            return RequestError(Code.INTERNAL, "the switch failed on this update: see its log")
        return None

    def Read(  # noqa: N802
        self, request: ReadElements, context: grpc.ServicerContext
    ) -> Iterator[Response]:
        room = Room(self._all_reads)
        try:
            self._check_device(request.head.device_id)
            with self._place_of_read():
                with self._turn(self._state, context.is_active):
                    found = read(self._target(), request.entities(), room)
                for response in found.responses:
                    if not context.is_active():
                        return
                    yield response
            if any(found.errors):
                _abort_batch(context, BatchError("reads", found.errors))
        except RequestError as error:
            abort(context, error)
        finally:
            room.give_back()

    @contextmanager
    def _place_of_read(self) -> Iterator[None]:
        """Hold one of the places of Reads in a block. Raises RequestError if all are taken."""
        if not self._reads.acquire(blocking=False):
            raise RequestError(Code.RESOURCE_EXHAUSTED, f"{MAX_READS} reads are being answered already")
        try:
            yield
        finally:
            self._reads.release()

    @staticmethod
    @contextmanager
    def _turn(lock: threading.Lock, there: Callable[[], bool]) -> Iterator[None]:
        """Hold a lock in a block. Raises RequestError if another has it and the client does not wait any more."""
        if not lock.acquire(blocking=False):
            while not lock.acquire(timeout=_LOOK_S):
                _check_there(there)
        try:
            yield
        finally:
            lock.release()

    def _check_device(self, device_id: int) -> None:
        if device_id != self._device_id:
            raise RequestError(Code.NOT_FOUND, f"the device is {self._device_id}, not {device_id}")

    def _check_writer(
        self, request: p4runtime_pb2.WriteRequest | p4runtime_pb2.SetForwardingPipelineConfigRequest
    ) -> None:
        self._check_device(request.device_id)
        election_id = election_id_of(request.election_id) if request.HasField("election_id") else None
        self._controllers.check_primary(request.role, election_id)

    def _target(self) -> Target:
        target = self._pipeline.current
        if target is None:
            # PI's message, which clients look for to set the first program: finsy, for one.
            raise RequestError(
                Code.FAILED_PRECONDITION, "No forwarding pipeline config set for this device: set one first"
            )
        return target

    @contextmanager
    def exclusive(self, there: Callable[[], bool]) -> Iterator[Target]:
        """Hold the lock of Writes and Reads in a block; yields the running program.

        there: asked while another has the lock. Raises RequestError if the client has gone then, or no program runs.
        """
        with self._turn(self._state, there):
            if self._pipeline.running is None:
                raise RequestError(
                    Code.FAILED_PRECONDITION, "no program is running: set a pipeline config first"
                )
            yield self._pipeline.running

    # The stream

    def StreamChannel(  # noqa: N802
        self,
        requests: Iterator[p4runtime_pb2.StreamMessageRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[bytes]:
        try:
            session, stream = self._controllers.open(context.cancel)
        except RequestError as error:
            abort(context, error)
        reader = threading.Thread(
            target=self._read_stream, args=(session, stream, requests), name="p4runtime-stream", daemon=True
        )
        try:
            if not context.add_callback(stream.end):
                return
            reader.start()
            yield from stream.messages()
        except RequestError as error:
            logger.warning("stream ended: %s", error)
            abort(context, error)
        finally:
            self._controllers.close(session)

    def _read_stream(
        self, session: Session, stream: Stream, requests: Iterator[p4runtime_pb2.StreamMessageRequest]
    ) -> None:
        try:
            for request in requests:
                answer = self._handle_stream_message(session, request)
                if answer is not None:
                    self._controllers.send(session, answer)
        except RequestError as error:
            stream.end(error)
        except Exception:  # grpcio raises a bare Exception when the call is over
            logger.debug("stream broken", exc_info=True)
        stream.end()

    def _handle_stream_message(
        self, session: Session, request: p4runtime_pb2.StreamMessageRequest
    ) -> p4runtime_pb2.StreamMessageResponse | None:
        kind = request.WhichOneof("update")
        if kind == "arbitration":
            self._controllers.wait_for_id(session, request.arbitration)
            # A Write in progress completes before the primary changes (specification, 5.3).
            with self._turn(self._state, lambda: self._controllers.has(session)):
                self._controllers.arbitrate(session, request.arbitration)
            return None
        try:
            if kind == "packet":
                self._packet_out(session, request.packet)
            elif kind == "digest_ack":
                self._digest_ack(session, request.digest_ack)
            else:
                raise RequestError(
                    Code.UNIMPLEMENTED, f"{kind or 'an empty message'}: not supported by this switch"
                )
        except RequestError as error:
            return _stream_error(request, error)
        return None

    # Packets

    def _packet_out(self, session: Session, message: p4runtime_pb2.PacketOut) -> None:
        if len(message.payload) > MAX_PACKET_BYTES:
            raise RequestError(
                Code.INVALID_ARGUMENT, f"a packet of {len(message.payload)} bytes: {MAX_PACKET_BYTES} at most"
            )
        with self._controllers.as_primary(session):
            running = self._pipeline.running
            if running is None:
                raise RequestError(
                    Code.FAILED_PRECONDITION, "no program is running: commit a pipeline config"
                )
            frame = packet_out(controller_header(running.names, "packet_out"), message)
            if not self._send_packet(frame):
                raise RequestError(Code.RESOURCE_EXHAUSTED, "too many packets wait to be sent: dropped")

    def packet_in(self, frame: bytes) -> None:
        """Send a frame that the program has sent to the CPU port to the primaries."""
        running = self._pipeline.running
        if running is None:
            return
        message = packet_in(controller_header(running.names, "packet_in"), frame)
        if message is None:
            logger.warning("a packet to the CPU port is too short for its packet_in header: dropped")
            return
        self._controllers.send_to_primaries(p4runtime_pb2.StreamMessageResponse(packet=message))

    # Digests and idle entries

    def _digest_ack(self, session: Session, message: p4runtime_pb2.DigestListAck) -> None:
        self._controllers.check_stream(session)
        with self._turn(self._state, lambda: self._controllers.has(session)):
            if self._pipeline.running is None:
                raise RequestError(
                    Code.FAILED_PRECONDITION, "no program is running: commit a pipeline config"
                )
            self._pipeline.running.digests.acknowledge(message)

    def _watch(self, target: Target) -> None:
        """Receive the target's digests only while one is enabled, because each takes time of the ports' thread."""

        def learn(digest: int, data: bytes) -> None:
            if self._learned.qsize() < MAX_QUEUED_DIGESTS:
                self._learned.put((target, digest, data))

        if target.names.digests:
            target.externs.on_digest(learn if target.digests.any_enabled else None)

    def run_notifications(self) -> None:
        """Send digests and idle entries to the primaries until close_streams()."""
        next_scan = 0.0
        while True:
            try:
                learned = self._learned.get(timeout=idle.SCAN_S)
            except queue.Empty:
                learned = _NOTHING
            if learned is None:
                return
            with self._state:
                running, now = self._pipeline.running, time.monotonic()
                if running is None:
                    continue
                # A failure, a defect of ours, must not prevent sending the others.
                try:
                    self._send_digests(running, learned, now)
                except Exception:
                    logger.exception("digest lost")
                if now >= next_scan:
                    next_scan = now + idle.SCAN_S
                    try:
                        self._send_idle(running)
                    except Exception:
                        logger.exception("looking for idle entries failed")

    def _send_digests(self, running: Target, learned: "_Learned", now: float) -> None:
        target, digest, data = learned
        lists = running.digests.add(digest, data, now) if target is running else []
        for message in (*lists, *running.digests.due(now)):
            message.timestamp = time.time_ns()
            self._controllers.send_to_primaries(p4runtime_pb2.StreamMessageResponse(digest=message))

    def _send_idle(self, running: Target) -> None:
        entries = idle.expired(running)
        if entries:
            response = p4runtime_pb2.StreamMessageResponse()
            response.idle_timeout_notification.table_entry.extend(entries)
            response.idle_timeout_notification.timestamp = time.time_ns()
            self._controllers.send_to_primaries(response)
