# SPDX-License-Identifier: Apache-2.0
"""PyTorch-Ignite: idist.Parallel makes the world, auto_model wraps the model if it knows the backend."""

import ignite.distributed as idist
import torch
from ignite.engine import create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Loss
from training import BACKEND, network, samples, save


def train(_local_rank: int) -> None:
    model = idist.auto_model(network())
    optimiser = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.05))
    loss = torch.nn.MSELoss()
    trainer = create_supervised_trainer(model, optimiser, loss)
    evaluator = create_supervised_evaluator(model, metrics={"loss": Loss(loss)})
    inputs, targets = samples()
    mine = slice(idist.get_rank(), None, idist.get_world_size())
    batches = list(zip(inputs[mine].split(4), targets[mine].split(4), strict=True))
    trainer.run(batches, max_epochs=2)
    evaluator.run(batches)
    save(getattr(model, "module", model).state_dict())


if __name__ == "__main__":
    with idist.Parallel(backend=BACKEND) as parallel:
        parallel.run(train)
