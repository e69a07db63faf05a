# SPDX-License-Identifier: Apache-2.0
"""One rank of test_step_figures.py: sums in each step, and reports the figures of each.

Arguments: the file for events, the number of steps, elements of a sum, and what to do: "loop", "lightning" or
"trainer", which run the callbacks of docs/performance.md.
"""

import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import inagg
from inagg_testbed.events import EventLog

DOCS = Path(__file__).parents[3] / "docs/performance.md"
LOG = EventLog(Path(sys.argv[1]))
STEPS, ELEMENTS = int(sys.argv[2]), int(sys.argv[3])


def documented(name: str, **names: Any) -> Any:
    """The class of this name in the document."""
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (source,) = (block for block in blocks if f"class {name}(" in block)
    scope = {"inagg": inagg, **names}
    exec(source, scope)
    return scope[name]


def loop() -> None:
    figures = inagg.StepFigures()
    began = time.monotonic()
    for step in range(STEPS):
        for _ in range(step):
            dist.all_reduce(torch.ones(ELEMENTS))
        dist.broadcast(torch.ones(3), 0)
        called = time.monotonic()
        found = figures.step()
        LOG.write("step", figures=found, call_s=time.monotonic() - called, so_far_s=time.monotonic() - began)


def lightning() -> None:
    import lightning
    from lightning.pytorch.loggers import Logger
    from lightning.pytorch.strategies import DDPStrategy
    from torch.utils.data import DataLoader, TensorDataset

    class Kept(Logger):
        name, version = "kept", 0

        def log_hyperparams(self, *_: Any, **__: Any) -> None: ...

        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            LOG.write("step", figures={key: value for key, value in metrics.items() if "/" in key})

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
            loss: torch.Tensor = self.layer(batch[0]).sum()
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=dist.get_world_size(),
        strategy=DDPStrategy(process_group_backend="inagg"),
        max_epochs=1,
        logger=Kept(),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_checkpointing=False,
        callbacks=[documented("InaggFigures", lightning=lightning)()],
    )
    samples = TensorDataset(torch.ones(STEPS * dist.get_world_size(), 4))
    trainer.fit(Module(), DataLoader(samples, batch_size=1))


def trainer() -> None:
    import transformers

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.layer(inputs).sum()}

    class Kept(transformers.TrainerCallback):
        def on_log(self, *_: Any, **named: Any) -> None:
            logs: dict[str, float] = named["logs"]
            LOG.write("step", figures={key: value for key, value in logs.items() if "/" in key})

    with tempfile.TemporaryDirectory() as folder:
        documented("InaggTrainer", transformers=transformers)(
            model=Model(),
            args=transformers.TrainingArguments(
                output_dir=folder,
                use_cpu=True,
                per_device_train_batch_size=1,
                max_steps=STEPS,
                logging_steps=1,
                disable_tqdm=True,
                report_to=[],
                save_strategy="no",
            ),
            train_dataset=[{"inputs": torch.ones(4)}] * (STEPS * dist.get_world_size()),
            callbacks=[Kept()],
        ).train()


if __name__ == "__main__":
    dist.init_process_group("inagg")
    {"loop": loop, "lightning": lightning, "trainer": trainer}[sys.argv[4]]()
    dist.destroy_process_group()
