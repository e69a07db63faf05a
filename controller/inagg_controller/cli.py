# SPDX-License-Identifier: Apache-2.0
"""The options of the command inagg-controller. `configuration` checks them, `server` runs the controller.

The log is the standard library's, because gRPC, uvicorn and p4runtime-shell log to it too.
"""

import asyncio
import math
import sys
from collections.abc import Iterable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, TypeVar

import typer

import inagg_p4runtime.quiet  # noqa: F401  before grpc is imported
from inagg_contract.documents import DEFAULT_PORT
from inagg_contract.tokens import default_token_file
from inagg_controller import commands
from inagg_controller.commands import errors
from inagg_controller.configuration import (
    DEFAULT_SHARED_SLOTS,
    NO_SWITCHES,
    SERVER_WORDS,
    Configuration,
    check_policy,
    check_pool,
    check_share,
    check_size,
    check_words,
    parse_host_addresses,
    parse_job_classes,
    parse_listen,
    parse_multicast,
    parse_proxies,
    parse_topology,
    star,
    state_file,
)
from inagg_controller.errors import ConfigurationError
from inagg_controller.fabric.topology import Topology
from inagg_controller.fabric.tree import MOST_ROOTS
from inagg_controller.jobs.classes import known_classes
from inagg_controller.jobs.leases import FEWEST_SLOTS
from inagg_controller.jobs.limits import DEFAULT_SHARED_EXPIRY_US, Limits, Policy
from inagg_controller.logs import log_to_stderr
from inagg_controller.network import Network
from inagg_controller.server import serve
from inagg_controller.switch.entries import LONGEST_QUEUE
from inagg_controller.switch.program import Program, load_program
from inagg_controller.tenants_file import TenantsFile
from inagg_controller.tls import server_context, switch_tls
from inagg_controller.tokens import operators_token

_T = TypeVar("_T")

# The options that describe a network of one switch.
_OF_ONE_SWITCH = ("switch", "device_id", "ports", "host", "aggregator_ip", "aggregator_mac")
_OF_SWITCHES = (
    *("p4info", "device_config", "topology", "pool", "shared_slots", "shared_expiry_ms"),
    *("job_share", "mark_queue", "p4runtime_ca", "p4runtime_cert", "p4runtime_key"),
    *_OF_ONE_SWITCH,
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"inagg-controller {version('inagg')}")
        raise typer.Exit


_TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the operator's token; made with mode 600 if it does not exist.",
        show_default="/var/lib/inagg/controller.token for root, else ~/.local/state/inagg/controller.token",
    ),
]
_Tenants = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="TOML file with the tenants, who alone may create jobs, their classes and quotas (docs/deployment.md). "
        "Read again on SIGHUP.",
        show_default="everybody may create jobs",
    ),
]
_Hosts = Annotated[
    list[str] | None,
    typer.Option(
        help="A host and its switch port: IP=PORT, or IP=PORT,MAC to bind these addresses to the port. May be given "
        "several times."
    ),
]
_HostAddresses = Annotated[
    list[str] | None,
    typer.Option(
        help="FROM=IP: a host whose requests come from the address FROM may register ranks at IP, which is its own "
        "too. Needed where the controller cannot be reached from IP. May be given several times."
    ),
]
_TlsCertificate = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Serve the API by HTTPS: the certificate (PEM).")
]
_TlsKey = Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's private key (PEM).")]
_SwitchCa = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Connect to switches with TLS: the authority of their certificates (PEM)."
    ),
]
_SwitchCertificate = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The controller's certificate at the switches (PEM), for switches with --tls-client-ca.",
    ),
]
_Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
]


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    p4info: Annotated[
        Path | None,
        typer.Option(help="P4Info of inagg.p4, in text format.", show_default="required with a switch"),
    ] = None,
    device_config: Annotated[
        Path | None,
        typer.Option(
            help="The switches' program: P4 source, or BMv2's JSON.", show_default="required with a switch"
        ),
    ] = None,
    topology: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with the switches, their links and the hosts (docs/deployment.md). Without it there is one "
            "switch, which --switch, --device-id, --ports, --host and --aggregator-... describe."
        ),
    ] = None,
    ports: Annotated[str | None, typer.Option(help="All ports of the switch, as in 1,2,3.")] = None,
    aggregator_ip: Annotated[str | None, typer.Option(help="IPv4 address that workers send to.")] = None,
    aggregator_mac: Annotated[
        str, typer.Option(help="MAC address that workers send to.")
    ] = "02:49:41:00:00:01",
    multicast: Annotated[
        str,
        typer.Option(
            help="Network of 2^16 or more IPv4 multicast addresses, one for each job's results; or none: results are"
            " sent to each worker's own address."
        ),
    ] = "239.192.0.0/14",
    switch: Annotated[
        str, typer.Option(help="The switch's P4Runtime server: HOST:PORT or unix:PATH.")
    ] = "127.0.0.1:9559",
    device_id: Annotated[int, typer.Option(help="The switch's P4Runtime device id.")] = 1,
    p4runtime_ca: _SwitchCa = None,
    p4runtime_cert: _SwitchCertificate = None,
    p4runtime_key: _TlsKey = None,
    no_switch: Annotated[
        bool,
        typer.Option(
            "--no-switch", help="Serve only jobs on aggregation servers. Needs no program or switch."
        ),
    ] = False,
    words: Annotated[
        int | None,
        typer.Option(
            help=f"256-byte words in a DATA packet, with --no-switch: {', '.join(map(str, SERVER_WORDS))}.",
            show_default=str(SERVER_WORDS[0]),
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="IPv4 address, or a name that has one, and port of the HTTP API.")
    ] = f"127.0.0.1:{DEFAULT_PORT}",
    tls_cert: _TlsCertificate = None,
    tls_key: _TlsKey = None,
    token_file: _TokenFile = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="File that keeps the jobs: a controller that starts again goes on with them. Or none.",
            show_default="controller-ADDRESS-PORT.sqlite beside the token file",
        ),
    ] = None,
    host: _Hosts = None,
    host_address: _HostAddresses = None,
    max_slots: Annotated[int, typer.Option(min=2, help="Maximum number of slots of one job.")] = 1024,
    pool: Annotated[
        int | None,
        typer.Option(
            min=FEWEST_SLOTS,
            help="Slots of each switch that jobs may lease.",
            show_default="all of the program's that are not shared",
        ),
    ] = None,
    shared_slots: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Slots of each switch that are not leased, but shared by the jobs with aggregation = shared, each one "
            "slot version: a power of two, or 0.",
            show_default=f"{DEFAULT_SHARED_SLOTS}, at most a quarter of the slot versions, or with --pool as many "
            "versions as that has, if the program has them",
        ),
    ] = None,
    shared_expiry_ms: Annotated[
        float,
        typer.Option(
            min=0,
            max=1e6,
            help="Age of what a shared slot holds from which any job may take the slot. What was there goes on to the "
            "job's servers.",
        ),
    ] = DEFAULT_SHARED_EXPIRY_US / 1000,
    host_share: Annotated[
        float,
        typer.Option(
            help="Share of each switch's slots and table entries, of each server's memory and of the jobs with servers "
            "that the jobs of one host may have together: above 0, at most 1."
        ),
    ] = 0.75,
    job_share: Annotated[
        float,
        typer.Option(
            help="Share of a switch's free slots that a job gets at most if it asks for more than 32: above 0, at most "
            "1."
        ),
    ] = 0.25,
    mark_queue: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LONGEST_QUEUE,
            help="Packets in the queue of a switch's port beyond which packets of jobs are marked (ECN), so that their "
            "workers slow down.",
            show_default="no marks",
        ),
    ] = None,
    max_roots: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_ROOTS, help="Maximum number of root switches that share a job's chunks."
        ),
    ] = MOST_ROOTS,
    job_class: Annotated[
        list[str] | None,
        typer.Option(
            help="A class that jobs may name (INAGG_JOB_CLASS), and quotas for its jobs: NAME,jobs=4,slots=256,"
            "memory=1GiB,priority=3,aggregation=leased+shared, each of them optional (docs/deployment.md). May be "
            "given several times. Jobs that name no class are of the class default."
        ),
    ] = None,
    tenants: _Tenants = None,
    link_timeout_s: Annotated[
        float, typer.Option(min=1, help="Time without a beacon after which a link between switches is down.")
    ] = 5.0,
    rto_initial_s: Annotated[float, typer.Option(help="First retransmission timeout.")] = 0.1,
    rto_min_s: Annotated[float, typer.Option(help="Least margin of it above the RTT.")] = 0.001,
    rto_max_s: Annotated[float, typer.Option(help="Longest retransmission timeout.")] = 1.0,
    give_up_s: Annotated[float, typer.Option(help="Silence after which a worker gives up.")] = 120.0,
    heartbeat_interval_s: Annotated[float, typer.Option(help="Time between two heartbeats.")] = 0.5,
    heartbeat_timeout_s: Annotated[float, typer.Option(help="Silence after which a rank is lost.")] = 8.0,
    join_timeout_s: Annotated[float, typer.Option(help="Time that a job waits for its ranks.")] = 300.0,
    return_after_s: Annotated[
        float,
        typer.Option(
            help="A job that has lost its first way returns when that has been there for this time. The time doubles "
            "whenever it is soon lost again.",
        ),
    ] = 10.0,
    connections_per_host: Annotated[
        int, typer.Option(min=1, help="Maximum number of connections to the API from one address.")
    ] = 1024,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            help="Address or network of a reverse proxy before the API: a request from there comes from the host that "
            "its X-Forwarded-For names last. May be given several times.",
            show_default="none: X-Forwarded-For is ignored",
        ),
    ] = None,
    idle_timeout_s: Annotated[
        float, typer.Option(min=1, help="Time without a request after which a connection is closed.")
    ] = 15.0,
    switch_timeout_s: Annotated[float, typer.Option(help="Time to wait for the switches at start.")] = 10.0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    _version: _Version = False,
) -> None:
    """Serve training jobs on one switch, on several, or on servers. Prints "ready" when jobs can be created."""
    if context.invoked_subcommand is not None:
        return
    policy = Policy(
        rto_initial_s=rto_initial_s,
        rto_min_s=rto_min_s,
        rto_max_s=rto_max_s,
        give_up_s=give_up_s,
        heartbeat_interval_s=heartbeat_interval_s,
        heartbeat_timeout_s=heartbeat_timeout_s,
        join_timeout_s=join_timeout_s,
        return_after_s=return_after_s,
    )

    def fabric() -> Topology:
        if topology is None:
            return star(
                switch,
                device_id,
                _required(ports, "--ports", "or --topology"),
                host or [],
                _required(aggregator_ip, "--aggregator-ip", "or --topology"),
                aggregator_mac,
            )
        if given := _given(context, _OF_ONE_SWITCH):
            raise ConfigurationError(
                f"--topology describes the switches and hosts: leave out {', '.join(given)}"
            )
        return parse_topology(topology)

    def switches() -> tuple[Program | None, Network, Limits]:
        addresses = parse_host_addresses(host_address or ())
        limited = partial(
            Limits,
            max_slots=max_slots,
            max_roots=max_roots,
            host_share=check_share(host_share, "--host-share"),
            classes=parse_job_classes(job_class or ()),
            job_share=check_share(job_share, "--job-share"),
        )
        if no_switch:
            if given := _given(context, _OF_SWITCHES):
                raise ConfigurationError(
                    f"--no-switch means that there is no switch: leave out {', '.join(given)}"
                )
            network = Network(topology=NO_SWITCHES, words=check_words(words), addresses=addresses)
            return None, network, limited(slot_versions=0)
        if words is not None:
            raise ConfigurationError("--words needs --no-switch: with a switch, its program has the words")
        program = load_program(
            _required(p4info, "--p4info", "or --no-switch"), _required(device_config, "--device-config")
        )
        network = Network(
            topology=check_size(program, fabric()),
            words=program.words,
            multicast=parse_multicast(multicast),
            mark_queue=mark_queue,
            link_timeout_s=link_timeout_s,
            addresses=addresses,
        )
        versions, shared = check_pool(program.slot_versions, pool, shared_slots)
        limits = limited(
            slot_versions=versions,
            shared_slots=shared,
            shared_expiry_us=round(1000 * shared_expiry_ms),
            job_members=program.job_members,
            max_members=program.max_members,
            max_above=program.max_above,
            max_shared_jobs=program.max_shared_jobs,
        )
        return program, network, limits

    def configure() -> Configuration:
        if not math.isfinite(idle_timeout_s):
            raise ConfigurationError("--idle-timeout-s must be a number of seconds")
        program, network, limits = switches()
        tokens, address = token_file or default_token_file(), parse_listen(listen)
        return Configuration(
            switch_timeout_s=switch_timeout_s,
            listen=address,
            tenants=None if tenants is None else TenantsFile(tenants, tuple(known_classes(limits.classes))),
            tls=server_context(tls_cert, tls_key),
            operators_token=operators_token(tokens),
            state=state_file(state, tokens, address),
            state_given=state is not None,
            connections_per_host=connections_per_host,
            proxies=parse_proxies(proxy or ()),
            idle_timeout_s=idle_timeout_s,
            program=program,
            switch_tls=switch_tls(p4runtime_ca, p4runtime_cert, p4runtime_key),
            network=network,
            limits=limits,
            policy=check_policy(policy),
        )

    with errors():
        log_to_stderr(log_level)
        configuration = configure()
        crashed = asyncio.run(serve(configuration))
    if crashed:
        print("inagg-controller: ended by an internal error; its log above has the details", file=sys.stderr)
        raise typer.Exit(1)


app.command()(commands.topology)
app.command()(commands.certificates)
app.command()(commands.tenant)


def _given(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Those of these options that are on the command line."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [
        f"--{name.replace('_', '-')}"
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    ]


def _required(value: _T | None, option: str, alternative: str = "") -> _T:
    if value is None:
        raise ConfigurationError(f"{option} is missing; give it{alternative and f', {alternative}'}")
    return value


def main() -> None:
    """Entry point."""
    app()
