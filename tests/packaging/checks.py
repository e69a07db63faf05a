# SPDX-License-Identifier: Apache-2.0
"""What each installation has to do. Each check returns what it has seen, in a line, and raises CheckError."""

import json
import subprocess
import tomllib
import urllib.request
import zipfile
from pathlib import Path

from tests import ROOT
from tests.free_ports import free_port
from tests.packaging.installation import CheckError, Installation

# What a worker does without, and what only a worker needs.
OF_OTHERS = {
    "fastapi",
    "grpcio",
    "ipython",
    "matplotlib",
    "p4runtime",
    "p4runtime-shell",
    "prometheus_client",
    "protobuf",
    "rich",
    "scikit-learn",
    "typer",
    "uvicorn",
}
OF_THE_TESTBED = {"matplotlib", "scikit-learn"}
OF_WORKERS = {"torch", "numpy"}
COMMANDS = {
    "inagg": "testbed",
    "inagg-switch": "switch",
    "inagg-server": "server",
    "inagg-controller": "controller",
}
REGISTERED = """
import platform, torch.distributed
assert "INAGG" in torch.distributed.Backend._plugins
print(torch.__version__, "of Python", platform.python_version())
"""
WRITE_CAPTURE = """
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap
from inagg_wire.layers import Inagg
headers = Ether() / IP(src="10.0.0.1", dst="10.0.0.253") / UDP(sport=40000, dport=18753)
wrpcap({path!r}, [headers / Inagg(job=3, epoch=9, chunk=7)])
"""
ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("inagg")
sums = torch.full((10_000,), dist.get_rank() + 1.0)
dist.all_reduce(sums)
assert sums.eq(3.0).all()
import inagg
figures = inagg.stats()
print(f"all_reduce over the {figures['path']}: {sums[0]:g}, {inagg.__file__}", flush=True)
dist.destroy_process_group()
"""


def content(wheel: Path) -> str:
    """All tracked files of the packages, the P4 programs, the examples and the labs are in the wheel, and the native
    modules."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["wheel"][
        "packages"
    ]
    places = {package: Path(package).name for package in packages}
    places |= {"p4/include": "inagg_contract/p4/include", "p4/bench": "inagg_contract/p4/bench"}
    places |= {"examples": "inagg_testbed/examples", "docs/course": "inagg_switch/course"}
    wanted = {f"p4/{name}": f"inagg_contract/p4/{name}" for name in ("inagg.p4", "bridge.p4")}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        for source, place in places.items():
            if name.startswith(f"{source}/"):
                wanted[name] = name.replace(source, place, 1)
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    for source, name in wanted.items():
        if held.get(name) != (ROOT / source).read_bytes():
            raise CheckError(f"{wheel.name}: {name} is not there, or not what {source} is")
    for name in ("inagg/_core.", "inagg_switch/_ports.", "inagg_switch/libcontrol_plane.a"):
        if not any(each.startswith(name) for each in held):
            raise CheckError(f"{wheel.name}: there is no {name}*")
    return f"{len(wanted)} files of the clone, {len(held)} in all, {wheel.stat().st_size:,} bytes"


def base(installed: Installation, wheel: Path) -> str:
    """Nothing of the extras is there. Each command, and the host library, says how to install its extra."""
    found = installed.distributions()
    if found & (OF_OTHERS | OF_WORKERS):
        raise CheckError(f"the base has {sorted(found & (OF_OTHERS | OF_WORKERS))}")
    for command, extra in COMMANDS.items():
        said = installed.run(command, "--help", status=1)
        if not said.startswith(f"{command} needs the extra {extra}: pip install '{wheel}[{extra}]'"):
            raise CheckError(f"without its extra {command} says: {said}")
    said = installed.run("python", "-c", "import inagg", status=1)
    if f"inagg needs torch: pip install '{wheel}[worker]'" not in said:
        raise CheckError(f"without torch `import inagg` says: {said}")
    return f"{len(found)} packages: {', '.join(sorted(found))}"


def worker(installed: Installation) -> str:
    """torch finds the backend, and nothing of the other extras is there."""
    found = installed.distributions()
    if found & OF_OTHERS:
        raise CheckError(f"a worker has {sorted(found & OF_OTHERS)}")
    version = installed.run("python", "-c", REGISTERED).strip()
    return f"torch {version} has the backend; {len(found)} packages: {', '.join(sorted(found))}"


def wire(installed: Installation) -> str:
    """`inagg decode` reads a capture that the layers wrote, and the dissector is there."""
    if found := installed.distributions() & (OF_THE_TESTBED | OF_WORKERS | {"fastapi", "grpcio"}):
        raise CheckError(f"a reader of captures has {sorted(found)}")
    capture = installed.place.results / "one.pcap"
    installed.run("python", "-c", WRITE_CAPTURE.format(path=str(capture)))
    said = installed.run("inagg", "decode", str(capture), "--chunk", "7")
    if "chunk 7 of job 3" not in said:
        raise CheckError(f"inagg decode says\n{said}")
    dissector = Path(installed.run("inagg", "decode", "--dissector").strip())
    if not dissector.is_file() or not dissector.is_relative_to(installed.path):
        raise CheckError(f"the dissector is not in the installation: {dissector}")
    return f"decodes a capture; {dissector.name} has {dissector.stat().st_size:,} bytes"


def switch(server: Installation) -> str:
    """The switch compiles and measures its own program without a path, and grades the solution of a lab."""
    if found := server.distributions() & (OF_THE_TESTBED | OF_WORKERS | {"fastapi"}):
        raise CheckError(f"a switch has {sorted(found)}")
    server.run("inagg-switch", "compile", "-o", str(server.place.results / "p4"))
    server.run("inagg-switch", "explain")
    lab = server.place.results / "lab"
    server.run("inagg-switch", "lab", "1", str(lab), "--solution")
    server.run("inagg-switch", "test", str(lab / "solution/lab1.p4"), *map(str, (lab / "tests").iterdir()))
    rates = []
    for options in ([], ["--load", "bench/four_workers.vectors"]):
        done = server.run("inagg-switch", "bench", *options, "--packets", "20000", "--runs", "3", "--json")
        rates.append(json.loads(done)["packets_per_second"])
    return f"inagg.p4: {rates[0]:,.0f} packets a second, {rates[1]:,.0f} with sums"


def server(of_sums: Installation) -> str:
    """The server of sums starts without torch."""
    if found := of_sums.distributions() & (OF_THE_TESTBED | OF_WORKERS | {"fastapi"}):
        raise CheckError(f"a server of sums has {sorted(found)}")
    return of_sums.run("inagg-server", "--version").strip()


def controller(server: Installation, of: Installation) -> str:
    """The controller starts beside the switch of another installation, and serves its pages."""
    place = server.place
    if found := server.distributions() & (OF_THE_TESTBED | OF_WORKERS):
        raise CheckError(f"a controller has {sorted(found)}")
    server.run("inagg-controller", "--help")
    p4runtime, port = f"unix:{place.results}/p4runtime", free_port()
    run_switch = [of.command("inagg-switch"), "run", "--port", "1@lo", "--grpc", p4runtime]
    run_controller = [server.command("inagg-controller"), "--switch", p4runtime, "--ports", "1"]
    run_controller += ["--p4info", f"{place.results}/p4/p4info.txtpb", "--aggregator-ip", "10.0.0.253"]
    run_controller += ["--device-config", f"{place.results}/p4/inagg.p4", "--listen", f"127.0.0.1:{port}"]
    run_controller += ["--token-file", f"{place.results}/token"]
    with (
        # In a network namespace of its own: there the switch takes packets from nobody.
        place.serving(
            ["unshare", "--net", "sh", "-c", f"ip link set lo up; exec {' '.join(run_switch)}"], "switch"
        ),
        place.serving(run_controller, "controller"),
    ):
        health, page = (_get(port, path) for path in ("/health", "/docs"))
    if "POST" not in page:
        raise CheckError(f"/docs of the controller is\n{page}")
    return (
        f"/health says that the switch is {json.loads(health)['switch']}; /docs has {len(page):,} characters"
    )


def worker_sums(launcher: Installation, worker: Installation) -> str:
    """Two ranks with the packages of `worker` sum through the switch of a testbed of `launcher`."""
    results = worker.place.results
    options = ["--workers", "2", "--link", "unshaped", "--results", str(results)]
    said = launcher.run("inagg", "run", *options, worker.command("python"), "-c", ALL_REDUCE)
    line = next(
        (line for line in said.splitlines() if line.startswith("all_reduce over the switch: 3,")), None
    )
    if line is None or str(worker.path) not in line:
        raise CheckError(f"the all_reduce of a worker says\n{said}")
    return f"a worker's {line.partition(', ')[0]}"


def testbed(launcher: Installation, worker: Installation) -> str:
    """All commands of a testbed work, and the packages of `worker` sum through its switch."""
    results = launcher.place.results
    options = ["--workers", "2", "--link", "unshaped", "--results", str(results)]
    launcher.run("inagg", "doctor")
    summed = worker_sums(launcher, worker)
    bench = ["--elements", "10000", "--backend", "gloo", "--backend", "inagg:32", "--iters", "3"]
    launcher.run("inagg", "bench", "allreduce", *options, *bench, "--json", f"{results}/rows.json")
    rows = json.loads((results / "rows.json").read_text())["rows"]
    launcher.run("inagg", "demo", "--quick", *options)
    if not (results / "demo" / "report.html").is_file():
        raise CheckError("inagg demo has written no report")
    for example in ("digits", "gpt"):
        train = ["-m", "inagg_testbed.bench.convergence_worker", example, "--steps", "2", "--lane-bits", "16"]
        launcher.run("inagg", "run", *options, launcher.command("python"), *train)
    return f"{summed}; {len(rows)} rows of bench allreduce; demo; both examples"


def _get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return str(answer.read().decode())
