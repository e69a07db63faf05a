# SPDX-License-Identifier: Apache-2.0
"""What the controller refuses and what fails it.

RequestError and its subclasses are the client's answer: each carries its HTTP status. SwitchError and its
subclasses say how the switch failed; ConfigurationError that the controller cannot start as told.
"""


class RequestError(Exception):
    """A request that is refused; nothing has changed. The message is the problem document's detail."""

    status = 400
    kind = "bad-request"
    title = "Bad request"


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


class SwitchRefusedError(SwitchError):
    """The switch answered with an error."""


class ConfigurationError(Exception):
    """The controller cannot run with the options or files it was given."""
