# SPDX-License-Identifier: Apache-2.0
"""Programs of the labs at every stage of a student's work, and mistakes."""

from dataclasses import dataclass

from inagg_switch.labs import LABS, course_folder, render, tasks_of


def source(lab: int) -> str:
    """The lab's program with its marks."""
    return (course_folder() / f"lab{lab}" / f"lab{lab}.p4").read_text()


# (lab, tasks that are solved): none at first, all at last.
STAGES = [(lab, n) for lab in LABS for n in range(len(tasks_of(source(lab))) + 1)]


@dataclass(frozen=True)
class Mistake:
    """What a student of a lab has in place of some text of the solution; or a task that the student has left out.

    file: the first file of tests that fails. hint: the beginning of the first hint that the student sees.
    """

    lab: int
    name: str
    file: str
    hint: str
    text: str = ""
    instead: str = ""
    left_out: int = 0

    @property
    def program(self) -> str:
        """The wrong program."""
        tasks = [task for task in tasks_of(source(self.lab)) if task != self.left_out]
        program = render(source(self.lab), tasks)
        if not self.left_out:
            assert program.count(self.text) == 1, self.text
        return program.replace(self.text, self.instead) if self.text else program


MISTAKES = [
    Mistake(
        lab=1, name="result to the sender only", file="task1", hint="The third contribution is the result",
        text="sm.mcast_grp = ALL_WORKERS;", instead="sm.egress_spec = sm.ingress_port;",
    ),
    Mistake(
        lab=1, name="count not cleared", file="task1", hint="The second round has a result",
        text="count.write(0, 0);",
    ),
    Mistake(
        lab=1, name="result keeps the last value", file="task2", hint="The result is 1 + 20 + 300",
        text="hdr.agg.value = total;",
    ),
    Mistake(
        lab=2, name="index beyond the register", file="task1", hint="Chunk 5 is 2 + 20 + 200",
        text="hdr.agg.chunk & (SLOTS - 1)", instead="hdr.agg.chunk",
    ),
    Mistake(
        lab=2, name="slot not cleared", file="task3", hint="Chunk 4 finds slot 0 free",
        text="sum.write(slot, 0);",
    ),
    Mistake(
        lab=2, name="count not cleared", file="task3", hint="Chunk 4 finds slot 0 free",
        text="count.write(slot, 0);",
    ),
    Mistake(
        lab=3, name="no duplicate check", file="task1", hint="The result of chunk 0 is 1 + 2 + 3 = 6.", left_out=1,
    ),
    Mistake(
        lab=3, name="result again, with the worker's own value", file="task2", hint="Worker 1 has missed the result",
        text="become_result(total);\n                    sm.egress_spec",
        instead="become_result(hdr.agg.value);\n                    sm.egress_spec",
    ),
    Mistake(
        lab=3, name="one version", file="task3", hint="Worker 1 has missed the result of chunk 0", left_out=3,
    ),
    Mistake(
        lab=3, name="unsigned comparison", file="task4", hint="Chunk numbers wrap",
        text="(int<32>) (hdr.agg.chunk - held) < 0", instead="hdr.agg.chunk < held",
    ),
    Mistake(
        lab=4, name="job not in the index", file="task2", hint="Chunk 0 of job 1 and chunk 0 of job 2", left_out=2,
    ),
    Mistake(
        lab=4, name="mask over base and chunk", file="task2", hint="Chunk 0 of job 1 and chunk 0 of job 2",
        text="meta.base + (hdr.agg.chunk & meta.mask)", instead="(meta.base + hdr.agg.chunk) & meta.mask",
    ),
    Mistake(
        lab=4, name="group of one job", file="task1", hint="Chunk 1 of job 2",
        text="meta.group = group;", instead="meta.group = 1;",
    ),
    Mistake(
        lab=5, name="the worker's number goes up", file="task1", hint="The same with worker 0 as the last one",
        text="hdr.agg.worker = meta.number;",
    ),
    Mistake(
        lab=5, name="partial sum as result", file="task3", hint="Worker 0 sends again", left_out=3,
    ),
    Mistake(
        lab=5, name="any result from above is taken", file="task2", hint="Chunk 8 has the same version",
        text="if (hdr.agg.chunk == held && bits == meta.all_bits && done == 0)", instead="if (done == 0)",
    ),
]  # fmt: skip
