# SPDX-License-Identifier: Apache-2.0
"""The commands below `inagg bench`."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from inagg_baselines.catalog import BASELINES
from inagg_testbed.bench.element_types import ELEMENT_TYPES, ElementName
from inagg_testbed.bench.plan import MAX_LOSS, BackendSpec, Case
from inagg_testbed.cli import jobs
from inagg_testbed.cli.options import (
    ImpairOption,
    LinkOption,
    MtuOption,
    P4Option,
    RankOrderOption,
    ResultsOption,
    SlotsOption,
    SummingSwitchOption,
    SwitchOption,
    ThreadsOption,
    TopologyOption,
    UplinkOption,
    WorkersOption,
    chosen_fabric,
    console,
    errors_explained,
    opened_testbed,
)
from inagg_testbed.cli.outputs import JsonOption, Outputs, PlotOption
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.files import check_writable, make_folder
from inagg_testbed.network.fabric import MAX_HOSTS, STAR
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.switch_options import SwitchOptions
from inagg_testbed.terminal import ProgressView, print_table

if TYPE_CHECKING:
    from inagg_testbed.bench.allreduce import AllReduceBench

app = typer.Typer(no_args_is_help=True, help="Measure collectives.")
app.add_typer(jobs.app)

WorkerCountsOption = Annotated[
    list[int] | None,
    typer.Option(
        "--workers",
        min=1,
        max=MAX_HOSTS,
        help="May be given several times; by default 4 in a star. Other topologies say it themselves.",
    ),
]
SizesOption = Annotated[
    list[int], typer.Option("--elements", min=1, help="float32 elements; may be given several times.")
]
BackendsOption = Annotated[
    list[str],
    typer.Option(
        "--backend",
        help=f"{', '.join(f'{name} ({one.about})' for name, one in BASELINES.items())};"
        " inagg:32, inagg:16 or inagg:8, which the switch sums; inagg-shared:32, ..., which it sums in slots that jobs"
        " share, before servers in the ranks' processes; inagg-server:32, ..., which such servers sum alone;"
        " inagg-shared-1:32 and inagg-server-1:32, ..., the same with one server on a further host."
        " May be given several times.",
    ),
]
BackToBackOption = Annotated[
    int,
    typer.Option(min=1, help="All-reduces in an iteration; its time is the mean of them. For small tensors."),
]
DtypeOption = Annotated[
    ElementName,
    typer.Option(help="Type of the elements. Of 16-bit floats, inagg without bits uses 16-bit lanes."),
]
LossesOption = Annotated[
    list[float] | None,
    typer.Option(
        "--loss",
        min=0,
        max=MAX_LOSS,
        help="Loss probability of aggregation packets on each link, in each direction. May be given several"
        " times; if 0 is among them, the others are compared with it.",
    ),
]
GlooPathOption = Annotated[
    Literal["switch", "bridge"] | None,
    typer.Option(
        help="What gloo's packets cross: by default the switch where that hardly slows gloo (the model in a star, links"
        " of up to 1 Gbit/s), else a bridge for each switch, with links of the same rates."
    ),
]


T = TypeVar("T")


def _backends(texts: Iterable[str], dtype: ElementName = "float32") -> tuple[str, ...]:
    """The backends by the names that cases use. dtype: what they sum. Raises ConfigurationError."""
    try:
        return tuple(str(BackendSpec.parse(text, ELEMENT_TYPES[dtype].lane_bits)) for text in texts)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


@app.command()
def allreduce(
    elements: SizesOption,
    backend: BackendsOption,
    workers: WorkerCountsOption = None,
    topology: TopologyOption = STAR,
    link: LinkOption = "100mbit",
    uplink: UplinkOption = None,
    rank_order: RankOrderOption = "contiguous",
    mtu: MtuOption = 1500,
    dtype: DtypeOption = "float32",
    iters: Annotated[int, typer.Option(min=1, help="Timed iterations of each backend.")] = 10,
    warmup: Annotated[int, typer.Option(min=0)] = 2,
    back_to_back: BackToBackOption = 1,
    json_path: JsonOption = None,
    plot: PlotOption = None,
    slots: SlotsOption = None,
    loss: LossesOption = None,
    switch: SwitchOption = "model",
    gloo_over: GlooPathOption = None,
    results: ResultsOption = Path("results"),
    p4: P4Option = None,
    threads: ThreadsOption = None,
    impair: ImpairOption = None,
) -> None:
    """Time all-reduce on several backends in turn; check each sum.

    algbw and busbw are defined as in nccl-tests, in MB/s. "line rate" is the payload bits that the algorithm must send
    over its busiest link (elements times lane bits for inagg; 2(N-1)/N times the tensor's bits for gloo's ring),
    divided by link rate times time. "vs gloo" is the median of the per-round ratios of gloo's time to the backend's.
    "CPU s/GB" is the CPU time of workers, switches, servers and kernel for each GB of tensor. A second table has the
    bytes on the busiest link of a host beside theory. Over --switch bridge, gloo and servers can be measured. Exit
    status 1 if a sum is wrong.

    Example: inagg bench allreduce --workers 4 --elements 1000000 --backend gloo --backend inagg:16

    Example: inagg bench allreduce --topology tree:2x4 --elements 1000000 --backend gloo-hierarchical --backend inagg

    Example: inagg bench allreduce --switch bridge --elements 1000000 --backend gloo --backend inagg-server:16
    """
    with errors_explained():
        from inagg_testbed.bench.allreduce import AllReduceBench

        specs = _backends(backend, dtype)
        default = chosen_fabric(topology, None, rank_order, uplink).size
        counts = workers or [default]
        cases = tuple(
            Case(
                workers=count,
                elements=size,
                backends=specs,
                iterations=iters,
                warmup=warmup,
                back_to_back=back_to_back,
                losses=tuple(loss or (0.0,)),
                dtype=dtype,
            )
            for count in counts
            for size in elements
        )
        bench = AllReduceBench(
            link_name=link,
            link=LinkSpec.parse(link, mtu=mtu),
            topology=topology,
            uplink_name=uplink,
            rank_order=rank_order,
            cases=cases,
            slots=slots,
            switch=switch,
            program=p4,
            threads=threads,
            impair=tuple(impair or ()),
            gloo_over=gloo_over,
        )
        _run_allreduce(bench, results, Outputs(json_path, plot))


def _run_allreduce(bench: "AllReduceBench", results: Path, outputs: Outputs) -> None:
    """Measure, print the table and write the files. Raises LauncherError; typer.Exit(1) if a sum is wrong."""
    from inagg_testbed.bench.allreduce import run_bench, title
    from inagg_testbed.bench.rows import LINKS_TITLE, links_table, table

    with ProgressView(console) as view:
        outcome = run_bench(
            bench,
            results,
            on_stage=view.stage,
            on_progress=lambda done, total: view.update("all-reduce", done, total),
        )
    print_table(console, title(bench), *table(outcome.rows))
    print_table(console, f"\nbytes {LINKS_TITLE}", *links_table(outcome.rows))
    from inagg_testbed.bench.plots import plot_allreduce

    outputs.write(
        {"settings": outcome.settings, "rows": outcome.rows}, lambda path: plot_allreduce(outcome.rows, path)
    )
    console.print(f"report: {outcome.write_page().resolve()}", highlight=False, soft_wrap=True)
    _exit_if_wrong(outcome.wrong)


def _exit_if_wrong(wrong: Iterable[str]) -> None:
    """Print each wrong sum; raise typer.Exit(1) if there is one."""
    lines = list(wrong)
    for line in lines:
        console.print(f"[red]wrong sum[/red] {line}", highlight=False, soft_wrap=True)
    if lines:
        raise typer.Exit(1)


@app.command()
def straggler(
    workers: WorkersOption = None,
    topology: TopologyOption = STAR,
    uplink: UplinkOption = None,
    rank_order: RankOrderOption = "contiguous",
    elements: Annotated[int, typer.Option(min=1, help="float32 elements.")] = 1_000_000,
    sleep: Annotated[float, typer.Option(help="Seconds by which the last rank is late.")] = 5.0,
    lane_bits: Annotated[int, typer.Option(help="32, 16 or 8.")] = 32,
    link: LinkOption = "100mbit",
    mtu: MtuOption = 1500,
    json_path: JsonOption = None,
    plot: PlotOption = None,
    slots: SlotsOption = None,
    switch: SummingSwitchOption = "model",
    results: ResultsOption = Path("results"),
    p4: P4Option = None,
    threads: ThreadsOption = None,
) -> None:
    """Show what ranks send while one is late for an all-reduce.

    Example: inagg bench straggler --sleep 2
    """
    with errors_explained():
        from inagg_testbed.bench.straggler import StragglerBench, run_straggler, table, title

        bench = StragglerBench(
            workers=chosen_fabric(topology, workers, rank_order, uplink).size,
            elements=elements,
            sleep_s=sleep,
            lane_bits=lane_bits,
            slots=slots,
        )
        outputs = Outputs(json_path, plot)
        with opened_testbed(
            workers=workers,
            link=link,
            mtu=mtu,
            switch=switch,
            results=results,
            p4=p4,
            switch_options=SwitchOptions(threads=threads),
            topology=topology,
            uplink=uplink,
            rank_order=rank_order,
        ) as testbed:
            figures = run_straggler(bench, testbed)
        print_table(console, title(figures), *table(figures))
        from inagg_testbed.bench.plots import plot_straggler

        outputs.write(figures, lambda path: plot_straggler(figures, path))


@app.command()
def late(
    workers: Annotated[int, typer.Option(min=2, max=MAX_HOSTS)] = 8,
    steps: Annotated[int, typer.Option(min=10, help="Training steps of each run.")] = 150,
    step_ms: Annotated[float, typer.Option(min=1, help="Milliseconds of a pass.")] = 200,
    stall_steps: Annotated[int, typer.Option(min=1, help="Length of a stall, in steps.")] = 10,
    every: Annotated[int, typer.Option(min=1, help="The last rank stalls in one of so many passes.")] = 10,
    accuracy: Annotated[float, typer.Option(min=0, max=1, help="On the test digits, to reach.")] = 0.93,
    rounds: Annotated[int, typer.Option(min=1, help="Each trains both ways, with other batches.")] = 3,
    link: LinkOption = "unshaped",
    mtu: MtuOption = 1500,
    json_path: JsonOption = None,
    plot: PlotOption = None,
    switch: SummingSwitchOption = "model",
    results: ResultsOption = Path("results"),
    p4: P4Option = None,
    threads: ThreadsOption = None,
) -> None:
    """Time a training in which one rank stalls at random.

    Each round trains without a hook, which waits for the rank, and with inagg.hooks.Deadline.

    Example: inagg bench late --workers 4 --rounds 1
    """
    with errors_explained():
        from inagg_testbed.bench.late import LateBench, plot_late, run_late, table, title
        from inagg_testbed.bench.settings import settings_of

        bench = LateBench(
            workers=workers,
            steps=steps,
            step_s=step_ms / 1e3,
            stall_steps=stall_steps,
            every=every,
            accuracy=accuracy,
            rounds=rounds,
        )
        outputs = Outputs(json_path, plot)
        with (
            ProgressView(console) as view,
            opened_testbed(
                workers=workers,
                link=link,
                mtu=mtu,
                switch=switch,
                results=results,
                p4=p4,
                switch_options=SwitchOptions(threads=threads),
                on_stage=view.stage,
            ) as testbed,
        ):
            figures = {"settings": settings_of(testbed), **run_late(bench, testbed, view.update)}
        print_table(console, title(figures), *table(figures))
        outputs.write(figures, lambda path: plot_late(figures, path))


@app.command()
def device(
    on: Annotated[
        Literal["cuda", "cpu"], typer.Option(help="cpu: CPU tensors in place of a GPU's.")
    ] = "cuda",
    workers: Annotated[int, typer.Option(min=1, max=64)] = 2,
    gpu_ranks: Annotated[
        int, typer.Option(min=1, help="Ranks with tensors on the GPU, which they share.")
    ] = 1,
    elements: SizesOption = [1_000, 100_000, 10_000_000],  # noqa: B006
    iters: Annotated[int, typer.Option(min=1, help="Iterations.")] = 10,
    steps: Annotated[
        bool, typer.Option("--steps", help="Steps of training too; all ranks have to be on the GPU.")
    ] = False,
    timeline: Annotated[
        Path | None, typer.Option(help="File for a trace of one sum, which Perfetto opens.")
    ] = None,
    json_path: JsonOption = None,
    plot: PlotOption = None,
    link: LinkOption = "unshaped",
    mtu: MtuOption = 1500,
    switch: SummingSwitchOption = "model",
    results: ResultsOption = Path("results"),
    p4: P4Option = None,
    threads: ThreadsOption = None,
) -> None:
    """Measure sums of tensors on a GPU, and its part in them.

    Without a GPU it says so and ends.

    Example: inagg bench device --on cpu --elements 100000
    """
    with errors_explained():
        from inagg_testbed.bench.device import (
            SEED,
            DeviceBench,
            measure_stages,
            measure_sums,
            missing,
            other_table,
            stage_table,
            sum_table,
        )
        from inagg_testbed.bench.plots import plot_device
        from inagg_testbed.bench.settings import settings_of

        reason = missing(on)
        if reason is not None:
            console.print(reason)
            return
        bench = DeviceBench(on, workers, gpu_ranks, tuple(elements), iters, steps)
        outputs = Outputs(json_path, plot)
        if timeline is not None:
            check_writable(timeline)
        stages = measure_stages(on, workers)
        print_table(console, f"normal floats that {on} reads", *stage_table(stages))
        with opened_testbed(
            workers=workers,
            link=link,
            mtu=mtu,
            switch=switch,
            results=results,
            p4=p4,
            switch_options=SwitchOptions(threads=threads),
            gloo_over="bridge",
        ) as testbed:
            rows = measure_sums(bench, testbed, timeline)
            settings = {**settings_of(testbed), "device": on, "workers": workers, "gpu_ranks": gpu_ranks}
        print_table(
            console,
            f"{workers} workers, {gpu_ranks} of them with tensors on {on}; medians of {iters}",
            *sum_table(rows["sums"]),
        )
        print_table(console, "", *other_table(rows))
        figures = {"settings": {**settings, "seed": SEED}, "stages": stages, **rows}
        outputs.write(figures, lambda path: plot_device(figures, path))


@app.command()
def convergence(
    workers: WorkersOption = None,
    topology: TopologyOption = STAR,
    uplink: UplinkOption = None,
    rank_order: RankOrderOption = "contiguous",
    steps: Annotated[int, typer.Option(min=10, help="Training steps of each run.")] = 300,
    folder: Annotated[
        Path,
        typer.Option(help="Folder for convergence.json and convergence.png, unless other names are given."),
    ] = Path("results/convergence"),
    json_path: JsonOption = None,
    plot: PlotOption = None,
    link: LinkOption = "unshaped",
    mtu: MtuOption = 1500,
    switch: SummingSwitchOption = "model",
    results: ResultsOption = Path("results"),
    p4: P4Option = None,
    threads: ThreadsOption = None,
) -> None:
    """Train the models of examples/ with lanes of each width. Exit status 1 if a target is missed.

    Example: inagg bench convergence --steps 100
    """
    with errors_explained():
        from inagg_testbed.bench.convergence import missed, plot_losses, run_convergence, seeds, table
        from inagg_testbed.bench.settings import settings_of

        workers = chosen_fabric(topology, workers, rank_order, uplink).size
        outputs = Outputs(json_path or folder / "convergence.json", plot or folder / "convergence.png")
        with (
            ProgressView(console) as view,
            opened_testbed(
                workers=workers,
                topology=topology,
                uplink=uplink,
                rank_order=rank_order,
                link=link,
                mtu=mtu,
                switch=switch,
                results=results,
                p4=p4,
                switch_options=SwitchOptions(threads=threads),
                on_stage=view.stage,
            ) as testbed,
        ):
            rows = run_convergence(testbed, steps, on_progress=view.update)
            settings = {**settings_of(testbed), "steps": steps, "seeds": seeds(workers)}
        outputs.write({"settings": settings, "rows": rows}, lambda path: plot_losses(rows, path))
        print_table(
            console, f"{workers} workers, {steps} steps; {outputs.picture} has the curves", *table(rows)
        )
        late = missed(rows)
        for line in late:
            console.print(f"[red]missed[/red] {line}", highlight=False, soft_wrap=True)
        if late:
            raise typer.Exit(1)


@app.command()
def suite(
    folder: Annotated[Path, typer.Option(help="Folder for figures, tables and plots.")] = Path(
        "results/bench"
    ),
    backend: Annotated[
        list[str] | None, typer.Option(help="Only these (and their targets); may be given several times.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Run everything once, at small sizes: shows that it works, not how well. No targets.",
        ),
    ] = False,
    matrix: Annotated[
        bool,
        typer.Option(
            "--matrix",
            help="Instead measure each way of summing (leased and shared slots, servers) on three fabrics, at three "
            "rates, with two types and two sizes: a quarter of an hour. matrix.md in the folder is the table.",
        ),
    ] = False,
    contention: Annotated[
        bool,
        typer.Option(
            "--contention",
            help="Instead compare jobs on leased and on shared slots while slots become scarce, at three rates: a "
            "quarter of an hour. contention.md and contention.png in the folder show them.",
        ),
    ] = False,
    results: ResultsOption = Path("results"),
    p4: P4Option = None,
) -> None:
    """Run every experiment and compare with the targets.

    Exit status 1 if a sum is wrong. report.md and report.html in the folder show the tables and the pictures.

    Example: inagg bench suite --quick
    """
    with errors_explained():
        if matrix and contention:
            raise ConfigurationError("give --matrix or --contention")
        if (matrix or contention) and backend:
            raise ConfigurationError("--matrix and --contention have their own backends: leave --backend out")
        if matrix:
            _matrix(folder, results, quick=quick, program=p4)
            return
        if contention:
            _contention(folder, results, quick=quick, program=p4)
            return
        from inagg_testbed.bench.report import TARGETS_HEADER, target_rows, write_report
        from inagg_testbed.bench.suite import BACKENDS, Suite, run_suite

        what = Suite(backends=_backends(backend or BACKENDS), quick=quick, program=p4)
        wrong = _measured(run_suite, what, folder, results)
        judged = write_report(folder, toy=quick)
        where = f"{folder / 'report.md'} has all figures"
        if quick:
            console.print(f"{where}; targets are not judged at these sizes", highlight=False, soft_wrap=True)
        else:
            print_table(console, where, TARGETS_HEADER, target_rows(judged))
        _exit_if_wrong(wrong)


def _matrix(folder: Path, results: Path, *, quick: bool, program: Path | None) -> None:
    from inagg_testbed.bench.matrix import Matrix, run_matrix

    wrong = _measured(run_matrix, Matrix(quick=quick, program=program), folder, results)
    console.print(f"{folder / 'matrix.md'} has all figures", highlight=False, soft_wrap=True)
    _exit_if_wrong(wrong)


def _contention(folder: Path, results: Path, *, quick: bool, program: Path | None) -> None:
    from inagg_testbed.bench.jobs.contention import Contention, run_contention

    _measured(run_contention, Contention(quick=quick, program=program), folder, results)
    console.print(f"{folder / 'contention.md'} has all figures", highlight=False, soft_wrap=True)


def _measured(run: Callable[..., T], what: object, folder: Path, results: Path) -> T:
    make_folder(folder)
    with ProgressView(console) as view:
        return run(what, folder, results, on_stage=view.stage, on_progress=view.update)
