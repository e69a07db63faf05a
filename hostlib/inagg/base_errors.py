# SPDX-License-Identifier: Apache-2.0
"""The exceptions of inagg that need no torch; `inagg.errors` has all of them, and describes them.

An aggregation server and the commands of the testbed import these only, because torch takes seconds to import.
"""

from typing import Any


def _rebuild(kind: "type[InaggError]", message: str, facts: dict[str, Any]) -> "InaggError":
    # Of several built-in bases, that of an OSError has the larger objects.
    error: InaggError = (OSError if issubclass(kind, OSError) else Exception).__new__(kind, message)
    Exception.__init__(error, message)
    error.__dict__.update(facts)
    return error


class InaggError(Exception):
    """Base of all exceptions of inagg."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.__dict__)


class ConfigurationError(InaggError, ValueError):
    """A setting or an argument is invalid. Nothing has been changed or sent."""


class ControllerError(InaggError):
    """A request to the controller failed. url: the controller's base URL."""

    def __init__(self, message: str, *, url: str | None = None) -> None:
        super().__init__(message)
        self.url = url


_HINT = "Is inagg-controller running there, and can this host reach it?"
# By words in the cause, which are OpenSSL's and httpcore's.
_HINTS = {
    "certificate has expired": "Renew the controller's certificate (inagg-controller certificates).",
    "not yet valid": "Compare this host's clock with the controller's.",
    "is not valid for": "The controller's certificate must name the host of the URL (inagg-controller certificates).",
    "CERTIFICATE_VERIFY_FAILED": "Set INAGG_CONTROLLER_CA to the certificate of the authority that signed it.",
    "WRONG_VERSION_NUMBER": "The controller speaks HTTP there: the URL must begin with http://.",
    "Server disconnected": "If the controller has --tls-cert, the URL must begin with https://.",
}


class ControllerUnreachableError(ControllerError, ConnectionError):
    """The controller did not answer in time."""

    def __init__(self, *, url: str, request: str, cause: str) -> None:
        hint = next((hint for words, hint in _HINTS.items() if words in cause), _HINT)
        super().__init__(f"no answer from the controller at {url} to {request}: {cause}. {hint}", url=url)
        self.request = request


class ControllerRefusedError(ControllerError):
    """The controller answered with an error.

    status: the HTTP status: 401 and 403 secret, address or job class, 404 unknown job, 409 conflict, 422 invalid value,
    429 too many requests, 501 not what the controller offers, 503 switch not connected or pool full.
    title, detail, kind: of its problem document (RFC 9457); the kind is the last word of its type, such as "full".
    retry_after_s: the time after which the controller wants to be asked again; None: it has said none.
    """

    retry_after_s: float | None = None

    def __init__(
        self, *, url: str, request: str, status: int, title: str, detail: str, kind: str = ""
    ) -> None:
        super().__init__(f"the controller at {url} refused {request}: {title} ({status}): {detail}", url=url)
        self.request = request
        self.status = status
        self.title = title
        self.detail = detail
        self.kind = kind

    def after(self, earlier: "ControllerRefusedError") -> "ControllerRefusedError":
        """This error, with the detail of an earlier one, after which the request was made."""
        return type(self)(
            url=self.url or "",
            request=self.request,
            status=self.status,
            title=self.title,
            detail=f"{earlier.detail}; on servers: {self.detail}",
            kind=self.kind,
        )


class ControllerForbiddenError(ControllerRefusedError, PermissionError):
    """The request's secret was missing or wrong: the job's secret, which its ranks share, or the token of a tenant or
    of the operator. Or the tenant's jobs may not be of this class (kind "forbidden-class"), or a rank's address is not
    known to be one of the host that registers it (kind "foreign-address")."""


# The place where programs find them.
for _kind in (
    InaggError,
    ConfigurationError,
    ControllerError,
    ControllerUnreachableError,
    ControllerRefusedError,
    ControllerForbiddenError,
):
    _kind.__module__ = "inagg.errors"
