# SPDX-License-Identifier: Apache-2.0
"""What the controller refuses and what fails it.

RequestError and its subclasses are the client's answer: each carries its HTTP status. SwitchError and its
subclasses say how the switch failed; ConfigurationError that the controller cannot start as told.
"""

from collections.abc import Mapping


class RequestError(Exception):
    """A request that is refused; nothing has changed. The message is the problem document's detail."""

    status = 400
    kind = "bad-request"
    title = "Bad request"
    headers: Mapping[str, str] = {}


class UnauthorizedError(RequestError):
    """A request without the secret that it needs."""

    status = 401
    kind = "unauthorized"
    title = "Secret missing"
    headers: Mapping[str, str] = {"WWW-Authenticate": "Bearer"}


class ForbiddenError(RequestError):
    """A request with a secret that does not serve for it."""

    status = 403
    kind = "forbidden"
    title = "Wrong secret"


class BodyTimeoutError(RequestError):
    """A body that comes too slowly."""

    status = 408
    kind = "request-timeout"
    title = "Request timeout"
    headers: Mapping[str, str] = {"Connection": "close"}

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the body was not there within {seconds:g} s")


class BodyTooLargeError(RequestError):
    """A body that is not read to its end."""

    status = 413
    kind = "content-too-large"
    title = "Content too large"
    headers: Mapping[str, str] = {"Connection": "close"}

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than the {limit} bytes that this request may have")


class InvalidRequestError(RequestError):
    """A value that can never be right here."""

    status = 422
    kind = "invalid-request"
    title = "Invalid request"


class UnknownJobError(RequestError):
    """No such job, or one that ended so long ago that it has been forgotten."""

    status = 404
    kind = "unknown-job"
    title = "Unknown job"


class ConflictError(RequestError):
    """A request that the job's present state excludes."""

    status = 409
    kind = "conflict"
    title = "ConflictError"


class UnavailableError(RequestError):
    """The switch is away or its resources are in use; the same request may succeed later."""

    status = 503
    kind = "unavailable"
    title = "UnavailableError"


class SwitchError(Exception):
    """The switch did not do what was asked."""


class SwitchUnreachableError(SwitchError):
    """The connection failed, so what the switch holds is unknown."""


class SwitchTakenError(SwitchUnreachableError):
    """Another P4Runtime client is the switch's primary controller, so it alone decides what the switch holds."""


class SwitchRefusedError(SwitchError):
    """The switch answered with an error."""


class ConfigurationError(Exception):
    """The controller cannot run with the options or files it was given."""
