# SPDX-License-Identifier: Apache-2.0
"""The net of digits.py learns while replicas are killed, and others take their places: torchft's Manager over inagg.

pip install 'inagg[torchft]' scikit-learn
inagg-controller --no-switch --listen 127.0.0.1:9560    # from another environment, with inagg[controller]
torchft_lighthouse --min_replicas 1 --heartbeat_timeout_ms 1000
export INAGG_CONTROLLER=http://127.0.0.1:9560 INAGG_AGGREGATION=server TORCHFT_LIGHTHOUSE=http://127.0.0.1:29510
for replica in 0 1 2; do python examples/torchft_digits.py --replica $replica & done

Then kill one with SIGKILL. The others repeat the step without it, and go on. Start it again: it gets the weights of
another replica, and joins. With a switch, leave INAGG_AGGREGATION out.
"""

import argparse
from datetime import timedelta
from typing import Any

import torch
import torchft
from digits import BATCH, load_data, make_model
from torch import nn
from torch.distributed import Store, TCPStore
from torchft.process_group import ProcessGroupWrapper

import inagg


class ProcessGroupInagg(ProcessGroupWrapper):  # type: ignore[misc]  # torchft is not in every environment
    """For `configure`, which torchft calls when replicas come or go: it aborts the current group and makes another."""

    def _create_pg(self, store: Store, rank: int, world_size: int) -> inagg.ProcessGroup:
        return inagg.ProcessGroup.create(store, rank, world_size, timeout=self._timeout)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "torchft-inagg"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replica", type=int, required=True, help="number of this replica, from 0")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--backend", choices=["inagg", "gloo"], default="inagg")
    parser.add_argument("--host", default="127.0.0.1", help="this host's address, for the other replicas")
    arguments = parser.parse_args()

    torch.manual_seed(0)  # the same split on all replicas
    (images, labels), (test_images, test_labels) = (data.tensors for data in load_data())
    model = make_model()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": adam.state_dict()}

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["optimizer"])

    limit = timedelta(seconds=20)
    kind = ProcessGroupInagg if arguments.backend == "inagg" else torchft.ProcessGroupGloo
    store = TCPStore(arguments.host, 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=kind(timeout=limit),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=state,
        replica_id=f"digits_{arguments.replica}",
        rank=0,  # a replica may also be a group of several ranks; here it has one
        world_size=1,
        store_addr=arguments.host,
        store_port=store.port,
        hostname=arguments.host,
        timeout=limit,
    )
    optimizer = torchft.Optimizer(manager, adam)
    while (step := manager.current_step()) < arguments.steps:
        # The batch belongs to the step, so a step that is repeated has the same one.
        order = torch.Generator().manual_seed(1000 * step + arguments.replica)
        batch = torch.randint(len(labels), (BATCH,), generator=order)
        optimizer.zero_grad()  # begins to ask the lighthouse which replicas are there
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        for work in [manager.allreduce(parameter.grad) for parameter in model.parameters()]:
            work.wait()  # raises nothing: the manager keeps the error
        optimizer.step()  # only if all sums have succeeded
        if (done := manager.current_step()) == step:
            print(f"step {step + 1}: not committed, again", flush=True)
            continue
        with torch.no_grad():
            loss = nn.functional.cross_entropy(model(test_images), test_labels).item()
        print(f"step {done}: loss {loss:.4f}, {manager.num_participants()} replicas", flush=True)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
