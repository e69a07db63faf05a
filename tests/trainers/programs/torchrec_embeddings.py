# SPDX-License-Identifier: Apache-2.0
"""torchrec: embedding tables divided among the ranks, and a dense layer that all have."""

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.modules.embedding_configs import PoolingType
from training import BACKEND, samples, save


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        tables = [
            EmbeddingBagConfig(
                name=f"t{number}",
                embedding_dim=8,
                num_embeddings=10,
                feature_names=[f"f{number}"],
                pooling=PoolingType.SUM,
            )
            for number in range(2)
        ]
        self.tables = EmbeddingBagCollection(tables=tables, device=torch.device("cpu"))
        self.dense = torch.nn.Linear(16, 1)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        return self.dense(self.tables(features).values())


def main() -> None:
    dist.init_process_group(BACKEND)
    net = Net()
    planner = EmbeddingShardingPlanner(
        topology=Topology(dist.get_world_size(), "cpu"),
        # torchrec gives a copy of such small tables to every rank, if it may choose.
        constraints={name: ParameterConstraints(sharding_types=["table_wise"]) for name in ("t0", "t1")},
    )
    sharders = [EmbeddingBagCollectionSharder()]
    plan = planner.collective_plan(net, sharders, dist.group.WORLD)
    model = DistributedModelParallel(net, device=torch.device("cpu"), plan=plan, sharders=sharders)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    _, targets = samples(8)
    for step in range(4):
        values = (torch.arange(8) + step + dist.get_rank()) % 10
        features = KeyedJaggedTensor(["f0", "f1"], values, lengths=torch.ones(8, dtype=torch.int32))
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(model(features), targets[:4]).backward()
        optimiser.step()
    weights = {}
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, ShardedTensor):
            weights[name] = tensor
        elif tensor.local_shards():
            weights[name] = tensor.local_tensor()
    save(weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
