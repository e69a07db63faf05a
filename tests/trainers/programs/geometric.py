# SPDX-License-Identifier: Apache-2.0
"""PyTorch Geometric: a graph network under DDP, a part of the graphs a rank."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool
from training import BACKEND, samples, save


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = GCNConv(12, 16), torch.nn.Linear(16, 1)

    def forward(self, batch: Data) -> torch.Tensor:
        hidden = self.first(batch.x, batch.edge_index).relu()
        return self.last(global_mean_pool(hidden, batch.batch))


def main() -> None:
    dist.init_process_group(BACKEND)
    inputs, targets = samples()
    ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    graphs = [
        Data(x=inputs[start : start + 4], edge_index=ring, y=targets[start : start + 1])
        for start in range(0, len(inputs), 4)
    ]
    model = DistributedDataParallel(Net())
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for batch in DataLoader(graphs[dist.get_rank() :: dist.get_world_size()], batch_size=2):
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(model(batch), batch.y).backward()
        optimiser.step()
    save(model.module.state_dict())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
