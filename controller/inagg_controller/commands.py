# SPDX-License-Identifier: Apache-2.0
"""The commands of inagg-controller that do not need a running one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from inagg_contract.documents import DEFAULT_JOB_CLASS
from inagg_controller.certificates import Issued, issue, left_over
from inagg_controller.configuration import parse_topology
from inagg_controller.errors import ConfigurationError, SwitchError
from inagg_controller.fabric.drawing import draw, listing
from inagg_controller.jobs.tenants import Tenant, digest_of
from inagg_controller.tokens import new_secret


@contextmanager
def errors() -> Iterator[None]:
    """End the command with one line for an error of the operator or of a switch."""
    try:
        yield
    except (ConfigurationError, SwitchError) as error:
        print(f"inagg-controller: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


def topology(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The topology file.")],
    svg: Annotated[
        Path | None, typer.Option(help="Draw the topology into this file, instead of listing it.")
    ] = None,
) -> None:
    """Check a topology file and show what it describes."""
    with errors():
        found = parse_topology(file)
        if svg is None:
            print(listing(found))
        else:
            try:
                svg.write_text(draw(found))
            except OSError as error:
                raise ConfigurationError(f"cannot write {svg}: {error.strerror}") from error


def certificates(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the authority.")],
    api: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="Name or address of the API's host. May be given several times."),
    ] = None,
    switch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=HOST",
            help="A switch, and the name or address in its P4Runtime address. May be given "
            "several times, also for one switch.",
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long the certificates are valid.")] = 365,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the authority. All parts must then get the new ca.pem.")
    ] = False,
) -> None:
    """Make or renew the certificates of HTTPS and P4Runtime.

    The first run makes the authority that signs them.

    Example: inagg-controller certificates pki --api 10.0.0.254 --switch leaf1=192.0.2.11
    """
    with errors():
        switches: dict[str, list[str]] = {}
        for text in switch or ():
            name, separator, host = text.partition("=")
            if not separator:
                raise ConfigurationError(f"--switch {text} is not of the form leaf1=192.0.2.11")
            switches.setdefault(name, []).append(host)
        issued = issue(
            folder, api=api or (), switches=switches, days=days, now=datetime.now(UTC), new_authority=force
        )
        for one in issued:
            purpose = f" for {', '.join(one.hosts)}" if one.hosts else ""
            print(f"{one.path}{purpose}, until {one.until:%Y-%m-%d}")
        for path in left_over(folder):
            print(
                f"{path}: no longer valid, because {folder}/ca.pem has not signed it; sign it again, or remove it"
            )
        for line in _destinations(issued):
            print(line)


def _destinations(issued: list[Issued]) -> list[str]:
    """Where the files belong: the folders of deploy/'s units, which give each unit its own files only."""
    names = [one.path.stem for one in issued if one.path.stem != "ca"]
    own = [name for name in names if not name.startswith("switch-")]
    places = {"the controller: /etc/inagg/controller": own} if own else {}
    places |= {
        f"{name.removeprefix('switch-')}: /etc/inagg/switch": [name] for name in names if name not in own
    }
    return [
        *(
            f"for {place}: ca.pem {' '.join(f'{name}.pem {name}.key' for name in those)}"
            for place, those in places.items()
        ),
        "for hosts, and servers of sums in /etc/inagg/server: ca.pem",
        "for you alone: ca.key",
    ]


def tenant(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the tenant.")],
    classes: Annotated[
        str,
        typer.Option(
            metavar="CLASS,...",
            help="Job classes that its jobs may be of. Those that name no class are of the first.",
        ),
    ] = DEFAULT_JOB_CLASS,
) -> None:
    """Make the token of a tenant.

    Prints the lines for the file of --tenants. The token itself is on stderr, and nowhere else.

    Example: inagg-controller tenant vision --classes batch,urgent >>tenants.toml
    """
    with errors():
        token, named = new_secret(), [each.strip() for each in classes.split(",")]
        try:
            made = Tenant.model_validate({"name": name, "token_sha256": digest_of(token), "classes": named})
        except ValidationError as error:
            first = error.errors(include_input=False)[0]
            raise ConfigurationError(f"tenant {name}: {first['loc'][0]}: {first['msg']}") from None
        listed = ", ".join(f'"{each}"' for each in made.classes)
        print(
            f'[[tenant]]\nname = "{made.name}"\ntoken_sha256 = "{made.token_sha256[0]}"\nclasses = [{listed}]\n'
        )
        print(
            f"The token of {name}, which is shown only now (INAGG_CONTROLLER_TOKEN):\n{token}",
            file=sys.stderr,
        )
