# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the controller.

RequestError and its subclasses: the client's request is refused; each has its HTTP status. SwitchError and its
subclasses: the switch failed. ConfigurationError: the controller cannot start with its options.
"""

import math
from collections.abc import Mapping

from inagg_contract.documents import FORBIDDEN_CLASS, FOREIGN_ADDRESS


class RequestError(Exception):
    """The request is refused and nothing has changed. The message is the problem document's detail."""

    status = 400
    kind = "bad-request"
    title = "Bad request"
    headers: Mapping[str, str] = {}


class UnauthorizedError(RequestError):
    """The request lacks the secret that it needs."""

    status = 401
    kind = "unauthorized"
    title = "Secret missing"
    headers: Mapping[str, str] = {"WWW-Authenticate": "Bearer"}


class ForbiddenError(RequestError):
    """The request's secret does not permit it."""

    status = 403
    kind = "forbidden"
    title = "Wrong secret"


class ForbiddenClassError(RequestError):
    """The tenant's jobs may not be of this class."""

    status = 403
    kind = FORBIDDEN_CLASS
    title = "Class not permitted"


class ForeignAddressError(RequestError):
    """The host that asks has not shown that the address in the request is its own."""

    status = 403
    kind = FOREIGN_ADDRESS
    title = "Foreign address"


class BodyTimeoutError(RequestError):
    """The body arrives too slowly."""

    status = 408
    kind = "request-timeout"
    title = "Request timeout"
    headers: Mapping[str, str] = {"Connection": "close"}

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the body was not complete within {seconds:g} s")


class BodyTooLargeError(RequestError):
    """The body is too large and is not read to its end."""

    status = 413
    kind = "content-too-large"
    title = "Content too large"
    headers: Mapping[str, str] = {"Connection": "close"}

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes, the limit of this request")


class BodiesError(RequestError):
    """The bodies of requests and answers under way leave no room for this one, which is not read or sent."""

    status = 503
    kind = "unavailable"
    title = "Unavailable"
    headers: Mapping[str, str] = {"Connection": "close"}

    def __init__(self, whose: str, limit: int) -> None:
        super().__init__(
            f"the bodies of requests and answers {whose} under way have {limit} bytes, the limit; repeat this request"
        )


class InvalidRequestError(RequestError):
    """A value of the request is invalid."""

    status = 422
    kind = "invalid-request"
    title = "Invalid request"


class UnknownJobError(RequestError):
    """The job does not exist, or ended so long ago that the controller has forgotten it."""

    status = 404
    kind = "unknown-job"
    title = "Unknown job"


class UnknownServerError(RequestError):
    """The server is not registered, or another start of it is."""

    status = 404
    kind = "unknown-server"
    title = "Unknown server"


class ConflictError(RequestError):
    """The job's state does not permit the request."""

    status = 409
    kind = "conflict"
    title = "Conflict"


class RateError(RequestError):
    """A tenant asks too often. wait_s: after which it may ask again."""

    status = 429
    kind = "too-many-requests"
    title = "Too many requests"

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(f"{message}; ask again in {math.ceil(wait_s)} s")
        self.headers = {"Retry-After": str(math.ceil(wait_s))}


class UnavailableError(RequestError):
    """A switch or server is missing, or its resources are in use; the same request may succeed later."""

    status = 503
    kind = "unavailable"
    title = "Unavailable"


class FullError(UnavailableError):
    """The switches of a job have no room for it beside the jobs that they have."""

    kind = "full"


class NotOfferedError(UnavailableError):
    """This controller, with its options, never has what the request needs."""

    status = 501
    kind = "not-offered"
    title = "Not offered"


class SwitchError(Exception):
    """A call on the switch failed."""


class SwitchUnreachableError(SwitchError):
    """The connection failed, so the state of the switch is unknown."""


class SwitchTakenError(SwitchUnreachableError):
    """Another P4Runtime client is the switch's primary controller and may write to it."""


class SwitchRefusedError(SwitchError):
    """The switch answered with an error."""


class ConfigurationError(Exception):
    """The controller cannot run with the options or files it was given."""
