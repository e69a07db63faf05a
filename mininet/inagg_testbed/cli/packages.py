# SPDX-License-Identifier: Apache-2.0
"""Finds installed Python packages whose version inagg, or a package it needs, does not allow.

pip installs them with a warning only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Versions that inagg works with although p4runtime-shell asks for an older one (inagg_p4runtime.messages).
_WORKS_FROM = {"protobuf": "3.20"}


@dataclass(frozen=True)
class BrokenRequirement:
    """A requirement, the installed version (None: not installed), and whether inagg works in spite of it."""

    package: str
    wanted: str
    installed: str | None
    works: bool

    def __str__(self) -> str:
        there = f"{self.installed} is installed" if self.installed else "it is not installed"
        end = "inagg works with it" if self.works else f'pip install "{self.wanted}"'
        return f"{self.package} asks for {self.wanted}: {there}; {end}"


def broken_requirements(package: str = "inagg", extra: str = "testbed") -> Iterator[BrokenRequirement]:
    """Broken requirements of an installed package and one of its extras, and of everything they need in turn."""
    waiting = [(distribution(package), each) for each in ("", extra)]
    seen = {(canonicalize_name(package), each) for each in ("", extra)}
    while waiting:
        owner, part = waiting.pop()
        for requirement in _requirements(owner, part):
            found = _installed(requirement.name)
            if found is None or not requirement.specifier.contains(found.version, prereleases=True):
                yield _broken(owner.metadata["Name"], requirement, found)
            name = canonicalize_name(requirement.name)
            for each in ("", *requirement.extras):
                if found is not None and (name, each) not in seen:
                    seen.add((name, each))
                    waiting.append((found, each))


def _requirements(owner: Distribution, extra: str) -> Iterator[Requirement]:
    """Requirements of a package without extras (""), or those that one of its extras adds."""
    for text in owner.requires or ():
        requirement = Requirement(text)
        without, wanted = (
            requirement.marker is None or requirement.marker.evaluate({"extra": each}) for each in ("", extra)
        )
        if wanted and not (extra and without):
            yield requirement


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _broken(owner: str, requirement: Requirement, found: Distribution | None) -> BrokenRequirement:
    wanted = f"{requirement.name}{requirement.specifier}"
    if found is None:
        return BrokenRequirement(owner, wanted, None, works=False)
    lowest = _WORKS_FROM.get(canonicalize_name(requirement.name))
    works = lowest is not None and Requirement(f"x>={lowest}").specifier.contains(found.version)
    return BrokenRequirement(owner, wanted, found.version, works=works)
