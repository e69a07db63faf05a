# SPDX-License-Identifier: Apache-2.0
"""What `inagg slots` shows of registers, without a testbed."""

import pytest
from rich.console import Console

from inagg_contract.documents import JobStatus, RankPlace, TreeSwitch
from inagg_testbed.operate.slots import Cell, on_switch, rendered

EPOCH, OTHER = 7, 6
EMPTY = Cell(0, 0, 0, 0)


def a_job(
    *ranks: int, below: tuple[str, ...] = (), above: tuple[str, ...] = (), aggregation: str = "leased"
) -> JobStatus:
    """A job of two slots, whose lease at the switch s1 begins at version 4."""
    versions = 0 if aggregation == "shared" else 4
    place = TreeSwitch.model_construct(
        switch="s1", first_slot_version=4, slot_versions=versions, ranks=ranks, below=below, above=above
    )
    return JobStatus.model_construct(
        id=1,
        name="train.py",
        workers=4,
        slots=2,
        epoch=EPOCH,
        aggregation=aggregation,
        tree=(place,),
        ranks=tuple(
            RankPlace.model_construct(rank=rank, ip=f"10.0.0.{rank}", host=f"h{rank}") for rank in range(4)
        ),
    )


def shown(job: JobStatus, *cells: Cell, everything: bool = False) -> list[str]:
    """The lines for a switch whose version 4 and the next have these contents."""
    found = on_switch(job, "s1", [EMPTY] * 4 + [*cells] + [EMPTY] * 4)
    console = Console(width=200)
    with console.capture() as capture:
        console.print(rendered({"s1": [found]}, everything=everything))
    return [line.strip() for line in capture.get().splitlines() if "──" not in line]


def test_versions_of_other_jobs_are_left_out() -> None:
    lines = shown(a_job(0, 1), Cell(OTHER, 9, 0b11, 1), EMPTY)
    assert lines == ["job 1 (train.py) on s1, versions of 2 slots: not used yet"]


def test_versions_that_wait_for_the_same_members_share_a_line() -> None:
    cells = [
        Cell(EPOCH, 4, 0b11, 1),
        Cell(EPOCH, 5, 0b01, 0),
        Cell(EPOCH, 6, 0b01, 0),
        Cell(EPOCH, 7, 0b10, 0),
    ]
    lines = shown(a_job(0, 1), *cells)
    assert lines[0] == "job 1 (train.py) on s1, versions of 2 slots: 3 summing, 1 final"
    assert [" ".join(line.split()) for line in lines[2:]] == [
        "rank 0 rank 1 (h1, 10.0.0.1) 2 5 to 6",
        "rank 1 rank 0 (h0, 10.0.0.0) 1 7",
    ]


def test_every_version_has_its_slot_and_version() -> None:
    lines = shown(a_job(0, 1), *(Cell(EPOCH, chunk, 0b11, 1) for chunk in range(4, 8)), everything=True)
    assert [line.split()[:3] for line in lines[2:]] == [
        ["0.0", "4", "final"],
        ["1.0", "5", "final"],
        ["0.1", "6", "final"],
        ["1.1", "7", "final"],
    ]


@pytest.mark.parametrize(
    ("job", "cell", "line"),
    [
        (a_job(0, 1, 3, below=("leaf1",)), Cell(EPOCH, 4, 0b0111, 0), "0.0 4 summing ranks 0-1, 3 leaf1"),
        (a_job(below=("leaf1", "leaf2")), Cell(EPOCH, 4, 0b01, 0), "0.0 4 summing leaf1 leaf2"),
        (a_job(2, 3, above=("root",)), Cell(EPOCH, 4, 0b11, 0), "0.0 4 sent up ranks 2-3 -"),
        (a_job(2, 3, above=("root",)), Cell(EPOCH, 4, 0b11, 1), "0.0 4 final ranks 2-3 -"),
        # The registers are read one after the other, so final may be older than members.
        (a_job(2, 3), Cell(EPOCH, 4, 0b11, 0), "0.0 4 final ranks 2-3 -"),
        (a_job(0, 1, aggregation="shared"), Cell(EPOCH, 4, 0b1000, 0), "4 4 summing rank 3 ranks 0-2"),
        (a_job(0, 1, aggregation="shared"), Cell(EPOCH, 4, 0, 0), "4 4 sent on - -"),
    ],
)
def test_a_version(job: JobStatus, cell: Cell, line: str) -> None:
    assert [" ".join(each.split()) for each in shown(job, cell, everything=True)[2:]] == [line]
