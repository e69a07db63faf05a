# SPDX-License-Identifier: Apache-2.0
"""The command `inagg compare`."""

from pathlib import Path
from typing import Annotated

import typer

from inagg_testbed.cli.live import LiveOption, shown_live
from inagg_testbed.cli.options import (
    ImpairOption,
    LinkOption,
    MtuOption,
    RankOrderOption,
    ThreadsOption,
    TopologyOption,
    UplinkOption,
    WorkersOption,
    chosen_fabric,
    console,
    errors_explained,
    opened_testbed,
)
from inagg_testbed.errors import ConfigurationError, LauncherError
from inagg_testbed.network.fabric import STAR
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.switch_options import SwitchOptions
from inagg_testbed.terminal import ProgressView, print_table

DEFAULT_WAYS = ("ring", "inagg:32", "inagg:16+ef")


def compare(
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL|SCRIPT",
            help="linear, digits-cnn, gpt or resnet18; or a training program, such as train.py, which needs no change.",
        ),
    ] = "digits-cnn",
    arguments: Annotated[list[str] | None, typer.Argument(help="Of the program.")] = None,
    ways: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="ARCHITECTURE",
            help="ring, hierarchical, server:sync, server:async, server:ssp=3, gossip, local:8, inagg:32, inagg:16+ef,"
            " inagg-shared:32, inagg-server:32 and the like; docs/compare.md has them all. The first is what the others"
            f" are compared with. May be given several times; by default {', '.join(DEFAULT_WAYS)}.",
        ),
    ] = None,
    workers: WorkersOption = None,
    topology: TopologyOption = STAR,
    link: LinkOption = "100mbit",
    uplink: UplinkOption = None,
    rank_order: RankOrderOption = "contiguous",
    mtu: MtuOption = 1500,
    steps: Annotated[
        int | None, typer.Option(min=2, help="Training steps of a model; by default what suits it.")
    ] = None,
    repeat: Annotated[
        int, typer.Option(min=1, help="Trainings of each; a model has another seed each time.")
    ] = 1,
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="dp=2,tp=2,pp=2",
            help="Of gpt: how many ranks are data, tensor and pipeline parallel. Each group of the mesh has a row.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="QUALITY=VALUE",
            help="What is timed: accuracy=0.98 or loss=1.5, whichever the model has. Its training ends then.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Of a model's weights and batches, in the first repeat; by default 1."),
    ] = None,
    results: Annotated[
        Path, typer.Option(help="Folder. A comparison that was interrupted goes on when it is there.")
    ] = Path("results/compare"),
    threads: ThreadsOption = None,
    impair: ImpairOption = None,
    live: LiveOption = False,
) -> None:
    """Train under several architectures on the same links.

    A model of ours has the same weights and batches each time. RESULTS gets compare.json and a page, report.html: the
    time of a step and what it consists of, bytes on links beside theory, memory, and the time to a target.

    Example: inagg compare --model digits-cnn --workers 4 --with ring --with inagg:32 --until accuracy=0.98

    Example: inagg compare --model train.py --with ring --with inagg:16 -- --epochs 1
    """
    with errors_explained():
        from inagg_testbed.bench.allreduce import gloo_path
        from inagg_testbed.compare import groups
        from inagg_testbed.compare.diagnosis import diagnoses
        from inagg_testbed.compare.figures import HEADER, group_table, table
        from inagg_testbed.compare.mesh import Mesh
        from inagg_testbed.compare.page import contents
        from inagg_testbed.compare.plan import MODELS, Compare, Until
        from inagg_testbed.compare.prediction import payoffs, predictions
        from inagg_testbed.compare.run import Folder, missing, run_compare
        from inagg_testbed.compare.ways import Way
        from inagg_testbed.report.page import write_report
        from inagg_testbed.report.record import Record

        on_mesh = None if mesh is None else Mesh.parse(mesh)
        if on_mesh is not None and workers is None and topology == STAR:
            workers = on_mesh.ranks
        fabric = chosen_fabric(topology, workers, rank_order, uplink)
        known = MODELS.get(model)
        program = () if known is not None else _program(model, arguments or [])
        if known is not None and arguments:
            raise ConfigurationError(f"--model {model} takes no arguments, and there is {arguments[0]!r}")
        if known is None and (steps is not None or seed is not None):
            raise ConfigurationError(
                "--steps and --seed are for models of ours: a program knows itself when it ends, and seeds itself"
            )
        what = Compare(
            model=None if known is None else model,
            program=program,
            ways=tuple(map(Way.parse, ways or DEFAULT_WAYS)),
            fabric=fabric,
            topology=topology,
            link_name=link,
            uplink_name=uplink,
            mtu=mtu,
            impair=tuple(impair or ()),
            steps=None if known is None else steps or known.steps,
            repeats=repeat,
            seed=1 if seed is None else seed,
            until=None if until is None else Until.parse(until, None if known is None else known.quality),
            mesh=on_mesh,
        )
        folder = Folder(results, what)
        left = missing(what, folder)
        total = len(what.ways) * what.repeats
        if len(left) < total:
            console.print(f"{total - len(left)} of {total} trainings are in {results} already")
        failure: LauncherError | None = None
        if left:
            with (
                ProgressView(console) as view,
                opened_testbed(
                    workers=None if topology != STAR else workers,
                    link=link,
                    mtu=mtu,
                    switch="model",
                    results=results / "logs",
                    p4=None,
                    switch_options=SwitchOptions(threads=threads, impair=what.impair),
                    topology=topology,
                    uplink=uplink,
                    rank_order=rank_order,
                    gloo_over=gloo_path(fabric, LinkSpec.parse(link, mtu=mtu)),
                    on_stage=view.stage,
                ) as testbed,
                shown_live(testbed, view, wanted=live),
            ):
                try:
                    run_compare(what, folder, testbed, view.update)
                except LauncherError as error:
                    failure = error
        figures = folder.write_all(what)
        if failure is not None and not figures.runs:
            raise failure
        report = write_report(
            results, Record("compare", figures.model_dump(mode="json")), {"compare": contents}
        )
        print_table(
            console, f"{what.title}: {fabric.size} workers, {topology}, {link}", HEADER, table(figures)
        )
        if rows := group_table(figures):
            print_table(console, "groups of the mesh", groups.HEADER, rows)
        for diagnosis in diagnoses(figures):
            console.print(f"{diagnosis}\n  {diagnosis.remedy}", highlight=False, soft_wrap=True)
        for text in (*predictions(figures), *payoffs(figures)):
            console.print(str(text), highlight=False, soft_wrap=True)
        console.print(f"report: {report.resolve()}", highlight=False, soft_wrap=True)
        if failure is not None:
            console.print(
                f"{len(figures.runs)} of {total} trainings have ended, and are kept: the same command goes on, also"
                " without the architecture that failed",
                highlight=False,
                soft_wrap=True,
            )
            raise failure


def _program(script: str, arguments: list[str]) -> tuple[str, ...]:
    """The program's command line. Raises ConfigurationError."""
    from inagg_testbed.compare.plan import MODELS

    path = Path(script)
    if not path.is_file():
        raise ConfigurationError(f"--model {script}: neither a file nor one of {', '.join(MODELS)}")
    return (str(path.resolve()), *arguments)
