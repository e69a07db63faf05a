# SPDX-License-Identifier: Apache-2.0
"""Puts an exchange of weights into a program that trains."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from inagg_baselines.exchanges import Exchange


class Attachment:
    """An exchange that a program's optimizers call."""

    def __init__(self, exchange: Exchange, *optimizers: Optimizer) -> None:
        self._exchange = exchange
        self._hooks = [
            optimizer.register_step_post_hook(lambda *_: exchange.after_step()) for optimizer in optimizers
        ]

    def finish(self) -> None:
        """Give all ranks the same weights, bit for bit, and leave the optimizers. After the last step."""
        for hook in self._hooks:
            hook.remove()
        self._exchange.finish()


def attach(exchange: Exchange, model: nn.Module, *optimizers: Optimizer) -> Attachment:
    """Give all ranks the weights of rank 0, and exchange weights after each step of an optimizer.

    All ranks call this, before the first step. With several optimizers each step of each counts; a step may follow
    several backward passes. If the model is a DistributedDataParallel, it synchronises nothing from now on. Buffers,
    such as the statistics of batch normalisation, stay each rank's own.

    Args:
        exchange: of inagg_baselines.exchanges.
        model: its parameters that have requires_grad now are exchanged, and have to be float32.
        optimizers: all that change these parameters.
    """
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = False
        model.require_forward_param_sync = False  # else the next forward pass broadcasts the buffers
    exchange.start([parameter for parameter in model.parameters() if parameter.requires_grad])
    return Attachment(exchange, *optimizers)
