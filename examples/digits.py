# SPDX-License-Identifier: Apache-2.0
"""A small convolutional net learns handwritten digits (scikit-learn's, 8 x 8 pixels).

inagg run --workers 4 examples/digits.py
torchrun --nproc-per-node 2 examples/digits.py --backend gloo
"""

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH = 32
TEST_SAMPLES = 360


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Training and test set, split by torch's generator: images (n, 1, 8, 8) from 0 to 1, and labels."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def make_model() -> nn.Module:
    """Two convolutions and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="inagg")
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    torch.manual_seed(0)  # the same split and the same initial weights on all ranks
    training, test = load_data()
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(training)
    loader = DataLoader(training, batch_size=BATCH, sampler=sampler)

    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    images, labels = test.tensors
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for batch, wanted in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), wanted).backward()
            optimizer.step()
        with torch.no_grad():
            right = (model(images).argmax(dim=1) == labels).float().mean().item()
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: {right:.1%} of the test digits are right", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
