# SPDX-License-Identifier: Apache-2.0
"""The libraries, with the versions that were tried, and the programs that use them."""

from dataclasses import dataclass

# Sums of float32 in other orders; Adam's first steps magnify differences of small gradients.
_FLOAT32_ERROR = 2e-5
# Gradients below 1 in magnitude, rounded to 8 significant bits in five steps of 0.05.
_BFLOAT16_ERROR = 1e-3


@dataclass(frozen=True)
class Trainer:
    """A program that trains.

    name: on the command line of ``make trainers``. library: for the report. requirements: what pip installs; empty:
        the project's environment has it. program: in `programs/`. arguments: of the program.
    named: whether the user can write ``"inagg"`` in the program.
    launched: whether torchrun starts the ranks; else the program starts them.
    complete: the requirements include those of the library, so pip looks for no others.
    needs_cuda: paths in site-packages that need CUDA's libraries, and that the library does without. They are removed.
    """

    name: str
    library: str
    requirements: tuple[str, ...]
    program: str
    arguments: tuple[str, ...] = ()
    named: bool = True
    launched: bool = True
    complete: bool = False
    needs_cuda: tuple[str, ...] = ()
    error: float = _FLOAT32_ERROR


_TEXTS = ("datasets==5.2.0",)
_TORCHREC = (
    "torchrec==1.8.0",
    "fbgemm-gpu-cpu==1.8.0",
    "tensordict==0.15.3",
    "pyre-extensions==0.0.32",
    "pyvers==0.2.3",
    "typing-inspect==0.9.0",
)
_DEEPSPEED = ("deepspeed==0.19.8", "ninja==1.13.2", "setuptools==84.2.1")

TRAINERS = (
    Trainer("ddp", "torch: DDP and a checkpoint by its own process", (), "ddp.py"),
    Trainer("fsdp2", "torch: FSDP2 in bfloat16", (), "fsdp2_bfloat16.py", error=_BFLOAT16_ERROR),
    # Ignite knows no other name than those of torch's backends.
    Trainer("ignite", "Ignite", ("pytorch-ignite==0.5.5",), "ignite_auto_model.py", named=False),
    Trainer("lightning", "Lightning, with validation", (), "lightning_validation.py"),
    Trainer("fabric", "Lightning Fabric", (), "lightning_fabric.py"),
    Trainer("trainer", "Hugging Face Trainer", (), "hf_trainer.py"),
    Trainer("trl", "TRL and PEFT", ("trl==1.16.0", "peft==0.21.2", *_TEXTS), "trl_lora.py", named=False),
    Trainer(
        "sentences",
        "sentence-transformers",
        ("sentence-transformers==6.2.0", *_TEXTS),
        "sentence_embeddings.py",
        named=False,
    ),
    Trainer("pyg", "PyTorch Geometric", ("torch_geometric==2.8.1",), "geometric.py"),
    Trainer("megatron", "Megatron-core, TP 2", ("megatron-core==0.16.1",), "megatron_tensor_parallel.py"),
    Trainer("ray", "Ray Train", ("ray[train]==2.60.0",), "ray_train.py", launched=False),
    *(
        Trainer(f"zero{stage}", f"DeepSpeed, ZeRO {stage}", _DEEPSPEED, "deepspeed_zero.py", (str(stage),))
        for stage in (1, 2, 3)
    ),
    # torchrec requires fbgemm-gpu, which needs CUDA's libraries. fbgemm-gpu-cpu brings the same module.
    Trainer("torchrec", "torchrec", _TORCHREC, "torchrec_embeddings.py", complete=True),
    # torchaudio does without its compiled functions, if they are not there.
    Trainer(
        "speechbrain",
        "SpeechBrain",
        ("speechbrain==1.1.2", "torchaudio==2.11.0"),
        "speech.py",
        named=False,
        needs_cuda=("torchaudio/lib",),
    ),
    Trainer("composer", "Composer", ("mosaicml",), "composer_fit.py", named=False),
)
