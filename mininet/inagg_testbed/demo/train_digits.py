# SPDX-License-Identifier: Apache-2.0
"""Train a small convolutional net on scikit-learn's digits with DistributedDataParallel.

An ordinary DDP script: rank, world size and rendezvous come from the environment, as torchrun sets them. With
--backend inagg the switch sums the gradients; that needs `import inagg` and the backend's name, nothing else.

It writes these events if --events names a file:
- step: wall-clock time of zero_grad, forward, backward and optimizer step. Backward returns when all gradients are
  reduced.
- compute: time of the same pass over the same batch under no_sync(), so without communication, at every
  COMPUTE_EVERY-th step on all ranks. Its gradients are discarded, so the training is not affected.
Communication per step is the difference: what the all-reduce adds to a step, without what overlaps with backward.
"""

import argparse
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import inagg
from inagg_testbed.events import EventLog, sent_segments, transmitted_bytes
from inagg_testbed.weights import sha256

COMPUTE_EVERY = 10
TEST_SAMPLES = 540
LEARNING_RATE = 0.1
MOMENTUM = 0.9

Batch = tuple[torch.Tensor, torch.Tensor]


def make_model() -> nn.Module:
    """About one million parameters: two convolutions, two linear layers, for 8 x 8 images."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 960),
        nn.ReLU(),
        nn.Linear(960, 10),
    )


def load_data(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Training and test set, standardised with the training set's mean and deviation. Only the seed sets the split."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    images = (images - images[train].mean()) / images[train].std()
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def batches(
    dataset: TensorDataset, batch_size: int, seed: int, steps: int, *, rank: int, world: int
) -> Iterator[Batch]:
    """`steps` batches of this rank's share, epoch after epoch. A share smaller than a batch makes one batch.

    Raises ValueError if there are fewer samples than ranks.
    """
    if len(dataset) < world:
        raise ValueError(f"{len(dataset)} samples are too few for {world} ranks")
    sampler: DistributedSampler[Batch] = DistributedSampler(
        dataset, num_replicas=world, rank=rank, seed=seed, drop_last=True
    )
    loader = DataLoader(dataset, batch_size=min(batch_size, len(sampler)), sampler=sampler, drop_last=True)
    epoch = 0
    while steps > 0:
        sampler.set_epoch(epoch)
        for images, labels in loader:
            if steps == 0:
                return
            yield images, labels
            steps -= 1
        epoch += 1


def accuracy(model: nn.Module, dataset: TensorDataset) -> float:
    """Fraction of the data set that the model classifies correctly."""
    images, labels = dataset.tensors
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).double().mean())


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over the bytes of all parameters and buffers, in state_dict order."""
    return sha256(model.state_dict().values())


def train(model: DistributedDataParallel, data: Iterator[Batch], steps: int, log: EventLog) -> None:
    """The training loop."""
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    for step, (images, labels) in enumerate(data):
        if step % COMPUTE_EVERY == 0:
            began = time.perf_counter()
            with model.no_sync():
                criterion(model(images), labels).backward()
            log.write("compute", step=step, seconds=time.perf_counter() - began)
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        reduced = time.perf_counter()
        optimizer.step()
        ended = time.perf_counter()
        schedule.step()
        log.write(
            "step",
            step=step,
            seconds=ended - began,
            update_seconds=ended - reduced,
            loss=float(loss.detach()),
        )


def retransmits(backend: str) -> int:
    """Retransmissions so far of the backend that carries the gradients: contributions, or TCP segments for gloo."""
    return int(inagg.stats()["retransmits"]) if backend == "inagg" else sent_segments()[1]


def sent_bytes() -> int:
    """Bytes sent over all links of this host; 0 outside a testbed. In a tree gloo has a link of its own."""
    with contextlib.suppress(KeyError):
        return transmitted_bytes(os.environ["GLOO_SOCKET_IFNAME"].rpartition("-")[0])
    return 0


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=["gloo", "inagg"], required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--events", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(arguments.seed)
    log = EventLog(arguments.events)

    dist.init_process_group(arguments.backend)
    model = DistributedDataParallel(make_model())
    training, test = load_data(arguments.seed)
    share = {"rank": dist.get_rank(), "world": dist.get_world_size()}
    data = batches(training, arguments.batch_size, arguments.seed, arguments.steps, **share)
    dist.barrier()
    log.write("start", elements=sum(parameter.numel() for parameter in model.parameters()))
    sent, resent = sent_bytes(), retransmits(arguments.backend)
    train(model, data, arguments.steps, log)
    sent, resent = sent_bytes() - sent, retransmits(arguments.backend) - resent
    log.write(
        "end",
        accuracy=accuracy(model.module, test),
        weights_sha256=weights_sha256(model.module),
        bytes_sent=sent,
        retransmits=resent,
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
