# SPDX-License-Identifier: Apache-2.0
"""A small GPT learns the Python language reference, byte by byte, from the text that `help()` shows.

inagg run --workers 4 examples/gpt.py
torchrun --nproc-per-node 2 examples/gpt.py --backend gloo
"""

import argparse
import time
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

CONTEXT = 64  # bytes
BATCH = 8
WIDTH = 128
HEADS = 4
LAYERS = 4
HELD_OUT = 20_000  # bytes at the end of the text, for validation
VALIDATION_BATCHES = 8


def load_text() -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes to learn from and those held out, int64."""
    text = torch.tensor(list("\n".join(topics.values()).encode()))
    return text[:-HELD_OUT], text[-HELD_OUT:]


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each with a residual connection and a norm in front."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, time, WIDTH)."""
        batch, length, _ = x.shape
        heads = self.queries_keys_values(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.feed_forward(self.norm2(x))


class GPT(nn.Module):
    """Logits of the next byte at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """text: (batch, time) of int64, time at most CONTEXT; returns (batch, time, 256)."""
        x = self.bytes(text) + self.positions(torch.arange(text.shape[1]))
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def pieces_of(text: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Random pieces of the text, (BATCH, CONTEXT + 1)."""
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=draw)
    return torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])


def loss_of(model: nn.Module, text: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Cross entropy, in nats a byte, of one batch of random pieces of the text."""
    pieces = pieces_of(text, draw)
    return F.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


def validation_loss(model: nn.Module, text: torch.Tensor) -> float:
    """The mean loss over a fixed set of batches."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        return torch.stack([loss_of(model, text, draw) for _ in range(VALIDATION_BATCHES)]).mean().item()


def sample(model: nn.Module, prompt: bytes, length: int) -> str:
    """The prompt, continued by `length` bytes that the model draws."""
    draw = torch.Generator().manual_seed(0)
    text = torch.tensor(list(prompt)).unsqueeze(0)
    with torch.no_grad():
        for _ in range(length):
            chances = model(text[:, -CONTEXT:])[:, -1].softmax(dim=1)
            text = torch.cat([text, torch.multinomial(chances, 1, generator=draw)], dim=1)
    return bytes(text[0].tolist()).decode(errors="replace")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="inagg")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    rank = dist.get_rank()
    torch.manual_seed(0)
    training, held_out = load_text()
    draw = torch.Generator().manual_seed(1 + rank)

    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    began = time.perf_counter()
    for step in range(arguments.steps):
        optimizer.zero_grad()
        loss_of(model, training, draw).backward()
        optimizer.step()
        if rank == 0 and (step + 1) % 20 == 0:
            pace = (time.perf_counter() - began) / (step + 1)
            loss = validation_loss(model.module, held_out)
            print(
                f"step {step + 1}: {loss:.3f} nats a byte on held-out text, {pace * 1e3:.0f} ms a step",
                flush=True,
            )
    if rank == 0:
        print(sample(model.module, b"The statement", 200))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
