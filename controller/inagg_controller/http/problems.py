# SPDX-License-Identifier: Apache-2.0
"""Errors as problem documents (RFC 9457), which are counted in the application's `state.refusals` by status."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from inagg_contract.documents import Problem
from inagg_controller.errors import RequestError

_MOST_ERRORS = 10

_PROBLEM = {"content": {"application/problem+json": {"schema": Problem.model_json_schema()}}}
# For the API's description.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "422": {"description": "A value is invalid", **_PROBLEM},
    "4XX": {"description": "Refused; nothing has changed", **_PROBLEM},
    "5XX": {
        "description": "A switch or server is missing or full, or the controller has failed",
        **_PROBLEM,
    },
}


def add_handlers(app: FastAPI) -> None:
    """Answer errors of an application with problem documents."""
    app.add_exception_handler(RequestError, _on_refused)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_failure)


def _document(status: int, kind: str, title: str, detail: str) -> dict[str, Any]:
    return {"type": f"urn:inagg:{kind}", "title": title, "status": status, "detail": detail}


def problem_of(error: RequestError) -> dict[str, Any]:
    """The problem document of a refusal."""
    return _document(error.status, error.kind, error.title, str(error))


def _problem(
    status: int, kind: str, title: str, detail: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    return JSONResponse(
        _document(status, kind, title, detail),
        status_code=status,
        headers=headers,
        media_type="application/problem+json",
    )


def refusal(app: FastAPI, error: RequestError) -> Response:
    """The answer to a request that is refused."""
    app.state.refusals[error.status] += 1
    return _problem(error.status, error.kind, error.title, str(error), error.headers)


async def _on_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return refusal(request.app, error)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    request.app.state.refusals[422] += 1
    errors = error.errors()
    places = ((".".join(str(part) for part in each["loc"]), each["msg"]) for each in errors[:_MOST_ERRORS])
    detail = "; ".join(f"{place}: {message}" for place, message in places)
    if len(errors) > _MOST_ERRORS:
        detail += f"; and {len(errors) - _MOST_ERRORS} more"
    return _problem(422, "invalid-request", "Invalid request", detail)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    request.app.state.refusals[error.status_code] += 1
    title = HTTPStatus(error.status_code).phrase
    headers = dict(error.headers or {})
    path = getattr(request.scope.get("route"), "path", None)
    methods = request.app.openapi()["paths"].get(path)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and methods is not None:
        # Starlette names only the methods of one route, but here every method has its own route.
        headers["Allow"] = ", ".join(sorted(method.upper() for method in methods))
    return _problem(error.status_code, title.lower().replace(" ", "-"), title, str(error.detail), headers)


async def _on_failure(request: Request, error: Exception) -> Response:
    request.app.state.refusals[500] += 1
    # Starlette logs the traceback once this answer is sent.
    detail = f"{type(error).__name__} in the controller; its log has the details"
    return _problem(500, "internal-error", "Internal error", detail)
