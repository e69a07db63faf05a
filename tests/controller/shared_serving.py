# SPDX-License-Identifier: Apache-2.0
"""Jobs on shared slots, through the HTTP API."""

from functools import partial

import httpx

from tests.controller.serving import (
    create_job,
    register_ranks,
    worker,
)

SHARED_SLOTS = 16
create = partial(create_job, aggregation="shared")
join = partial(register_ranks, document=lambda rank: worker(rank, server_udp_port=5000))


async def start(client: httpx.AsyncClient, **changes: object) -> int:
    """The number of a job that runs."""
    number: int = (await create(client, **changes))["id"]
    await join(client, number)
    for rank in range(2):
        await client.post(f"/jobs/{number}/workers/{rank}/serving")
    job = (await client.get(f"/jobs/{number}", params={"wait": "running"})).json()
    assert job["state"] == "running", job
    return number
