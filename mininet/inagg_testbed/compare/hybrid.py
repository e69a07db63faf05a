# SPDX-License-Identifier: Apache-2.0
"""The GPT of examples/gpt.py on a mesh of ranks: data, tensor and pipeline parallel at the same time.

Tensor parallel ranks have the heads of the attention and the hidden units of the feed-forward layer in equal parts, and
sum activations twice a block, in the forward and in the backward pass (Shoeybi et al.: Megatron-LM, 2019). Pipeline
parallel ranks have blocks in equal parts, and pass activations on by send and recv, for several parts of the batch in
turn (Huang et al.: GPipe, 2019), as torch.distributed.pipelining does it. Data parallel ranks sum gradients, with DDP.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from inagg_testbed.compare.mesh import Mesh
from inagg_testbed.compare.plan import Quality
from inagg_testbed.compare.probe import Probe
from inagg_testbed.events import EventLog
from inagg_testbed.example_programs import example

_MICROBATCHES = 4  # of a pipeline


class _Copy(torch.autograd.Function):
    """All ranks have the same input; its gradient is the sum of theirs."""

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor, group: Any) -> torch.Tensor:
        context.group = group
        return inputs.view_as(inputs)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=context.group)
        return total, None


class _Sum(torch.autograd.Function):
    """The sum of all ranks' inputs, which all ranks get."""

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor, group: Any) -> torch.Tensor:
        total = inputs.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def _copy(inputs: torch.Tensor, group: Any) -> torch.Tensor:
    copied: torch.Tensor = _Copy.apply(inputs, group)  # type: ignore[no-untyped-call]
    return copied


def _sum(inputs: torch.Tensor, group: Any) -> torch.Tensor:
    total: torch.Tensor = _Sum.apply(inputs, group)  # type: ignore[no-untyped-call]
    return total


def _part(tensor: torch.Tensor, dim: int, number: int, parts: int) -> nn.Parameter:
    return nn.Parameter(tensor.detach().chunk(parts, dim)[number].clone())


class TensorParallelBlock(nn.Module):
    """This rank's part of a block of examples/gpt.py. Norms and the last biases are whole at each rank."""

    def __init__(self, block: Any, heads: int, group: Any) -> None:
        """heads: of the whole block."""
        super().__init__()
        self._group, parts = group, dist.get_world_size(group)
        self._heads = heads // parts
        number = dist.get_rank(group)
        self.norm1, self.norm2 = block.norm1, block.norm2
        self.projection_bias: torch.Tensor = block.projection.bias
        width = block.projection.in_features
        three = block.queries_keys_values
        self.heads_weight = _part(three.weight.view(3, width, width), 1, number, parts)
        self.heads_bias = _part(three.bias.view(3, width), 1, number, parts)
        self.projection_weight = _part(block.projection.weight, 1, number, parts)
        first, _, last = block.feed_forward
        self.first_weight = _part(first.weight, 0, number, parts)
        self.first_bias = _part(first.bias, 0, number, parts)
        self.last_weight = _part(last.weight, 1, number, parts)
        self.last_bias = last.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, time, width), the same at all ranks."""
        batch, length, _ = x.shape
        inputs = _copy(self.norm1(x), self._group)
        heads = F.linear(inputs, self.heads_weight.flatten(0, 1), self.heads_bias.flatten())
        queries, keys, values = heads.view(batch, length, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        mixed = F.linear(mixed.transpose(1, 2).flatten(2), self.projection_weight)
        x = x + _sum(mixed, self._group) + self.projection_bias
        inputs = _copy(self.norm2(x), self._group)
        hidden = F.linear(F.gelu(F.linear(inputs, self.first_weight, self.first_bias)), self.last_weight)
        result: torch.Tensor = x + _sum(hidden, self._group) + self.last_bias
        return result


class Stage(nn.Module):
    """Consecutive blocks, with the embeddings in front of the first ones and the head behind the last ones."""

    def __init__(self, gpt: Any, blocks: Sequence[nn.Module], *, first: bool, last: bool) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList([gpt.bytes, gpt.positions] if first else [])
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(*([gpt.norm, gpt.head] if last else []))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: bytes of a text, (batch, time) of int64, or the stage's before, (batch, time, width)."""
        if len(self.embeddings) > 0:
            of_bytes, of_positions = self.embeddings
            x = of_bytes(x) + of_positions(torch.arange(x.shape[1]))
        result: torch.Tensor = self.head(self.blocks(x))
        return result


class Hybrid:
    """This rank's part of the model. groups: by dimension of the mesh, the data parallel one first."""

    def __init__(self, mesh: Mesh, names: Mapping[str, Any], seed: int) -> None:
        """All ranks call this. names: of examples/gpt.py."""
        ranks = init_device_mesh("cpu", mesh.shape, mesh_dim_names=mesh.names)
        self.groups = {name: ranks.get_group(name) for name in ("dp", "tp", "pp")}
        place = ranks.get_local_rank("pp")
        torch.manual_seed(seed)
        whole = names["GPT"]()
        size = len(whole.blocks) // mesh.pp
        blocks: list[nn.Module] = list(whole.blocks)[place * size : (place + 1) * size]
        if mesh.tp > 1:
            blocks = [TensorParallelBlock(block, names["HEADS"], self.groups["tp"]) for block in blocks]
        self.is_first, self.is_last = place == 0, place == mesh.pp - 1
        stage = Stage(whole, blocks, first=self.is_first, last=self.is_last)
        # Else DDP rebuilds its buckets after the first pass, and counts each part of the batch as a pass.
        own: dict[str, Any] = {"process_group": self.groups["dp"], "find_unused_parameters": mesh.pp > 1}
        self.model = DistributedDataParallel(stage, **own)
        pipeline = PipelineStage(self.model, place, mesh.pp, torch.device("cpu"), group=self.groups["pp"])
        self._schedule = ScheduleGPipe(pipeline, _MICROBATCHES if mesh.pp > 1 else 1, _loss)
        # The batches are those of data parallel ranks in `inagg compare --model gpt`.
        self._draw = torch.Generator().manual_seed(1000 * seed + ranks.get_local_rank("dp") + 1)
        self._pieces = names["pieces_of"]

    def backward(self, text: torch.Tensor) -> torch.Tensor | None:
        """The loss of a batch of the text, and its gradients. None at ranks that have not the last stage."""
        return self._run(self._schedule.step, text, self._draw)

    @torch.no_grad()
    def loss(self, text: torch.Tensor, batches: int) -> float:
        """The mean over a fixed set of batches, at all ranks. All ranks call this."""
        draw = torch.Generator().manual_seed(0)
        found = [self._run(self._schedule.eval, text, draw) for _ in range(batches)]
        mean = (
            torch.stack([each for each in found if each is not None]).mean()
            if self.is_last
            else torch.empty(())
        )
        dist.broadcast(mean, dist.get_world_size() - 1)  # which has the last stage
        return float(mean)

    def _run(self, run: Any, text: torch.Tensor, draw: torch.Generator) -> torch.Tensor | None:
        pieces = self._pieces(text, draw)
        losses: list[torch.Tensor] = []
        inputs = (pieces[:, :-1],) if self.is_first else ()
        targets = {"target": pieces[:, 1:], "losses": losses} if self.is_last else {}
        run(*inputs, return_outputs=False, **targets)
        return torch.stack(losses).mean().detach() if losses else None


def _loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(arguments: argparse.Namespace, probe: Probe, log: EventLog) -> None:
    """Train to the end, as `models.train`. arguments: of `rank`."""
    dist.init_process_group("gloo")
    names = example("gpt")
    training, held_out = names["load_text"]()
    hybrid = Hybrid(arguments.mesh, names, arguments.seed)
    probe.name_groups(hybrid.groups)
    optimizer = torch.optim.AdamW(hybrid.model.parameters(), lr=1e-3)
    quality = Quality.of_model("gpt")

    def value() -> float:
        return hybrid.loss(held_out, names["VALIDATION_BATCHES"])

    for step in range(1, arguments.steps + 1):
        optimizer.zero_grad()
        probe.note_loss(hybrid.backward(training))
        optimizer.step()
        if step % arguments.judge_every == 0:
            with probe.paused():
                found = value()
                if dist.get_rank() == 0:
                    log.write("judged", steps=step, value=found)
                if arguments.target is not None and quality.reached(found, arguments.target):
                    break
    probe.finish()
    log.write("quality", value=value())
    dist.barrier()
