# SPDX-License-Identifier: Apache-2.0
"""Composer: a Trainer, which makes the world itself."""

from composer import ComposerModel, Trainer
from torch.nn.functional import mse_loss
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from training import network, samples, save


class Model(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.model = network()

    def forward(self, batch):
        return self.model(batch[0])

    def loss(self, outputs, batch):
        return mse_loss(outputs, batch[1])


def main() -> None:
    from composer.utils import dist

    data = TensorDataset(*samples())
    sampler = DistributedSampler(data, dist.get_world_size(), dist.get_global_rank(), shuffle=False)
    model = Model()
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(data, batch_size=4, sampler=sampler),
        optimizers=SGD(model.parameters(), lr=0.05),
        max_duration="2ep",
        device="cpu",
        progress_bar=False,
        seed=1,
    )
    trainer.fit()
    state = getattr(trainer.state.model, "module", trainer.state.model).state_dict()
    save(state)


if __name__ == "__main__":
    main()
