# SPDX-License-Identifier: Apache-2.0
"""The architectures by name. Without torch, which takes seconds to import."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from inagg_baselines import theory
from inagg_baselines.theory import Racks, Theory

Kind = Literal["sums", "weights"]

RING, HIERARCHICAL, SYNCHRONOUS = "ring", "hierarchical", "server:sync"
ASYNCHRONOUS, STALE, LOCAL = "server:async", "server:ssp", "local"
LEAVES, GOSSIP, RANDOM_GOSSIP = "server:leaves", "gossip", "gossip:random"


@dataclass(frozen=True)
class _Form:
    """A way to write architectures.

    family, kind, about: as below. theory: of the number, the ranks, and the ranks by rack. least: the least number.
    shards: whether the number is that of shards, of which each needs a rank.
    """

    family: str
    kind: Kind
    about: str
    theory: Callable[[int, int, Racks], Theory]
    least: int = 1
    shards: bool = False


@dataclass(frozen=True)
class Architecture:
    """How ranks train together.

    name: as `parse` reads it. family: the name without its number. number: of shards, of steps ahead or between two
    means; None without one. kind: whether the ranks exchange gradients, and sum them (collectives), or weights
    (exchanges). about: for a list of choices.
    """

    name: str
    family: str
    number: int | None
    kind: Kind
    about: str
    _form: _Form = field(repr=False)

    def theory(self, ranks: int, racks: Racks = ()) -> Theory:
        """Of a training step. racks: the ranks by rack, without empty ones; by default all are in one.

        Raises ValueError if there are too few ranks.
        """
        self.check(ranks)
        return self._form.theory(self.number or 0, ranks, racks)

    def check(self, ranks: int) -> None:
        """Raise ValueError if there are too few ranks."""
        if self._form.shards and (self.number or 0) > ranks:
            raise ValueError(
                f"{self.name} needs a rank for each shard, and there are {ranks}: lower the number of shards"
            )


def _servers(family: str, kind: Kind, everywhere: str, server: str) -> dict[str, _Form]:
    """With a shard at each rank (about: everywhere), or at the first ranks."""
    return {
        family: _Form(family, kind, everywhere, lambda _, ranks, __: theory.server(ranks)),
        f"{family}=K": _Form(
            family,
            kind,
            f"{server} with shards at the first ranks; number of shards: K",
            lambda shards, ranks, _: theory.server(ranks, shards),
            shards=True,
        ),
    }


# A capital letter stands for a number.
_FORMS: Mapping[str, _Form] = {
    "ring": _Form(RING, "sums", "a ring over the ranks", lambda _, ranks, __: theory.ring(ranks)),
    "hierarchical": _Form(
        HIERARCHICAL,
        "sums",
        "reduce in each rack, all-reduce of the racks' first ranks, broadcast in each rack",
        lambda _, ranks, racks: theory.hierarchical(ranks, racks),
    ),
    **_servers(
        SYNCHRONOUS, "sums", "a parameter server of which each rank has a shard", "a parameter server"
    ),
    **_servers(
        ASYNCHRONOUS,
        "weights",
        "an asynchronous parameter server, where no rank waits for another; each rank has a shard",
        "an asynchronous parameter server",
    ),
    "server:ssp=B": _Form(
        STALE,
        "weights",
        "a stale-synchronous parameter server: a rank waits if it is more than B steps ahead of the slowest rank",
        lambda _, ranks, __: theory.server(ranks),
        least=0,
    ),
    "server:leaves": _Form(
        LEAVES,
        "weights",
        "a tree of servers: a leaf in each rack sums its rack's changes, and the leaves have an asynchronous server",
        lambda _, ranks, racks: theory.leaves(ranks, racks),
    ),
    "gossip": _Form(
        GOSSIP,
        "weights",
        "each rank takes the mean of its weights and those of its two neighbours in a ring",
        lambda _, ranks, __: theory.gossip(ranks, partners=2),
    ),
    "gossip:random": _Form(
        RANDOM_GOSSIP,
        "weights",
        "each rank takes the mean of its weights and those of another rank, drawn in each step",
        lambda _, ranks, __: theory.gossip(ranks, partners=1),
    ),
    "local:H": _Form(
        LOCAL,
        "weights",
        "local SGD: after H steps all ranks take the mean of their weights",
        lambda period, ranks, _: theory.local(ranks, period),
    ),
}

# Each way to write an architecture, and what it means; a capital letter stands for a number.
ARCHITECTURES: Mapping[str, str] = {name: form.about for name, form in _FORMS.items()}


def parse(text: str) -> Architecture:
    """An architecture by name, such as "ring" or "server:ssp=3". Raises ValueError, which lists the known ones."""
    for name, form in _FORMS.items():
        if text == name and not name[-1].isupper():
            return Architecture(text, form.family, None, form.kind, form.about, form)
        digits = text.removeprefix(name[:-1])
        if name[-1].isupper() and digits != text and digits.isascii() and digits.isdigit():
            number = int(digits)
            if number < form.least:
                raise ValueError(f"{text}: {name[-1]} is at least {form.least}")
            about = re.sub(rf"\b{name[-1]}\b", str(number), form.about)
            return Architecture(f"{name[:-1]}{number}", form.family, number, form.kind, about, form)
    known = "".join(f"\n  {name}: {about}" for name, about in ARCHITECTURES.items())
    raise ValueError(f"architecture {text!r} is unknown. Known are, with numbers for capital letters:{known}")


# As in `inagg bench allreduce --backend`.
BASELINES: Mapping[str, Architecture] = {
    "gloo": parse("ring"),
    "gloo-hierarchical": parse("hierarchical"),
    "gloo-server": parse("server:sync"),
    "gloo-server-1": parse("server:sync=1"),
}
