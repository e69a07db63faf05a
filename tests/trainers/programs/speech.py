# SPDX-License-Identifier: Apache-2.0
"""SpeechBrain: a Brain that wraps its modules in DDP."""

import os

import speechbrain
import torch
from speechbrain.utils.distributed import ddp_init_group
from torch.utils.data import DataLoader
from training import BACKEND, network, samples, save


class Brain(speechbrain.Brain):
    def compute_forward(self, batch: tuple[torch.Tensor, torch.Tensor], stage: object) -> torch.Tensor:
        return self.modules.model(batch[0])

    def compute_objectives(
        self, predictions: torch.Tensor, batch: tuple[torch.Tensor, torch.Tensor], stage: object
    ) -> torch.Tensor:
        return torch.nn.functional.mse_loss(predictions, batch[1])


def main() -> None:
    options = {
        "device": "cpu",
        "distributed_launch": True,
        "distributed_backend": BACKEND,
        "noprogressbar": True,
    }
    ddp_init_group(options)
    brain = Brain(
        {"model": network()}, lambda parameters: torch.optim.SGD(parameters, lr=0.05), run_opts=options
    )
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    inputs, targets = (tensor[rank::size] for tensor in samples())
    batches = list(zip(inputs.split(4), targets.split(4), strict=True))
    brain.fit(range(2), DataLoader(batches, batch_size=None))
    save(getattr(brain.modules.model, "module", brain.modules.model).state_dict())


if __name__ == "__main__":
    main()
