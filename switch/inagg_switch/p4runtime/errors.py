# SPDX-License-Identifier: Apache-2.0
"""Errors of P4Runtime requests, as status codes on the wire (P4Runtime specification, "Error Reporting Messages")."""

import errno
from collections import Counter
from collections.abc import Sequence
from enum import IntEnum

from google.protobuf import any_pb2
from google.rpc import status_pb2
from p4.v1 import p4runtime_pb2

from inagg_switch.errors import SwitchError

MAX_ERROR_TEXT = 300
# Bytes of UTF-8 in a status message. gRPC may write three characters for each byte, and a client takes 8 KiB of
# metadata: with more it sees another error, "Stream removed".
MAX_STATUS_TEXT = 1500
# A client's gRPC library accepts 8 KiB of trailing metadata by default, for all errors of a batch. With more, a call
# may fail with RESOURCE_EXHAUSTED and no details. The metadata contain the status message twice, with some overhead.
MAX_STATUS_BYTES = 7000
_SHORT_TEXT = 40  # if texts would be shorter than this, other parts of an error are left out


class Code(IntEnum):
    """The google.rpc.Code values that this server uses."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class RequestError(SwitchError):
    """A request, or one element of its batch, is refused and has changed nothing."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def invalid(message: str) -> RequestError:
    """The error for a request that is invalid in every state of the switch."""
    return RequestError(Code.INVALID_ARGUMENT, message)


_CODE_OF_ERRNO = {
    errno.ENOENT: (Code.NOT_FOUND, "there is no such entry"),
    errno.EEXIST: (Code.ALREADY_EXISTS, "an entry with this match and priority exists"),
    errno.ENOSPC: (Code.RESOURCE_EXHAUSTED, "it is full"),
    errno.EINVAL: (Code.INVALID_ARGUMENT, "the program refused the value"),
    errno.EBUSY: (Code.FAILED_PRECONDITION, "an entry or a group refers to it"),
    errno.EPERM: (Code.PERMISSION_DENIED, "the program declares this constant"),
}


def from_errno(error: OSError, subject: str) -> RequestError:
    """The error for a refusal by the program (runtime/program.h) of a request about `subject`."""
    code, text = _CODE_OF_ERRNO.get(error.errno or 0, (Code.INTERNAL, str(error)))
    return RequestError(code, f"{subject}: {text}")


class BatchError(SwitchError):
    """Some elements of a batch were refused. errors: one for each element, None for successful ones."""

    def __init__(self, what: str, errors: Sequence[RequestError | None]) -> None:
        failed = [error for error in errors if error is not None]
        super().__init__(
            f"{len(failed)} of {len(errors)} {what} failed; first: {failed[0].message}"[:MAX_ERROR_TEXT]
        )
        self.errors = list(errors)
        self._counted = Counter(map(_kind, self.errors))  # most errors are equal

    def status(self) -> status_pb2.Status:
        """The google.rpc.Status with a p4.v1.Error for each element, in the order of the request.

        All texts are cut to a length at which the status has at most MAX_STATUS_BYTES. Batches of up to 300 updates
        always fit.
        """
        longest = self._longest_text(terse=False)
        if longest >= _SHORT_TEXT:
            return self._status(longest, terse=False)
        return self._status(self._longest_text(terse=True), terse=True)

    def _longest_text(self, *, terse: bool) -> int:
        """The largest number of characters of a text with which the status fits; 0 if it never fits."""
        # With many kinds of errors each look takes half a second.
        low, high = 0, MAX_ERROR_TEXT if self._status_bytes(1, terse=terse) <= MAX_STATUS_BYTES else 0
        while low < high:
            middle = (low + high + 1) // 2
            if self._status_bytes(middle, terse=terse) <= MAX_STATUS_BYTES:
                low = middle
            else:
                high = middle - 1
        return low

    def _status_bytes(self, longest: int, *, terse: bool) -> int:
        sizes = {
            error: _field_bytes(_detail(error, longest, terse=terse).ByteSize()) for error in self._counted
        }
        whole = status_pb2.Status(code=Code.UNKNOWN, message=str(self)).ByteSize()
        return int(whole + sum(sizes[error] * count for error, count in self._counted.items()))

    def _status(self, longest: int, *, terse: bool) -> status_pb2.Status:
        """The status with texts of at most `longest` characters.

        terse: without the error space and the host of type URLs, which no client reads.
        """
        status = status_pb2.Status(code=Code.UNKNOWN, message=str(self))
        details = {error: _detail(error, longest, terse=terse) for error in self._counted}
        status.details.extend(details[_kind(error)] for error in self.errors)
        return status


_Kind = tuple[Code, str]


def _kind(error: RequestError | None) -> _Kind:
    return (Code.OK, "") if error is None else (error.code, error.message)


def _detail(error: _Kind, longest: int, *, terse: bool) -> any_pb2.Any:
    code, message = error
    detail = p4runtime_pb2.Error(canonical_code=code)
    if code != Code.OK:
        detail.message = message[:longest]
        detail.space = "" if terse else "inagg-switch"
    packed = any_pb2.Any()
    packed.Pack(detail, "" if terse else "type.googleapis.com/")
    return packed


def _field_bytes(size: int) -> int:
    """Encoded size of a message of `size` bytes in a field with a small number: tag, length, contents."""
    return 1 + max(1, -(-size.bit_length() // 7)) + size


def bounded(message: str) -> str:
    """A status message that every client can receive: its end is cut off if it is too long."""
    encoded = message.encode()
    if len(encoded) <= MAX_STATUS_TEXT:
        return message
    return encoded[:MAX_STATUS_TEXT].decode(errors="ignore") + " ... (cut off)"
