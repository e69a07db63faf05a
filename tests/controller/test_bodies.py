# SPDX-License-Identifier: Apache-2.0
"""Large answers: a host may have one that is over its limit, and the operator has no limit."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI, Response
from starlette.responses import PlainTextResponse

from inagg_controller.errors import BodiesError
from inagg_controller.http.answers import BoundedAnswers
from inagg_controller.http.guard import Bodies, Gate
from inagg_controller.jobs.tenants import Tenants
from tests.controller.serving import OPERATORS_TOKEN

PER_HOST, MOST = 100_000, 400_000


def refusal(error: BodiesError) -> Response:
    return PlainTextResponse(str(error), status_code=error.status)


def get(size: int, bodies: Bodies, *, host: str = "192.0.2.1", token: str = "") -> httpx.Response:
    """Ask a server for an answer of this many bytes."""
    app = FastAPI()
    app.state.gate = Gate(OPERATORS_TOKEN, lambda number: pytest.fail(f"job {number}"), Tenants())
    app.add_middleware(BoundedAnswers, bodies=bodies, refuse=refusal)
    app.get("/")(lambda: Response(bytes(size)))

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(host, 5000))
        async with httpx.AsyncClient(transport=transport, base_url="http://controller") as client:
            return await client.get("/", headers={"Authorization": f"Bearer {token}"})

    return asyncio.run(ask())


def test_one_answer_may_be_larger_than_its_hosts_limit() -> None:
    answer = get(PER_HOST + 1, Bodies(MOST, PER_HOST))
    assert (answer.status_code, len(answer.content)) == (200, PER_HOST + 1)


def test_a_second_answer_may_not() -> None:
    bodies = Bodies(MOST, PER_HOST)
    with bodies.room("192.0.2.1") as take:
        take(1)
        refused = get(PER_HOST, bodies)
        assert (refused.status_code, "of 192.0.2.1 under way" in refused.text) == (503, True)
        assert get(PER_HOST + 1, bodies, host="192.0.2.2").status_code == 200
        take(PER_HOST)  # the pieces of one body are one body
        assert get(MOST - PER_HOST, bodies, host="192.0.2.2").status_code == 503
    assert get(PER_HOST + 1, bodies).status_code == 200


def test_no_answer_may_be_larger_than_the_limit_of_all_hosts_unless_it_is_the_operators() -> None:
    bodies = Bodies(MOST, PER_HOST)
    refused = get(MOST + 1, bodies, token="another")
    assert (refused.status_code, "of all hosts under way" in refused.text) == (503, True)
    assert get(MOST + 1, bodies, token=OPERATORS_TOKEN).status_code == 200
