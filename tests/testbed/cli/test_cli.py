# SPDX-License-Identifier: Apache-2.0
"""The `inagg` command: help, errors, exit statuses."""

import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import inagg as inagg_package
from inagg_testbed.cli.main import app
from inagg_testbed.network.lifecycle import manifests, tagged_processes
from tests.testbed import commands

EXAMPLES = Path(__file__).parents[3] / "examples"
OPERATING = ("status", "counters", "registers", "slots", "loss", "impair", "logs", "capture", "shell")
COMMANDS = (
    "demo",
    "compare",
    "up",
    "run",
    "launch",
    "down",
    "exec",
    "decode",
    "report",
    "explain",
    "trace",
    "doctor",
    *OPERATING,
)
BENCH = ("--workers", "2", "--elements", "10")
BENCHES = ("allreduce", "straggler", "late", "jobs", "device", "convergence", "suite")


def test_help_names_the_commands() -> None:
    done = commands.inagg_process("--help")
    assert done.returncode == 0
    for command in ("bench", *COMMANDS):
        assert command in done.stdout


@pytest.mark.parametrize("command", [*COMMANDS, *(f"bench {name}" for name in BENCHES)])
def test_the_help_of_every_command_has_an_example(command: str) -> None:
    done = CliRunner().invoke(app, [*command.split(), "--help"])
    assert done.exit_code == 0
    assert f"Example: inagg {command}" in done.stdout


COMMAND_LINES = ["inagg_testbed", "inagg_controller", "inagg_switch", "inagg_server"]
MODULES = {name: f"{name}.cli.main" for name in ("inagg_testbed", "inagg_switch")}


@pytest.mark.parametrize("command", COMMAND_LINES)
def test_help_fits_80_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of options have at least half of a line, and no summary of a command is cut off."""
    monkeypatch.setenv("COLUMNS", "80")
    own = importlib.import_module(MODULES.get(command, f"{command}.cli")).app
    for words in subcommands(typer.main.get_command(own)):
        done = CliRunner().invoke(own, [*words, "--help"], terminal_width=80)
        assert done.exit_code == 0, done.output
        lines = done.output.splitlines()
        assert max(map(len, lines)) <= 80
        assert all(len(line) - len(line.lstrip()) <= 40 for line in lines)
        summaries = lines[lines.index("Commands:") :] if "Commands:" in lines else []
        assert [line for line in summaries if line.endswith("...")] == []


def subcommands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of a command and of all commands below it."""
    yield words
    for name, below in getattr(command, "commands", {}).items():
        yield from subcommands(below, (*words, name))


@pytest.mark.parametrize("command", ["inagg_testbed", "inagg_controller", "inagg_switch"])
def test_every_command_has_the_version_of_the_distribution(command: str) -> None:
    script = f"import sys; from {command}.cli import main; sys.argv[1:] = ['--version']; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()[1:] == [metadata.version("inagg")]


def test_the_package_has_the_version_of_the_distribution() -> None:
    assert inagg_package.__version__ == metadata.version("inagg")


def test_bash_completes_commands() -> None:
    script = "import sys; sys.argv = ['inagg']; from inagg_testbed.cli.main import main; main()"
    asked = {"_INAGG_COMPLETE": "complete_bash", "COMP_WORDS": "inagg c", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **asked},
    )
    assert set(done.stdout.split()) == {"compare", "counters", "capture"}, done.stdout + done.stderr


def without_mininet(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """The command in an environment that has this checkout and all that it needs but Mininet.

    A virtual environment without the system's packages, which is where Debian's Mininet is; what pip has installed for
    the tests is added to its path.
    """
    venv.create(folder, system_site_packages=False, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    own = Path(typer.__file__).parents[1]
    for package in (
        "inagg_contract",
        "inagg_wire",
        "inagg_baselines",
        "inagg_testbed",
        "inagg_controller",
        "inagg",
        "inagg_switch",
        "inagg_p4runtime",
    ):
        found = importlib.util.find_spec(package)
        assert found is not None
        assert found.origin is not None
        (site / package).symlink_to(Path(found.origin).parent)
    (site / "own.pth").write_text(f"{own}\n")
    return subprocess.run(
        [folder / "bin" / "python", "-m", "inagg_testbed", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
    )


def test_doctor_says_that_mininet_is_missing(tmp_path: Path) -> None:
    done = without_mininet("doctor", folder=tmp_path / "venv")
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert (
        "✗ Mininet for this Python: this Python cannot import Mininet (No module named 'mininet')"
        in done.stdout
    )
    assert "/usr/bin/python3 -m venv --system-site-packages" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("demo", "--quick"),
        ("up",),
        ("run", "true"),
        ("bench", "allreduce", *BENCH, "--backend", "gloo"),
        ("bench", "suite"),
    ],
)
def test_without_mininet_every_command_says_so(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = without_mininet(*command, folder=tmp_path / "venv")
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "this Python cannot import Mininet" in done.stderr


def test_bench_device_without_a_gpu_says_so_and_is_no_error() -> None:
    done = commands.inagg_process("bench", "device", environment={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr
    assert "no CUDA GPU (" in done.stdout


def test_mininet_does_not_touch_the_loggers_of_others() -> None:
    script = "import logging, inagg_testbed.network._mininet; print(type(logging.getLogger('inagg')) is logging.Logger)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("command", ["allreduce", "straggler", "late", "jobs", "device", "convergence"])
def test_the_name_of_a_picture_is_checked_before_anything_starts(tmp_path: Path, command: str) -> None:
    needed = ("--elements", "10", "--backend", "gloo") if command == "allreduce" else ()
    on = ("--on", "cpu") if command == "device" else ()
    done = commands.inagg(
        "bench", command, *needed, *on, "--plot", "a.gif", "--results", str(tmp_path / "results")
    )
    assert done.returncode == 1
    assert done.stderr == "inagg: --plot a.gif: the name must end in .png, .pdf, .svg\n"
    assert not (tmp_path / "results").exists()


def test_doctor_says_what_is_there_and_what_to_do_about_the_rest(tmp_path: Path) -> None:
    done = commands.inagg_process("doctor", environment={"PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "✓ Linux" in done.stdout
    assert "✗ tc: apt-get install iproute2" in done.stdout
    assert "- simple_switch_grpc: only for --switch bmv2" in done.stdout


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--link", "fast", "want unshaped, or a rate such as 100mbit"),
        ("--backend", "nccl", "none of gloo, gloo-hierarchical, gloo-server, gloo-server-1, inagg:32"),
        ("--slots", "0", "0 slots: want a power of two"),
        ("--slots", "3", "3 slots: want a power of two"),
        ("--json", "/proc/rows.json", "cannot write /proc/rows.json"),
        ("--json", "/etc/hostname/rows.json", "cannot make the folder /etc/hostname"),
        ("--json", "/etc", "cannot write /etc: Is a directory"),
        ("--plot", "/tmp/rows.gif", "--plot /tmp/rows.gif: the name must end in .png, .pdf, .svg"),
        ("--plot", "/proc/rows.png", "cannot write /proc/rows.png"),
    ],
)
def test_a_wrong_option_is_explained_before_anything_starts(
    tmp_path: Path, option: str, value: str, message: str
) -> None:
    options = {
        "--workers": "2",
        "--elements": "10",
        "--backend": "gloo",
        "--results": str(tmp_path / "results"),
    }
    options[option] = value
    done = commands.inagg("bench", "allreduce", *(text for pair in options.items() for text in pair))
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--topology", "tree:4"), "topology tree:4: want a number of switches for each level"),
        (("--topology", "tree:9x9"), "topology tree:9x9: a testbed has 1 to 64 hosts, not 81"),
        (("--topology", "tree:2x2", "--workers", "3"), "tree:2x2 has 4 hosts, so 3 workers contradict it"),
        (("--topology", "tree:2x2", "--uplink", "fast"), "link 'fast': want unshaped, or a rate"),
        (("--uplink", "1gbit"), "a star has no links between switches: leave --uplink out"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [("up",), ("run",), ("demo",), ("bench", "allreduce"), ("bench", "straggler")],
    ids=" ".join,
)
def test_a_wrong_topology_is_explained_before_anything_starts(
    tmp_path: Path, command: tuple[str, ...], options: tuple[str, ...], message: str
) -> None:
    arguments = [*command, "--results", str(tmp_path / "results"), *options]
    arguments += ["--elements", "10", "--backend", "gloo"] if "allreduce" in command else []
    arguments += ["true"] if "run" in command else []
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert message in done.output
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("command", ["run --topology t.json true", "demo --topology t.json"])
def test_only_up_takes_a_topology_file(command: str) -> None:
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 1
    assert "topology t.json: only `inagg up` takes a file" in done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers", "60", "--servers", "5"), "60 workers and 5 servers has 1 to 64 hosts, not 65"),
        (("--workers", "2", "--servers", "1", "--no-controller"), "servers register with a controller"),
        (("--pool", "64", "--no-controller"), "it needs a switch and a controller"),
        (("--pool", "64", "--switch", "bridge"), "it needs a switch and a controller"),
        (("--set-controller", "mark_queue=32", "--no-controller"), "--set-controller and --no-controller"),
        (("--set-controller", "mark_queue"), "want NAME=VALUE, as in mark_queue=32"),
        (("--set-controller", "listen=1.2.3.4:5"), "the testbed sets it"),
        (("--set-controller", "token_file=/tmp/x"), "the testbed sets it"),
        (("--set-controller", "pool=64"), "use the option --pool"),
    ],
)
def test_servers_and_pools_that_cannot_be_are_explained_before_anything_starts(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    done = CliRunner().invoke(app, ["up", "--results", str(tmp_path / "results"), *options])
    assert done.exit_code == 1
    assert message in done.output
    assert not (tmp_path / "results").exists()


def test_a_suite_of_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    done = commands.inagg("bench", "suite", "--quick", "--folder", str(tmp_path), "--backend", "nccl")
    assert done.returncode == 1
    assert "none of gloo, gloo-hierarchical, gloo-server, gloo-server-1, inagg:32" in done.stderr


def test_a_backend_given_twice_is_refused() -> None:
    done = commands.inagg("bench", "allreduce", *BENCH, "--backend", "inagg", "--backend", "inagg:32")
    assert done.returncode == 1
    assert "inagg:32, inagg:32: a value is given twice" in done.stderr


def test_aggregation_is_not_to_be_had_from_a_bridge() -> None:
    done = commands.inagg("bench", "allreduce", *BENCH, "--backend", "inagg", "--switch", "bridge")
    assert done.returncode == 1
    assert "a bridge neither aggregates nor drops packets: measure gloo, inagg-server" in done.stderr


def test_packets_to_servers_are_not_lost() -> None:
    done = commands.inagg("bench", "allreduce", *BENCH, "--backend", "inagg-server:16", "--loss", "0.1")
    assert done.returncode == 1
    assert "packets to servers are ordinary ones: measure inagg-server:16 without --loss" in done.stderr


def test_loss_beyond_half_is_refused() -> None:
    done = commands.inagg("bench", "allreduce", *BENCH, "--backend", "gloo", "--loss", "1")
    assert done.returncode == 2
    assert "--loss" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("down",),
        ("exec", "h1", "--", "true"),
        ("status",),
        ("counters",),
        ("loss",),
        ("capture", "h1"),
        ("shell",),
    ],
)
def test_only_root_takes_down_and_looks_into_nodes(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert f"inagg {command[0]} needs root: run it with sudo -E" in done.output


def test_without_root_no_other_lack_is_named_that_root_would_mend() -> None:
    """As another user, and without what lets root do everything, except to read these files."""
    reads = "-all,+dac_override,+dac_read_search"
    user = ["setpriv", "--reuid=65534", "--clear-groups", f"--bounding-set={reads}"]
    user += ["--inh-caps=+dac_override,+dac_read_search", "--ambient-caps=+dac_override,+dac_read_search"]
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    command = [*user, sys.executable, "-m", "inagg_testbed", "up"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr == (
        "inagg: this machine lacks\n  root: run it with sudo -E, from the same virtual environment\n"
    )


@pytest.mark.netns
def test_a_program_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = commands.inagg("up", "--p4", str(tmp_path / "nosuch.p4"), "--results", str(tmp_path / "results"))
    assert done.returncode == 1
    assert "no P4 program" in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.netns
def test_results_below_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "afile").touch()
    done = commands.inagg("up", "--switch", "bridge", "--results", str(tmp_path / "afile" / "r"))
    assert done.returncode == 1
    assert "cannot make the folder" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_script_that_is_not_there_is_refused_before_anything_starts() -> None:
    done = commands.inagg("run", "nosuch.py", "--steps", "3")
    assert done.returncode == 1
    assert "no script nosuch.py" in done.stderr


def test_a_wrong_setting_is_refused_before_anything_starts(tmp_path: Path) -> None:
    script = str(EXAMPLES / "linear_regression.py")
    done = commands.inagg("run", "--results", str(tmp_path / "r"), "--set", "lane_bit=16", script)
    assert done.returncode == 1
    assert "lane_bit: is not a setting; did you mean lane_bits?" in done.stderr
    assert not (tmp_path / "r").exists()
    done = commands.inagg("run", "--results", str(tmp_path / "r"), "--take-over", "mpi", script)
    assert done.returncode == 1
    assert "of gloo and nccl (got 'mpi')" in done.stderr
    no_backends = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = commands.inagg_process("run", "--take-over", "gloo", script, environment=no_backends)
    assert done.returncode == 1
    assert "torch would not load inagg" in done.stderr


@pytest.mark.netns
def test_a_script_runs_in_every_host_and_rank_0_is_heard(tmp_path: Path) -> None:
    options = ("--workers", "2", "--link", "unshaped", "--results", str(tmp_path))
    done = commands.inagg_process("run", *options, str(EXAMPLES / "linear_regression.py"), "--steps", "60")
    assert done.returncode == 0, done.stdout
    assert "step 60: loss 0.0" in done.stdout
    assert "farthest weight is 0.0" in done.stdout
    (other,) = tmp_path.glob("*/run-rank1.log")
    assert "step" not in other.read_text()


@pytest.mark.netns
def test_a_command_that_fails_is_an_error_with_its_last_words_and_settings_are_the_users(
    tmp_path: Path,
) -> None:
    options = ("--workers", "2", "--switch", "bridge", "--results", str(tmp_path))
    (tmp_path / "own.toml").write_text("slots = 8\nlane_bits = 8\n")
    script = (
        "echo heard from $RANK in $INAGG_LANE_BITS bits, $INAGG_SLOTS slots, for $INAGG_TAKE_OVER; exit $RANK"
    )
    done = commands.inagg_process(
        "run",
        *(*options, "--set", "lane_bits=16", "--take-over", "gloo", "sh", "-c", script),
        environment={"INAGG_CONFIG": str(tmp_path / "own.toml")},
    )
    assert done.returncode == 1
    assert "heard from 0 in 16 bits, 8 slots, for gloo" in done.stdout
    assert "rank 1 ended with exit status 1" in done.stderr


def lingering(run: str) -> "subprocess.Popen[str]":
    """A command that `inagg exec` started in h1, and that does not end by itself."""
    command = ["exec", "--run", run, "h1", "--", "sh", "-c", "echo started; exec sleep 1000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "inagg_testbed", *command], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


@pytest.mark.netns
def test_a_testbed_stays_up_until_it_is_taken_down(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "inagg_testbed", "up", "--switch", "bridge", "--workers", "2"]
    keeper = subprocess.Popen([*command, "--results", str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert keeper.stdout is not None
    lines = iter(keeper.stdout.readline, "")
    run = next(line.split()[1] for line in lines if "is up" in line)
    try:
        ping = ("ping", "-c", "1", "-w", "30", "10.0.0.2")  # until one is answered: a busy machine loses some
        assert commands.inagg_process("exec", "--run", run, "h1", "--", *ping).returncode == 0
        assert commands.inagg_process("exec", "--run", run, "h1", "--", "sh", "-c", "exit 5").returncode == 5
        assert "no node h3" in commands.inagg_process("exec", "--run", run, "h3", "--", "true").stderr
        environment = commands.inagg_process("exec", "--run", run, "h1", "--", "env").stdout
        assert f"GLOO_SOCKET_IFNAME=ia-{run}-h1\n" in environment
        assert "\nOMP_NUM_THREADS=1\n" in environment
        users = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "3"}
        own = commands.inagg_process("exec", "--run", run, "h1", "--", "env", environment=users)
        assert {f"{name}={value}" for name, value in users.items()} <= set(own.stdout.splitlines())
        ended, survivor = lingering(run), lingering(run)
        ended.terminate()
        output, _ = ended.communicate(timeout=60)  # stderr is that of the test
        assert output == ""
        assert ended.returncode == -signal.SIGTERM
        assert commands.inagg_process("down", "--run", run).returncode == 0
        survivor.communicate(timeout=60)
        # Killed, if a busy machine did not let it end within the time that teardown grants.
        assert survivor.returncode in (-signal.SIGTERM, -signal.SIGKILL)
    finally:
        keeper.send_signal(signal.SIGTERM)
        keeper.communicate(timeout=30)
    assert keeper.returncode == 128 + signal.SIGTERM
    assert tagged_processes(run, besides=0) == []
    assert run not in manifests()
    gone = commands.inagg_process("down", "--run", run)
    assert gone.returncode == 1
    assert run in gone.stderr


@pytest.mark.netns
def test_ctrl_c_takes_everything_down(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "inagg_testbed", "demo", "--switch", "bridge", "--steps", "100000"]
    demo = subprocess.Popen(
        [*command, "--results", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert demo.stdout is not None
    run = demo.stdout.readline().split()[2].rstrip(":")
    while "starting" not in demo.stdout.readline():
        pass
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=30)
    assert demo.returncode == 128 + signal.SIGINT
    assert "stopped by SIGINT" in output
    assert tagged_processes(run, besides=0) == []
    assert run not in manifests()
