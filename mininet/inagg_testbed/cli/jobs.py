# SPDX-License-Identifier: Apache-2.0
"""The command `inagg bench jobs`."""

from pathlib import Path
from typing import Annotated

import typer

from inagg_testbed.bench.jobs.plan import POLICIES, JobsBench
from inagg_testbed.cli.options import (
    ControllerSettingsOption,
    LinkOption,
    MtuOption,
    P4Option,
    PoolOption,
    ResultsOption,
    SlotsOption,
    SummingSwitchOption,
    ThreadsOption,
    console,
    errors_explained,
    opened_testbed,
)
from inagg_testbed.cli.outputs import JsonOption, Outputs, PlotOption
from inagg_testbed.network.fabric import MAX_HOSTS
from inagg_testbed.network.switch_options import SwitchOptions
from inagg_testbed.terminal import ProgressView, print_table

app = typer.Typer()

PoliciesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        help="leased (slots of the switch; gloo for a job that gets none), queued (the same; a job that gets none waits"
        " until another ends), shared (slots that the jobs share), priority (the same; job 0 comes first) or server"
        " (servers in the ranks' processes). May be given several times, by default all.",
    ),
]


@app.command()
def jobs(
    jobs: Annotated[int, typer.Option(min=1, max=MAX_HOSTS, help="Jobs at the same time.")] = 4,
    workers: Annotated[int, typer.Option(min=2, max=MAX_HOSTS, help="Workers of each job, one a host.")] = 2,
    pool: PoolOption = None,
    slots: SlotsOption = None,
    policy: PoliciesOption = None,
    active: Annotated[float, typer.Option(help="Part of the time in which an undisturbed job sums.")] = 0.5,
    elements: Annotated[int, typer.Option(min=1, help="float32 elements of an all-reduce.")] = 250_000,
    link: LinkOption = "100mbit",
    mtu: MtuOption = 1500,
    seconds: Annotated[float, typer.Option(help="Time that an undisturbed job takes.")] = 20.0,
    skew: Annotated[
        float,
        typer.Option(
            help="Makes a rank of the last job late for each all-reduce: by so many times the time of an all-reduce."
        ),
    ] = 0.0,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each policy, in turn.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the jobs' schedules.")] = 0,
    json_path: JsonOption = None,
    plot: PlotOption = None,
    switch: SummingSwitchOption = "model",
    results: ResultsOption = Path("results"),
    p4: P4Option = None,
    threads: ThreadsOption = None,
    set_controller: ControllerSettingsOption = None,
) -> None:
    """Run several jobs at the same time that share a pool of slots.

    The pool may be too small for all of them. Each job has its own hosts. It pauses, does a number of all-reduces one
    after another, and so on, by a random schedule that is the same for every policy. Every result is compared with the
    exact sum. "MB/s" is the sum of the jobs' goodputs, "vs leased" that divided by the sum under this policy. "in
    switch" is the share of the chunks that the switch has summed. "mean s" and "last s" are the times after which a
    job, and all jobs, are done. "slow" is the time of a phase, divided by the time that its all-reduces take if there
    is no other job. Exit status 1 if a sum is wrong.

    Example: inagg bench jobs --jobs 4 --workers 2 --pool 64 --policy queued --policy shared --plot jobs.png
    """
    with errors_explained():
        from inagg_testbed.bench.jobs.figures import jobs_table, table, title
        from inagg_testbed.bench.jobs.run import run_jobs

        bench = JobsBench(
            jobs=jobs,
            workers=workers,
            elements=elements,
            policies=tuple(policy or POLICIES),
            active=active,
            seconds=seconds,
            skew=skew,
            rounds=rounds,
            seed=seed,
            pool=pool,
            slots=slots,
        )
        outputs = Outputs(json_path, plot)
        with (
            ProgressView(console) as view,
            opened_testbed(
                workers=bench.hosts,
                link=link,
                mtu=mtu,
                switch=switch,
                results=results,
                p4=p4,
                switch_options=SwitchOptions(threads=threads),
                pool=pool,
                set_controller=set_controller,
                on_stage=view.stage,
            ) as testbed,
        ):
            figures = run_jobs(bench, testbed, on_progress=view.update)
        print_table(console, title(figures), *table(figures["rows"]))
        print_table(console, "", *jobs_table(figures["rows"]))
        from inagg_testbed.bench.jobs.plot import plot_jobs

        outputs.write(figures, lambda path: plot_jobs(figures, path))
