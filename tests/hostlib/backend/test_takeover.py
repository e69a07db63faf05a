# SPDX-License-Identifier: Apache-2.0
"""INAGG_TAKE_OVER: programs that name another backend get inagg's groups, or an error, never that backend silently.

Real processes over servers, started by ``inagg launch``.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.controller.launching import CommandLine, Launcher, read_line
from tests.free_ports import free_port
from tests.hostlib.gloo_output import without_gloo

WORKER = Path(__file__).with_name("takeover_worker.py")
INAGG = Path(sys.executable).with_name("inagg")
SAID = "took over this program's groups"
_OWN = ("INAGG_", "TORCH_DEVICE_BACKEND_AUTOLOAD")
BARE = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a controller without a switch."""
    address = f"127.0.0.1:{free_port()}"
    token = tmp_path_factory.mktemp("controller") / "token"
    with closing(
        Launcher(CommandLine({"no-switch": True, "listen": address, "token-file": token}))
    ) as launch:
        assert read_line(launch()) == "ready"
        yield f"http://{address}"


class Run:
    """What the ranks of a program saw, by case, and what they printed."""

    def __init__(self, ranks: list[dict[str, Any]], log: str) -> None:
        self.ranks, self.log = ranks, log

    def each(self, case: str) -> list[Any]:
        return [rank[case] for rank in self.ranks]


def run(
    controller: str, folder: Path, ranks: int, named: str, *cases: str, take_over: str = "gloo,nccl"
) -> Run:
    options = ["--take-over", take_over, "--controller", controller, "--set", "aggregation=server"]
    torchrun = ["torchrun", "--nproc-per-node", str(ranks), "--master-port", str(free_port())]
    done = subprocess.run(
        [str(INAGG), "launch", *options, "--", *torchrun, str(WORKER), named, str(folder), *cases],
        env=BARE | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    return Run(seen, done.stderr)


@pytest.fixture(scope="module")
def gloo(controller: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four ranks of a program that names gloo."""
    cases = (
        "world",
        "sub_groups",
        "split",
        "names_that_stay",
        "options_of_gloo",
        "calls_that_know_gloo",
        "one_rank",
    )
    return run(controller, tmp_path_factory.mktemp("gloo"), 4, "gloo", *cases)


@pytest.fixture(scope="module")
def nccl(controller: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two ranks of a program that names NCCL, and makes a group of gloo beside it."""
    cases = ("world", "beside_nccl", "lone_training")
    return run(controller, tmp_path_factory.mktemp("nccl"), 2, "cuda:nccl,cpu:gloo", *cases)


def test_a_program_that_names_gloo_sums_through_inagg_and_keeps_the_name(gloo: Run) -> None:
    for world in gloo.each("world"):
        assert world["described"] == ["gloo", "gloo", "server", 6.0]
        assert (world["configuration"], world["device"]) == ("cpu:gloo,cuda:gloo", "gloo")
        assert world["objects"] == [0, 1, 2, 3]


def test_one_line_says_what_is_taken_over_and_explain_says_it_too(gloo: Run) -> None:
    assert gloo.log.count(SAID) == 1
    assert "groups of gloo, nccl and of no name (INAGG_TAKE_OVER)" in gloo.log
    for world in gloo.each("world"):
        assert (
            world["explained"]
            == "the program named the backend 'gloo'; INAGG_TAKE_OVER made this group inagg's"
        )


def test_sub_groups_are_inaggs_whether_they_name_gloo_or_nothing(gloo: Run) -> None:
    for rank, groups in enumerate(gloo.each("sub_groups")):
        assert groups == [["gloo", "gloo", "server", [1.0, 5.0][rank // 2]]] * 3


def test_a_group_can_be_split(gloo: Run) -> None:
    for rank, (first, second, third, members, members_again) in enumerate(gloo.each("split")):
        odd = rank % 2
        assert first == (["gloo", "gloo", "server", 4.0] if odd else None)
        assert second == third == ["gloo", "gloo", "server", [2.0, 4.0][odd]]
        assert members == members_again == [[0, 2], [1, 3]][odd]


def test_other_names_and_groups_made_directly_stay_the_programs_own(gloo: Run) -> None:
    assert gloo.each("names_that_stay") == [["fake", "ProcessGroup", "gloo"]] * 4


def test_options_of_gloo_are_dropped_with_one_word_and_inaggs_apply(gloo: Run) -> None:
    assert gloo.each("options_of_gloo") == [[["gloo", "gloo", "server", 6.0], 16]] * 4
    assert gloo.log.count("pg_options made for 'gloo' are not used") == 1


def test_what_knows_gloo_by_name_does_what_it_does_for_gloo(gloo: Run) -> None:
    for summed, backend_of_ddp, _ in gloo.each("calls_that_know_gloo"):
        assert (summed, backend_of_ddp) == ([4.0] * 3, "inagg")


def test_groups_of_one_rank(gloo: Run) -> None:
    assert gloo.each("one_rank") == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.long
def test_processes_that_ranks_start_take_no_job(controller: str, tmp_path: Path) -> None:
    ranks = run(controller, tmp_path, 2, "gloo", "side_processes")
    for seen in ranks.each("side_processes"):
        assert seen["saved"]
        assert seen["child"] == [["gloo", "gloo", "inner", 1.0]] * 2
        assert seen["jobs"] == 1  # of the group that was made after them
    assert ranks.each("marks left") == [[]] * 2
    assert "gloo does its sums: a process that a rank has started made it" in ranks.log


def test_a_program_of_several_backends_keeps_its_string(nccl: Run) -> None:
    for world in nccl.each("world"):
        assert world["described"] == ["cuda:nccl,cpu:gloo", "nccl", "server", 1.0]


def test_a_group_of_gloo_beside_nccl_takes_no_job(nccl: Run) -> None:
    assert (
        nccl.each("beside_nccl")
        == [[["cuda:nccl,cpu:gloo", "nccl", "server", 1.0], ["gloo", "gloo", "inner", 1.0]]] * 2
    )
    assert nccl.log.count("for control messages (INAGG_TAKE_OVER)") == 1


def test_ranks_that_train_alone_are_warned_of_once(nccl: Run, gloo: Run) -> None:
    assert (
        nccl.log.count("4 optimizer steps on each of 2 ranks, and 0 bytes in collectives between them") == 1
    )
    assert "optimizer steps" not in gloo.log


@pytest.mark.long
def test_a_mesh_and_a_world_without_a_name(controller: str, tmp_path: Path) -> None:
    seen = run(controller, tmp_path, 4, "", "mesh", take_over="nccl")
    for rank, groups in enumerate(seen.each("mesh")):
        own = ["undefined", "gloo", "server"]
        assert groups == [[*own, 6.0], [*own, [2.0, 4.0][rank % 2]], [*own, [1.0, 5.0][rank // 2]]]
    assert "groups of nccl and of no name" in seen.log


# A world of this process, alone unless RANKS says otherwise, and what it is, or the error.
PRINT_WORLD = """
import os
import torch.distributed as dist
try:
    ranks = int(os.environ.get("RANKS", "1"))
    store = dist.FileStore(os.environ["STORE"], ranks) if "STORE" in os.environ else dist.HashStore()
    dist.init_process_group(BACKEND, store=store, rank=int(os.environ.get("RANK", "0")), world_size=ranks)
    print(dist.get_backend(), type(dist.group.WORLD).__module__)
    dist.destroy_process_group()
except Exception as error:
    print(type(error).__name__, error)
"""
# The same for each environment in sys.argv[1], in a forked child, after the statements that go with the environment.
PRINT_WORLDS = f"""
import json, os, sys
import torch.distributed.distributed_c10d as c10d
from inagg import takeover
for environment, change in json.loads(sys.argv[1]):
    if (child := os.fork()) == 0:
        os.environ.update(environment)
        BACKEND = os.environ.pop("BACKEND", "gloo")
        exec(change)
        assert takeover.is_asked_for(os.environ)
        takeover.install()
        {"".join(line + chr(10) + " " * 8 for line in PRINT_WORLD.splitlines())}
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""


def python(program: str, *arguments: str, **environment: str) -> str:
    """What `program` prints in a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=BARE | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return without_gloo(done.stdout)


# What is wrong, as an environment and a change of torch, and the error.
WRONG: list[tuple[dict[str, str], str, str]] = [
    ({"INAGG_TAKE_OVER": "gloo,glo"}, "", "of gloo and nccl (got 'glo')"),
    ({"INAGG_TAKE_OVER": "mpi"}, "", "(got 'mpi')"),
    ({"INAGG_TAKEOVER": "gloo"}, "", "INAGG_TAKEOVER is not a setting; did you mean INAGG_TAKE_OVER?"),
    ({"INAGG_TAKE_OVER": "gloo", "RANKS": "2"}, "", "no controller is given"),
    ({"INAGG_TAKE_OVER": "gloo", "INAGG_LANE_BITS": "7"}, "", "INAGG_LANE_BITS"),
    (
        {"INAGG_TAKE_OVER": "gloo", "BACKEND": "cpu:gloo,xpu:xccl"},
        "",
        "INAGG_TAKE_OVER=gloo: inagg cannot take over the backend 'cpu:gloo,xpu:xccl'",
    ),
    ({"INAGG_TAKE_OVER": "gloo"}, "del c10d._new_process_group_helper", "has no place to do it"),
    (
        {"INAGG_TAKE_OVER": "gloo"},
        "c10d._new_process_group_helper = lambda size, rank, backend: None",
        "has no place to do it (its _new_process_group_helper has no backend_options",
    ),
]


def test_what_is_wrong_is_an_error_of_init_process_group() -> None:
    seen = python(
        PRINT_WORLDS, json.dumps([(environment, change) for environment, change, _ in WRONG])
    ).splitlines()
    assert len(seen) == len(WRONG)
    for line, (_, _, message) in zip(seen, WRONG, strict=True):
        assert line.startswith("ConfigurationError ")
        assert message in line


def test_a_controller_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    environment = {"INAGG_TAKE_OVER": "gloo", "INAGG_CONTROLLER": f"http://127.0.0.1:{free_port()}"}
    environment |= {"RANKS": "2", "STORE": str(tmp_path / "store"), "INAGG_SETUP_TIMEOUT_S": "1"}
    fork = (
        "import os, sys\n"
        "if (child := os.fork()) == 0:\n"
        "    os.environ['RANK'], sys.stdout = '1', open(os.devnull, 'w')\n"
        "BACKEND = 'gloo'"
    )
    seen = python(f"{fork}{PRINT_WORLD}\nif child: os.waitpid(child, 0)", **environment)
    assert seen.startswith("ControllerUnreachableError no answer from the controller")


def test_a_name_that_is_not_in_the_list_stays_the_programs_own(controller: str) -> None:
    environment = {"INAGG_TAKE_OVER": "nccl", "INAGG_CONTROLLER": controller}
    assert (
        python(f"BACKEND = 'gloo'{PRINT_WORLD}", **environment) == "gloo torch.distributed.distributed_c10d"
    )


def test_a_broken_installation_is_an_error_of_init_process_group() -> None:
    program = (
        "import sys, types\n"
        "import inagg.registration as registration\n"
        "def broken(): raise RuntimeError('no backend')\n"
        "registration.register = broken\n"
        f"BACKEND = 'gloo'{PRINT_WORLD}"
    )
    seen = python(program, INAGG_TAKE_OVER="gloo")
    assert seen.startswith("ConfigurationError")
    assert "no backend" in seen


def test_importing_inagg_takes_over_where_torch_loads_no_backends(controller: str) -> None:
    program = f"import torch, inagg; BACKEND = 'gloo'{PRINT_WORLD}"
    environment = {
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "INAGG_TAKE_OVER": "gloo",
        "INAGG_CONTROLLER": controller,
    }
    seen = python(program, **environment, INAGG_AGGREGATION="server")
    assert seen == "gloo inagg.process_group"


def launch(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [INAGG, "launch", *arguments],
        env=BARE | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ([], {}, "name the command that starts the program"),
        (["true"], {}, "no controller is given"),
        (
            ["--controller", "http://h:1", "there-is-no-such-command"],
            {},
            "there is no command there-is-no-such-command",
        ),
        (["--take-over", "ucc", "true"], {}, "(got 'ucc')"),
        (["--set", "lane_bits=7", "true"], {}, "lane_bits"),
        (
            ["--controller", "http://h:1", "true"],
            {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            "torch would not load inagg",
        ),
    ],
)
def test_launch_explains_what_is_wrong(
    arguments: list[str], environment: dict[str, str], message: str
) -> None:
    done = launch(*arguments, **environment)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_launch_gives_the_program_its_environment_and_returns_its_status(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import json, os, sys\n"
        "given = {name: value for name, value in os.environ.items() if name.startswith('INAGG_')}\n"
        "print(json.dumps([given, sys.argv[1:]]))\n"
        "sys.exit(7)\n"
    )
    done = launch("--set", "slots=16", str(script), "--set", "x", INAGG_CONTROLLER="http://h:1")
    assert done.returncode == 7
    assert json.loads(done.stdout) == [
        {"INAGG_CONTROLLER": "http://h:1", "INAGG_SLOTS": "16", "INAGG_TAKE_OVER": "gloo,nccl"},
        ["--set", "x"],
    ]
