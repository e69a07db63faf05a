# SPDX-License-Identifier: Apache-2.0
"""The labs on a testbed: the commands of their READMEs give the sums that the READMEs show."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inagg_switch.labs import LABS, copy_lab
from inagg_testbed.network.exercise.testbed import open_exercise
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.topology import run_in_namespace
from tests.free_ports import free_port

pytestmark = pytest.mark.netns

MOST_S = 60


@contextmanager
def solution(lab: int, folder: Path) -> Iterator[Testbed]:
    """The testbed of a lab, with the solution."""
    copy_lab(lab, folder / "lab", solution=True)
    with open_exercise(
        folder / "lab/topology.json",
        program=folder / f"lab/solution/lab{lab}.p4",
        results_root=folder / "results",
        state_dir=folder / "state",
        grpc_port=free_port(),
    ) as testbed:
        yield testbed


def workers(testbed: Testbed, folder: Path, commands: list[tuple[str, str]]) -> list[str]:
    """What workers print who run at the same time. commands: host and options."""
    running = []
    for host, options in commands:
        pid = testbed.network.host(int(host.removeprefix("h"))).pid
        command = ["mnexec", "-a", str(pid), sys.executable, "worker.py", *options.split()]
        running.append(
            subprocess.Popen(
                command, cwd=folder / "lab", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    try:
        return [process.communicate(timeout=MOST_S)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


def last_lines(printed: list[str]) -> list[str]:
    return [text.splitlines()[-1] for text in printed]


def of_readme(folder: Path) -> list[tuple[str, str]]:
    """(host, options) of each command `inagg exec` in the section "Run it"."""
    text = (folder / "lab/README.md").read_text()
    section = text.partition("\n## Run it\n")[2].partition("\n## ")[0]
    return re.findall(r"^\$ sudo inagg exec (h\d) -- python3 worker\.py (.*?)(?: &)?$", section, re.MULTILINE)


def shown_sums(folder: Path) -> set[str]:
    return set(re.findall(r"^sums: .*$", (folder / "lab/README.md").read_text(), re.MULTILINE))


@pytest.mark.parametrize("lab", LABS)
def test_the_commands_of_the_readme_give_its_sums(tmp_path: Path, lab: int) -> None:
    with solution(lab, tmp_path) as testbed:
        commands = of_readme(tmp_path)
        assert len(commands) >= 3
        found = last_lines(workers(testbed, tmp_path, commands))
        assert set(found) == shown_sums(tmp_path)


def test_a_window_that_is_too_large_meets_busy_slots(tmp_path: Path) -> None:
    """Lab 2. Two workers are ahead of the third one."""
    with solution(2, tmp_path) as testbed:
        values = "1 2 3 4 5 6 7 8"
        commands = [(f"h{n + 1}", f"{n} --window 8 {values}") for n in range(3)]
        printed = workers(testbed, tmp_path, commands)
        assert "chunk 4: busy" in "".join(printed)
        assert last_lines(printed) == ["sums: 3 6 9 12 15 18 21 24"] * 3


def test_a_worker_without_the_others_gives_up(tmp_path: Path) -> None:
    with solution(1, tmp_path) as testbed:
        (said,) = workers(testbed, tmp_path, [("h1", "0 --patience 0.2 5")])
        assert said == "worker 0: no result of chunk 0 within 0.2 s\n"


def test_a_host_of_another_job_cannot_take_part(tmp_path: Path) -> None:
    """Lab 4."""
    with solution(4, tmp_path) as testbed:
        (forger,) = workers(testbed, tmp_path, [("h3", "1 --job 1 --patience 0.2 99")])
        assert "no result" in forger
        assert last_lines(workers(testbed, tmp_path, [("h1", "0 5"), ("h2", "1 6")])) == ["sums: 11"] * 2


def test_a_packet_crosses_a_link_between_switches_once(tmp_path: Path) -> None:
    """Lab 5: one partial sum up, one result down."""
    with solution(5, tmp_path) as testbed:
        counted = "cat /sys/class/net/{0}/statistics/{1}_packets"
        port = testbed.network.ports("s3")[1]

        def packets() -> list[int]:
            pid = testbed.network.pid_of("s3")
            return [int(run_in_namespace(pid, counted.format(port, way))) for way in ("rx", "tx")]

        before = packets()
        values = " ".join(map(str, range(100)))
        commands = [(f"h{n}", f"{(n - 1) % 2} --window 4 {values}") for n in (1, 2, 3, 4)]
        found = last_lines(workers(testbed, tmp_path, commands))
        assert found == ["sums: " + " ".join(str(4 * n) for n in range(100))] * 4
        received, sent = (now - then for now, then in zip(packets(), before, strict=True))
        assert 100 <= received <= 120  # the kernel's own packets, such as router solicitations
        assert 100 <= sent <= 120
