# SPDX-License-Identifier: Apache-2.0
"""What a comparison trains: a model of ours, or a program of the user's. Without torch, as the launcher is."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inagg_testbed.compare.mesh import Mesh
from inagg_testbed.compare.ways import Way
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network.fabric import Fabric


@dataclass(frozen=True)
class Quality:
    """How good a model is: an accuracy, from 0 to 1, or a loss."""

    name: Literal["accuracy", "loss"]

    @classmethod
    def of_model(cls, name: str) -> "Quality":
        """What a model of `MODELS` has."""
        return MODELS[name].quality

    def reached(self, value: float, target: float) -> bool:
        """Whether a value is as good as the target."""
        return value >= target if self.name == "accuracy" else value <= target


@dataclass(frozen=True)
class Model:
    """A model of ours. steps: by default. judge_every: its quality is measured after so many steps."""

    about: str
    quality: Quality
    steps: int
    judge_every: int


_ACCURACY, _LOSS = Quality("accuracy"), Quality("loss")
MODELS: Mapping[str, Model] = {
    "linear": Model("linear regression, 65 parameters", _LOSS, steps=100, judge_every=10),
    "digits-cnn": Model("the demo's convolutional net, 1 million parameters", _ACCURACY, 120, judge_every=5),
    "gpt": Model("a small GPT, 0.8 million parameters", _LOSS, steps=200, judge_every=20),
    "resnet18": Model("ResNet-18, 11 million parameters", _ACCURACY, steps=60, judge_every=5),
}


@dataclass(frozen=True)
class Until:
    """What a training has to reach. It ends then, if it is a model of ours."""

    quality: Quality
    value: float

    @classmethod
    def parse(cls, text: str, of: Quality | None) -> "Until":
        """From accuracy=0.98 or loss=1.5. of: what the model has; None: a program, whose loss is seen.

        Raises ConfigurationError.
        """
        name, _, number = text.partition("=")
        known = {"accuracy": _ACCURACY, "loss": _LOSS}
        try:
            found = cls(known[name], float(number))
        except (KeyError, ValueError):
            raise ConfigurationError(f"--until {text}: want accuracy=0.98, or loss=1.5") from None
        if found.quality != (of or _LOSS):
            raise ConfigurationError(
                f"--until {text}: this model has {'an accuracy' if of == _ACCURACY else 'a loss'}"
                if of is not None
                else f"--until {text}: of a program only the loss is seen, such as --until loss=1.5"
            )
        if not math.isfinite(found.value):
            raise ConfigurationError(f"--until {text}: want a number")
        if found.quality == _ACCURACY and not 0 < found.value <= 1:
            raise ConfigurationError(f"--until {text}: an accuracy is above 0, and at most 1")
        return found

    def __str__(self) -> str:
        return f"{self.quality.name}={self.value:g}"


@dataclass(frozen=True, kw_only=True)
class Compare:
    """A comparison. model: a name of `MODELS`, or None; then program is a script with its arguments. steps: of a
    model's training, at most."""

    model: str | None
    program: tuple[str, ...] = ()
    ways: tuple[Way, ...]
    fabric: Fabric
    topology: str
    link_name: str
    uplink_name: str | None = None
    mtu: int = 1500
    impair: tuple[str, ...] = ()
    steps: int | None = None
    repeats: int = 1
    seed: int = 1
    until: Until | None = None
    mesh: Mesh | None = None

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        if self.mesh is not None:
            self._check_mesh(self.mesh)
        if len({way.text for way in self.ways}) < len(self.ways):
            raise ConfigurationError("--with names an architecture twice")
        for way in self.ways:
            way.check(self.fabric)
            try:
                way.theory(self.fabric.size, self.racks)
            except ValueError as error:
                raise ConfigurationError(f"--with {error}") from None

    def _check_mesh(self, mesh: Mesh) -> None:
        if self.model != "gpt":
            raise ConfigurationError("--mesh is for --model gpt; a program makes a mesh itself")
        if mesh.ranks != self.fabric.size:
            raise ConfigurationError(
                f"--mesh {mesh} has {mesh.ranks} ranks, and there are {self.fabric.size} hosts"
            )
        for way in self.ways:
            if way.backend is None and not way.gloo_sums:
                raise ConfigurationError(
                    f"--with {way}: on a mesh only ring and inagg sum for each of its groups"
                )

    @property
    def racks(self) -> tuple[tuple[int, ...], ...]:
        """The ranks below each leaf."""
        return tuple(map(tuple, self.fabric.ranks_of_racks))

    @property
    def title(self) -> str:
        """What is trained."""
        if self.model is not None:
            return self.model if self.mesh is None else f"{self.model} on {self.mesh}"
        return " ".join((Path(self.program[0]).name, *self.program[1:]))

    def settings(self) -> dict[str, object]:
        """What makes results comparable: a folder has those of one such comparison."""
        return {
            "model": self.model,
            "program": list(self.program),
            "program_sha256": hashlib.sha256(Path(self.program[0]).read_bytes()).hexdigest()
            if self.program
            else None,
            "workers": self.fabric.size,
            "topology": self.topology,
            "rank_order": self.fabric.rank_order,
            "link": self.link_name,
            "uplink": None if self.fabric.is_star else self.uplink_name or self.link_name,
            "mtu": self.mtu,
            "impair": list(self.impair),
            "mesh": None if self.mesh is None else str(self.mesh),
            "steps": self.steps,
            "seed": self.seed,
            "until": None if self.until is None else str(self.until),
        }
