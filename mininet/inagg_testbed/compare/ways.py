# SPDX-License-Identifier: Apache-2.0
"""The architectures of `inagg compare --with`. Without torch, as the launcher is."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from inagg_baselines import catalog
from inagg_baselines.catalog import Architecture
from inagg_baselines.theory import Racks, Theory
from inagg_testbed.bench.plan import INAGG, INAGG_SERVER, INAGG_SHARED, SUMMING, BackendSpec
from inagg_testbed.bench.theory import racks_of, theory
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network.fabric import Fabric

_INAGG = (INAGG, INAGG_SHARED, INAGG_SERVER)
_FEEDBACK = "+ef"


@dataclass(frozen=True)
class Way:
    """How a training comes by the same weights at all ranks.

    text: as in `--with`. baseline: the architecture of inagg_baselines; None: inagg sums, as `backend` says. feedback:
    inagg's gradients have error feedback.
    """

    text: str
    baseline: Architecture | None = None
    backend: BackendSpec | None = None
    feedback: bool = False

    @classmethod
    def parse(cls, text: str) -> "Way":
        """Parse ring, server:ssp=3, inagg:32, inagg:16+ef and the like. Raises ConfigurationError."""
        if text.startswith(INAGG):
            bare = text.removesuffix(_FEEDBACK)
            try:
                backend = BackendSpec.parse(bare)
            except ValueError:
                backend = None
            if backend is None or backend.name not in _INAGG:
                raise ConfigurationError(
                    f"--with {text}: want {', '.join(_INAGG)}, with lanes of :32, :16 or :8, and {_FEEDBACK} for error "
                    "feedback, such as inagg:16+ef"
                )
            return cls(f"{backend}{_FEEDBACK * (bare != text)}", backend=backend, feedback=bare != text)
        try:
            architecture = catalog.parse(text)
            return cls(architecture.name, baseline=architecture)
        except ValueError as error:
            raise ConfigurationError(
                f"--with {error}; and {', '.join(_INAGG)} with :32, :16 or :8, and {_FEEDBACK} for error feedback"
            ) from None

    def __str__(self) -> str:
        return self.text

    @property
    def slug(self) -> str:
        """The name in file names."""
        return re.sub(r"[^a-z0-9]+", "-", self.text).strip("-")

    @property
    def exchanges_weights(self) -> bool:
        """Whether ranks exchange weights, and may then have different ones, rather than sum gradients."""
        return self.baseline is not None and self.baseline.kind == "weights"

    @property
    def period(self) -> int:
        """Steps after which ranks do the same again: local:H exchanges weights in one of H steps."""
        if self.baseline is None or self.baseline.family != catalog.LOCAL:
            return 1
        return self.baseline.number or 1

    @property
    def in_lockstep(self) -> bool:
        """Whether no rank is ever a step ahead of another."""
        ahead = (catalog.ASYNCHRONOUS, catalog.STALE, catalog.LEAVES)
        return self.baseline is None or self.baseline.family not in ahead

    @property
    def gloo_sums(self) -> bool:
        """Whether the ring of gloo does it, without anything of ours."""
        return self.text == catalog.RING

    def environment(self) -> Mapping[str, str]:
        """Variables for inagg's groups of the ranks."""
        if self.backend is None:
            return {}
        summing = SUMMING[self.backend.name].options
        return {
            "INAGG_LANE_BITS": str(32 if self.feedback else self.backend.lane_bits),
            **{f"INAGG_{name.upper()}": value for name, value in summing.items()},
        }

    def theory(self, workers: int, racks: Racks) -> tuple[Theory, float]:
        """The theory of a step, whose S has elements of so many bytes."""
        if self.baseline is not None:
            return self.baseline.theory(workers, racks_of(workers, racks)), 4
        assert self.backend is not None
        return theory(self.backend, workers, racks), (self.backend.lane_bits or 32) / 8

    def check(self, fabric: Fabric) -> None:
        """Raise ConfigurationError if it makes no sense on this fabric."""
        if self.text in (catalog.HIERARCHICAL, catalog.LEAVES) and fabric.is_star:
            raise ConfigurationError(
                f"--with {self.text}: a star has one rack, in which it would be reduce and broadcast. Give a tree, such"
                " as --topology tree:2x4"
            )
