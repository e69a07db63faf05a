# SPDX-License-Identifier: Apache-2.0
"""The pages say the numbers of the code, and their paragraphs are filled.

`STATED` has a row for each number of a page that is a constant of the code. The row fails if the constant changes, if
a page says another number, and if no page says the number. In the last case change the expression, or remove the row.
"""

import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from inagg.device.sums import PORTION
from inagg.options import Options
from inagg.sums.elements import MOST_INTEGERS
from inagg.sums.journal import REMEMBERED
from inagg.torch_versions import NEWEST, OLDEST
from inagg_contract import constants, documents
from inagg_controller import cli as controller
from inagg_controller.configuration import DEFAULT_SHARED_SLOTS
from inagg_controller.http import api, connections, guard
from inagg_controller.jobs import calls, limits, resources, servers
from inagg_testbed.network.fabric import MAX_HOSTS
from inagg_testbed.network.switches import P4RUNTIME_ADDRESS
from tests import ROOT

PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += [ROOT / "p4" / "README.md", ROOT / "switch" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "docs" / "course").rglob("README.md"))
GENERATED = {"controller-api.md"}
TEXTS = {page: page.read_text() for page in PAGES}
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
)
LIMITS = limits.Limits(slot_versions=0)
POLICY = limits.Policy()


def option(name: str) -> Any:
    """The default of an option of inagg-controller."""
    return inspect.signature(controller.run).parameters[name].default


def shown(value: object) -> str:
    """A number as pages write it."""
    if isinstance(value, tuple):
        return ".".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


KIB, MIB = 1 << 10, 1 << 20
BEAT_S = POLICY.heartbeat_timeout_s
MEMBERS = 8 * constants.MEMBERS_BYTES
P4RUNTIME_PORT = P4RUNTIME_ADDRESS.rpartition(":")[2]

# An expression whose groups are numbers, and what the code has for them. A space stands for any white space. Numbers
# may have commas. Every place in the pages that an expression finds must have these numbers.
STATED: list[tuple[str, tuple[object, ...]]] = [
    # sizes of jobs
    (r"(\d+) workers on a tree", (documents.MOST_WORKERS,)),
    (r"(\d+) on one switch, (\d+) on a tree", (MEMBERS, documents.MOST_WORKERS)),
    (r"ranks are 0 to N-1, N is 1 to (\d+)", (documents.MOST_WORKERS,)),
    (r"A switch sums for up to (\d+) workers", (MEMBERS,)),
    (r"a switch has at most (\d+) of a job", (LIMITS.job_members,)),
    (r"(\d+) ranks a job \| three quarters \| the slots", (documents.MOST_WORKERS,)),
    (r"(\d+) ranks a job \| three quarters \| (\d+) \|", (servers.MOST_RANKS, LIMITS.max_server_jobs)),
    (r"1 <= k <= min\(S, (\d+)\)", (servers.MOST_SERVERS,)),
    (r"A testbed has up to (\d+) hosts", (MAX_HOSTS,)),
    # ports
    (r"(?:--listen|--controller|CONTROLLER=) ?(?:http://)?[\d.]+:(\d+)", (documents.DEFAULT_PORT,)),
    (r"`INAGG_PORT` = (\d+) \((0x\w+)\)", (constants.INAGG_PORT, f"{constants.INAGG_PORT:#x}")),
    (r"UDP to and from port (\d+)", (constants.INAGG_PORT,)),
    (r"UDP datagrams to port (0x\w+)", (f"{constants.INAGG_PORT:#x}",)),
    (r"at UDP port (\d+)", (documents.DEFAULT_SERVER_PORT,)),
    (r"--grpc [\d.]+:(\d+)", (P4RUNTIME_PORT,)),
    (r"--cpu-port (\d+)", (constants.CPU_PORT,)),
    # the protocol
    (r"inagg protocol, version (\d+)", (constants.INAGG_VERSION,)),
    (r"`CPU_PORT` \((\d+)\)", (constants.CPU_PORT,)),
    (r"`ALL_RANKS` \((\d+)\)", (constants.ALL_RANKS,)),
    (r"FLAG_AGAIN \((0x\w+)\)", (f"{constants.FLAG_AGAIN:#04x}",)),
    (r"EXPONENT_CHECK \((\d+)\)", (constants.EXPONENT_CHECK,)),
    (r"(\d+) \(`MAX_EXPONENT`\)", (constants.MAX_EXPONENT,)),
    (r"### 2.1 Header \((\d+) bytes\)", (constants.INAGG_HEADER_BYTES,)),
    # options of a group
    (r"`INAGG_SLOTS`, (\d+) by default", (Options.model_fields["slots"].default,)),
    (r"asks for (\d+) slots \(`slots`\)", (Options.model_fields["slots"].default,)),
    (r"`wait_s`, (\d+) by default", (Options.model_fields["wait_s"].default,)),
    # options and limits of the controller
    (r"(\d+) s without a heartbeat \(`inagg-controller --heartbeat-timeout-s`\)", (BEAT_S,)),
    (r"(\d+) s is four times `--heartbeat-timeout-s`", (documents.OUTAGE_TIMEOUTS * BEAT_S,)),
    (r"after (\d+) s \(`(?:inagg-controller )?--link-timeout-s`\)", (option("link_timeout_s"),)),
    (r"`--idle-timeout-s` \((\d+)\)", (option("idle_timeout_s"),)),
    (r"`--connections-per-host` connections \((\d+)\)", (option("connections_per_host"),)),
    (r"for shared jobs, (\d+) by default", (DEFAULT_SHARED_SLOTS,)),
    (r"(\d+) ms,? \(?`--shared-expiry-ms`", (option("shared_expiry_ms"),)),
    (r"by default (239[\d./]+) \(the organization-local", (option("multicast"),)),
    (r"gets (\d+), or up to a quarter", (resources._AMPLE_SLOTS,)),
    (r"Fewer than (\d+) fill no link", (resources._FEWEST_USEFUL_SLOTS,)),
    (
        r"A body may have (\d+) KiB, a rank's or the operator's (\d+) MiB, and (\d+) s to arrive",
        (guard._BODY_BYTES // KIB, documents.MOST_BODY_BYTES // MIB, guard._BODY_S),
    ),
    (
        r"may have (\d+) MiB at a time, those of all hosts (\d+) MiB",
        (guard._HOST_BYTES // MIB, guard._ALL_BYTES // MIB),
    ),
    (r"open files as far as it may, to (\d+) at most", (connections._MOST + connections._OTHER_FILES,)),
    (r"the (\d+) jobs on servers", (LIMITS.max_server_jobs,)),
    (r"three quarters \| (\d+), with (\d+) ranks", (LIMITS.max_ended, LIMITS.max_ended_ranks)),
    (r"the answer, (\d+) s at most", (api._LONGEST_WAIT_S,)),
    (r"`ask`\), at most (\d+)", (documents.MOST_CALLS,)),
    (r"keeps at least the last (\d+)", (REMEMBERED,)),
    (r"fit into a heartbeat of (\d+) MiB", (documents.MOST_BODY_BYTES // MIB,)),
    (r"of different texts the controller keeps (\d+) characters", (calls._MOST_TEXT,)),
    (r"nothing is heard for (\d+) s", (servers.TIMEOUT_S,)),
    # the host library
    (r"int64 up to (\d+) elements", (MOST_INTEGERS,)),
    (r"portions of 2\^(\d+) elements", (PORTION.bit_length() - 1,)),
    (r"torch (2\.\d+) to (2\.\d+) and Python|runs with torch (2\.\d+) to (2\.\d+)", (OLDEST, NEWEST)),
    (r"inagg's own tests run with ([\d.]+\d)", (PINS["torch"],)),
]


@pytest.mark.parametrize(
    ("expression", "values"), STATED, ids=lambda one: one if isinstance(one, str) else ""
)
def test_pages_say_the_numbers_of_the_code(expression: str, values: tuple[object, ...]) -> None:
    searched = re.compile(expression.replace(" ", r"\s+"))
    found = {
        (page.name, tuple(group for group in match.groups() if group is not None))
        for page, text in TEXTS.items()
        for match in searched.finditer(re.sub(r"(?<=\d),(?=\d{3}\b)", "", text))
    }
    assert found, "no page says this"
    assert {numbers for _, numbers in found} == {tuple(map(shown, values))}, found


def paragraphs(text: str) -> Iterator[list[str]]:
    """The lines of paragraphs and of items of lists. Tables, headings and code have none."""
    other = re.compile(r"\s*(?:\||#|<!--|---)|    ")
    starts = re.compile(r"\s*(?:[-*] |\d+\. )")
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)
    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        if not line.strip() or other.match(line) or starts.match(line):
            if paragraph:
                yield paragraph
            paragraph = []
        if line.strip() and not other.match(line):
            paragraph.append(line)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name not in GENERATED],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_paragraphs_are_filled(page: Path) -> None:
    """No line is longer than 128, and none ends 18 or more before that although the next word would fit there."""
    word = re.compile(r"(?:`[^`]*`|!?\[[^]]*\]\([^)]*\)|\S)+")  # code and links stay whole
    for lines in paragraphs(TEXTS[page]):
        for line, following in pairwise(lines):
            first = word.match(following.strip())
            assert first is None or len(line) + 1 + len(first[0]) > 110, f"is broken early: {line}"
        assert [line for line in lines if len(line) > 128 and " " in line.strip()] == []
