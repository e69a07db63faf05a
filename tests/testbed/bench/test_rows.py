# SPDX-License-Identifier: Apache-2.0
"""The rows of a benchmark, computed from its workers' events."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from inagg_testbed.bench.allreduce import AllReduceBench, title
from inagg_testbed.bench.plan import SUMMING, BackendSpec, Case, Plan
from inagg_testbed.bench.rows import (
    Conditions,
    line_rate_fraction,
    links_table,
    make_rows,
    table,
    wrong_results,
)
from inagg_testbed.bench.theory import theory, theory_bytes
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network.fabric import Fabric
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.requirements import SwitchKind
from inagg_testbed.terminal import print_table

GLOO = BackendSpec.parse("gloo")
CASE = Case(workers=4, elements=1_000_000, backends=("gloo",), iterations=3)
CONDITIONS = Conditions(link_name="100mbit", rate_bps=100_000_000, mtu=1500, words=4)


def bench() -> AllReduceBench:
    return AllReduceBench(
        link_name="100mbit",
        link=LinkSpec.parse("100mbit"),
        cases=(replace(CASE, backends=("gloo", "inagg:16")),),
    )


def event(rank: int, index: int, seconds: float, **changes: Any) -> dict[str, Any]:
    right = {
        "case": 0,
        "backend": "gloo",
        "loss": 0.0,
        "digest": f"sum {index}",
        "retransmits": 1,
        "packets": 1000,
        "cpu_seconds": 0.1,
        "carried": {"packets_sent": 60, "messages_sent": 3, "packets_received": 60, "messages_received": 2},
        "transport": {"srtt_s": 0.25, "window": 32},
    }
    compared = {"max_abs_error": 1e-6, "bound": 1e-5, "wrong_index": None} if rank == 0 else {}
    crossed = {"link_bytes": 4_200_000 + index} if rank == 0 else {}
    return {"rank": rank, "index": index, "seconds": seconds, **right, **compared, **crossed, **changes}


def events(scale: float = 1.0, **changes: Any) -> list[dict[str, Any]]:
    """Three iterations of two ranks; the slower rank takes 0.5, 0.4 and 0.6 s times scale."""
    slow = {0: 0.5, 1: 0.4, 2: 0.6}
    return [
        event(rank, index, scale * (slow[index] - 0.1 * rank), **changes) for index in slow for rank in (0, 1)
    ]


def rows(
    case: Case, *found: list[dict[str, Any]], conditions: Conditions = CONDITIONS
) -> list[dict[str, Any]]:
    return make_rows(conditions, (case,), [each for some in found for each in some])


def test_a_row_has_exactly_these_fields() -> None:
    (row,) = rows(CASE, events())
    assert list(row) == [
        *(
            "experiment",
            "backend",
            "lane_bits",
            "workers",
            "elements",
            "dtype",
            "topology",
            "rank_order",
            "link",
            "uplink",
            "mtu",
            "words",
            "loss",
        ),
        *(
            "iterations",
            "warmup",
            "back_to_back",
            "time_ms",
            "times_ms",
            "ratio_to_gloo",
            "ratio_to_lossless",
        ),
        *(
            "algbw_MBps",
            "busbw_MBps",
            "line_rate_fraction",
            "link_bytes",
            "theory_bytes",
            "theory",
            "steps",
            "in_switch",
            "cpu_s_per_GB",
        ),
        *("packets", "retransmits", "packets_per_message", "transport", "max_abs_error", "bound", "checked"),
    ]
    assert list(row["time_ms"]) == ["p50", "p95", "min"]


def test_the_time_of_an_iteration_is_that_of_its_slowest_rank() -> None:
    (row,) = rows(CASE, events())
    assert row["time_ms"] == pytest.approx({"p50": 500.0, "p95": 590.0, "min": 400.0})


def test_bandwidths_are_those_of_nccl_tests() -> None:
    (row,) = rows(CASE, events())
    assert row["algbw_MBps"] == pytest.approx(8.0)  # 4 MB in 0.5 s
    assert row["busbw_MBps"] == pytest.approx(12.0)  # x 2(4-1)/4


def test_packets_of_all_ranks_and_iterations_add_up() -> None:
    (row,) = rows(CASE, events())
    assert (row["packets"], row["retransmits"]) == (6000, 6)


def test_the_cpu_time_is_that_of_all_ranks_for_each_gigabyte_of_tensor() -> None:
    busy = events()
    busy[0]["cpu_seconds"] = 5.0  # in one of three iterations
    (row,) = rows(CASE, busy)
    assert row["cpu_s_per_GB"] == pytest.approx(0.2 / 0.004)


def test_the_ratio_to_gloo_is_the_median_of_the_rounds() -> None:
    case = replace(CASE, backends=("gloo", "inagg:32"))
    inagg = events(0.5, backend="inagg:32")
    for each in inagg:
        each["seconds"] /= 4 if each["index"] == 0 else 1  # 8 times as fast in one round, twice in the others
    gloo_row, inagg_row = rows(case, events(), inagg)
    assert (gloo_row["ratio_to_gloo"], inagg_row["ratio_to_gloo"]) == pytest.approx((1.0, 2.0))


def test_without_gloo_there_is_no_ratio() -> None:
    (row,) = rows(replace(CASE, backends=("inagg:32",)), events(backend="inagg:32"))
    assert row["ratio_to_gloo"] is None


def test_a_lossy_row_is_compared_with_the_same_backend_without_loss() -> None:
    case = replace(CASE, backends=("gloo", "inagg:32", "inagg:8"), losses=(0.0, 0.01))
    found = rows(
        case,
        events(),
        events(0.5, backend="inagg:32"),
        events(0.1, backend="inagg:8"),
        events(0.6, backend="inagg:32", loss=0.01),
        events(0.3, backend="inagg:8", loss=0.01),
    )
    assert [(row["backend"], row["lane_bits"], row["loss"]) for row in found] == [
        *(("gloo", None, 0.0), ("inagg", 32, 0.0), ("inagg", 8, 0.0)),
        *(("inagg", 32, 0.01), ("inagg", 8, 0.01)),
    ]
    assert [row["ratio_to_lossless"] for row in found] == [
        None,
        None,
        None,
        pytest.approx(1.2),
        pytest.approx(3),
    ]
    assert [row["ratio_to_gloo"] for row in found[3:]] == [None, None]


def test_what_the_transport_says_of_itself_is_in_inaggs_rows_alone() -> None:
    case = replace(CASE, backends=("gloo", "inagg:32"))
    gloo_row, inagg_row = rows(case, events(), events(backend="inagg:32"))
    assert inagg_row["transport"] == {"srtt_s": 0.25, "window": 32}
    assert inagg_row["packets_per_message"] == {"sent": 20.0, "received": 30.0}
    assert gloo_row["packets_per_message"] is None
    assert (gloo_row["transport"], gloo_row["words"], inagg_row["words"]) == (None, None, 4)


def test_rows_come_in_the_order_of_the_cases() -> None:
    cases = (replace(CASE, workers=2), CASE)
    found = make_rows(CONDITIONS, cases, [*events(case=1), *events(case=0)])
    assert [row["workers"] for row in found] == [2, 4]


@pytest.mark.parametrize(
    ("backend", "fraction"),
    [
        ("inagg:32", 0.64),  # 32 Mbit each way in 0.5 s of 100 Mbit/s
        ("inagg:16", 0.32),
        ("inagg:8", 0.16),
        ("gloo", 0.96),  # a ring sends 2(N-1)/N times as much
        ("inagg-shared:32", 0.64),  # a rank and the server in its process are on one host
        ("inagg-server:16", 0.48),  # and so do the servers of the ranks
        ("inagg-server-1:8", 0.64),  # one server's link carries the contributions of all four
    ],
)
def test_line_rate_fraction_counts_the_payload_that_the_algorithm_sends(
    backend: str, fraction: float
) -> None:
    spec = BackendSpec.parse(backend)
    link_bytes = theory_bytes(theory(spec, 4, ()), spec, 1_000_000)
    assert line_rate_fraction(link_bytes, 100_000_000, 0.5) == pytest.approx(fraction)


@pytest.mark.parametrize(
    ("workers", "racks", "share"),
    [(2, 1, 1.0), (15, 1, 1.0), (16, 1, 1 + 1 / 16), (8, 2, 1 + 1 / 8), (64, 1, 1 + 1 / 64)],
)
def test_shared_slots_send_a_rank_its_own_servers_results_on_trees_and_of_many_servers(
    workers: int, racks: int, share: float
) -> None:
    size = workers // racks
    ranks = tuple(tuple(range(first, first + size)) for first in range(0, workers, size))
    assert theory(BackendSpec.parse("inagg-shared:32"), workers, ranks).share == share


@pytest.mark.parametrize(
    ("racks", "share", "formula", "steps"),
    [
        ([8], 1.75, "2(N-1)/N S", 2),
        ([1] * 8, 1.75, "2(N-1)/N S", 2),
        ([4, 4], 1.75, "2(N-1)/N S", 4),
        ([2, 2, 2, 2], 1.75, "2(N-1)/N S", 4),
        # Rank 0 is busiest, of 8 ways: it sends 6 chunks to other servers, 7 results of its own way, and of rank 7's
        # way the sum of its rack up, and 6 results.
        ([7, 1], 2.5, "2.5 S", 4),
    ],
)
def test_servers_within_racks_send_no_more_over_a_hosts_link(
    racks: list[int], share: float, formula: str, steps: int
) -> None:
    ranks = iter(range(8))
    found = theory(BackendSpec.parse("inagg-server"), 8, [[next(ranks) for _ in range(n)] for n in racks])
    assert (found.share, found.formula, found.steps) == (share, formula, steps)


def test_an_unshaped_link_has_no_line_rate() -> None:
    assert line_rate_fraction(6_000_000, None, 0.5) is None


def test_a_wrong_result_is_described_and_unchecks_its_row() -> None:
    case = replace(CASE, backends=("inagg:16",))
    found = events(backend="inagg:16")
    found[4] |= {"wrong_index": 17, "wrong_value": "0.25", "exact_value": 0.5, "max_abs_error": None}
    (row,) = rows(case, found)
    assert not row["checked"]
    assert row["max_abs_error"] == float("inf")
    (text,) = wrong_results((case,), found)
    assert text.startswith(
        "inagg:16, 4 workers, 1000000 elements, iteration 2, rank 0: element 17 is 0.25, exactly"
    )
    assert table([row])[1][0][-1] == "WRONG"


def test_ranks_that_disagree_are_wrong() -> None:
    case = replace(CASE, backends=("inagg:16",), losses=(0.05,))
    found = events(backend="inagg:16", loss=0.05)
    found[3]["digest"] = "other"
    (row,) = rows(case, found)
    assert not row["checked"]
    (text,) = wrong_results((case,), found)
    assert text.endswith("5.0% loss, iteration 1: the ranks have different results")


@pytest.mark.parametrize(
    "text", ["nccl", "gloo:32", "inagg:64", "inagg:x", "inagg-server:64", "inagg-server-2:32", ""]
)
def test_an_unknown_backend_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="inagg:32"):
        BackendSpec.parse(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": 0}, "0 slots: want a power of two"),
        ({"slots": 1}, "1 slots"),
        ({"slots": 96}, "96 slots"),
        (
            {"cases": (CASE, CASE)},
            "allreduce of 1000000 float32s at 4, allreduce of 1000000 float32s at 4: a value is given twice",
        ),
        (
            {"cases": (replace(CASE, backends=("gloo", "gloo")),)},
            "backend gloo, gloo: a value is given twice",
        ),
        (
            {"cases": (replace(CASE, backends=("inagg:8",), losses=(0.6,)),)},
            r"loss 0\.6 is outside 0 to 0\.5",
        ),
        (
            {"cases": (replace(CASE, backends=("inagg:8",), losses=(0.1, 0.1)),)},
            r"loss 0\.1, 0\.1: a value is given twice",
        ),
        ({"cases": (replace(CASE, losses=(0.1,)),)}, "only aggregation packets are lost"),
        (
            {"switch": "bridge"},
            "a bridge neither aggregates .*: measure gloo, inagg-server and inagg-server-1",
        ),
        ({"switch": "bridge", "cases": (replace(CASE, losses=(0.1,)),)}, "nor drops packets"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        replace(bench(), **changes)


def test_gloo_and_servers_can_be_measured_over_a_bridge() -> None:
    assert replace(bench(), switch="bridge", cases=(CASE,)).conditions.words is None
    served = replace(CASE, backends=("gloo", "inagg-server:32", "inagg-server-1:8"))
    assert replace(bench(), switch="bridge", cases=(served,)).conditions.words == 4


@pytest.mark.parametrize("switch", ["model", "bridge"])
def test_servers_are_not_measured_with_loss(switch: SwitchKind) -> None:
    case = replace(CASE, backends=("inagg:32", "inagg-server:16"), losses=(0.0, 0.1))
    with pytest.raises(ConfigurationError, match=r"measure inagg-server:16 without --loss|nor drops packets"):
        replace(bench(), switch=switch, cases=(case,))


def test_one_server_has_a_host_of_its_own_behind_the_workers() -> None:
    def fabric(*backends: str) -> Fabric:
        return replace(bench(), cases=(replace(CASE, backends=backends),)).fabric

    assert list(fabric("gloo", "inagg-server:32").servers) == []
    assert list(fabric("gloo", "inagg-server-1:32", "inagg-server-1:8").servers) == [5]
    assert list(fabric("gloo", "inagg-shared-1:32").servers) == [5]
    assert fabric("inagg-server-1:32").size == 4
    in_tree = replace(bench(), topology="tree:2x2", cases=(replace(CASE, backends=("inagg-server-1:32",)),))
    assert [str(in_tree.fabric.host_ports[host - 1]) for host in in_tree.fabric.servers] == ["leaf1:3"]


def test_the_servers_of_ranks_can_be_measured_in_a_tree() -> None:
    case = replace(CASE, backends=("inagg-server:32",))
    assert replace(bench(), topology="tree:2x2", cases=(case,)).fabric.name == "tree:2x2"


def test_the_bytes_on_the_busiest_link_are_beside_theory() -> None:
    case = replace(
        CASE, backends=("gloo", "inagg:16", "inagg-server:32", "inagg-server-1:32", "inagg-shared-1:32")
    )
    found = rows(
        case,
        events(),
        events(backend="inagg:16"),
        events(backend="inagg-server:32"),
        events(backend="inagg-server-1:32"),
        events(backend="inagg-shared-1:32"),
    )
    assert [row["link_bytes"] for row in found] == [4_200_001] * 5  # the median of three iterations
    assert [row["theory_bytes"] for row in found] == [6e6, 2e6, 6e6, 16e6, 4e6]
    assert [row["steps"] for row in found] == [6, 1, 2, 2, 2]
    header, body = links_table(found)
    assert header[:7] == [
        "backend",
        "frames MB",
        "theory MB",
        "frames/ theory",
        "theory",
        "steps",
        "in switch",
    ]
    assert header[7:] == ["sent/ msg", "recv/ msg"]
    assert body[1] == ["inagg:16", "4.2", "2", "2.100", "S", "1", "100%", "20", "30"]
    assert [row[4] for row in body] == ["2(N-1)/N S", "S", "2(N-1)/N S", "N S", "S"]


def test_the_theory_of_gloo_in_two_levels_depends_on_the_racks() -> None:
    case = replace(CASE, backends=("gloo-hierarchical",))
    conditions = replace(CONDITIONS, topology="tree:2x2", racks=((0, 2), (1, 3)))
    found = rows(case, events(backend="gloo-hierarchical"), conditions=conditions)
    # The first rank of a rack of two sends half a tensor, then a whole one to the other rack, then one to its own.
    assert (found[0]["theory_bytes"], found[0]["steps"]) == (10e6, 5)
    assert links_table(found)[1] == [["gloo-hierarchical", "4.2", "10", "0.420", "2.5 S", "5", "", "", ""]]


def test_the_share_in_the_switch_is_that_of_the_chunks_of_all_ranks_servers() -> None:
    backends = (
        "inagg-shared:32",
        "inagg-shared:16",
        "inagg:32",
        "inagg-server:32",
        "inagg-shared-1:32",
        "gloo",
    )
    by_rank = [{"switches": 3 * rank, "both": 1, "servers": 0} for rank in (0, 1)]
    found = rows(
        replace(CASE, backends=backends),
        events(backend="inagg-shared:32", chunks={"switches": 6, "both": 1, "servers": 1}),
        [
            event(rank, index, 0.5, backend="inagg-shared:16", chunks=by_rank[rank])
            for index in range(3)
            for rank in (0, 1)
        ],
        *(events(backend=backend, chunks={}) for backend in backends[2:]),
    )
    assert [row["in_switch"] for row in found] == [0.75, 0.6, 1.0, 0.0, None, None]


def test_each_way_of_summing_has_a_group_with_its_options() -> None:
    assert [BackendSpec.parse(text).on_servers for text in ("gloo", "inagg:8", "inagg-server:8")] == [
        *(False, False, True)
    ]
    assert SUMMING["inagg"].options == {"aggregation": "leased"}
    assert SUMMING["inagg-shared"].options == {"aggregation": "shared", "servers": "colocated"}
    assert SUMMING["inagg-shared-1"].options == {"aggregation": "shared", "servers": "registered"}
    assert SUMMING["inagg-server"].options == {"aggregation": "server", "servers": "colocated"}
    assert SUMMING["inagg-server-1"].options == {"aggregation": "server", "servers": "registered"}


def test_gloo_has_one_turn_in_a_round_and_inagg_one_at_each_loss() -> None:
    case = replace(CASE, backends=("gloo", "inagg:32"), losses=(0.0, 0.01))
    assert list(case.contestants()) == [("gloo", 0.0), ("inagg:32", 0.0), ("inagg:32", 0.01)]


def test_a_backend_is_written_as_it_is_read() -> None:
    texts = (
        *("gloo", "inagg", "inagg:16", "inagg:8", "inagg-shared", "inagg-shared-1"),
        *("inagg-server", "inagg-server-1:16"),
    )
    written = [
        "gloo",
        "inagg:32",
        "inagg:16",
        "inagg:8",
        "inagg-shared:32",
        "inagg-shared-1:32",
        "inagg-server:32",
        "inagg-server-1:16",
    ]
    assert [str(BackendSpec.parse(text)) for text in texts] == written


def test_a_plan_survives_the_command_line() -> None:
    plan = Plan(
        cases=(CASE, replace(CASE, losses=(0.0, 0.5))),
        seed=5,
        words=4,
        racks=((0, 2), (1, 3)),
        ports=(("s1", 1),),
        links=(((7, "ia-k3x9fa-p1"), (8, "ia-k3x9fa-b1")), ((7, "ia-k3x9fa-p2"),)),
        cpu_pids=(1, 2),
    )
    assert Plan.from_json(plan.to_json()) == plan


def test_a_terminal_that_is_too_narrow_cuts_no_figure_off() -> None:
    wide = {"workers": 16, "elements": 100_000_000, "loss": 0.0}
    (row,) = rows(replace(CASE, backends=("inagg:16",)), events(backend="inagg:16"))
    row |= {"time_ms": {"p50": 12_345.6, "min": 1_234.56}, "cpu_s_per_GB": 1_023.4, "busbw_MBps": 0.012}
    console = Console(width=80, file=io.StringIO())
    assert isinstance(console.file, io.StringIO)
    print_table(console, "", *table([row, {**row, "workers": 2, "elements": 10}]))
    assert max(map(len, console.file.getvalue().splitlines())) <= 80
    print_table(console, "", *table([row, {**row, **wide}]))
    last = console.file.getvalue().splitlines()[-1].split()
    assert last[:5] == ["inagg:16", "16", "100000000", "12346", "1235"]
    assert "0.012" in last
    assert "1023" in last


def test_gloo_in_two_levels_is_compared_with_gloo() -> None:
    case = replace(CASE, backends=("gloo", "gloo-hierarchical"))
    racks = ((0, 1), (2, 3))
    conditions = replace(CONDITIONS, topology="tree:2x2", uplink_name="1gbit", racks=racks)
    hierarchical = events(2.0, backend="gloo-hierarchical")
    (_, row) = rows(case, events(), hierarchical, conditions=conditions)
    assert (row["backend"], row["lane_bits"], row["ratio_to_gloo"]) == ("gloo-hierarchical", None, 0.5)
    assert row["line_rate_fraction"] == pytest.approx(
        8 * row["theory_bytes"] / 1e8 / (row["time_ms"]["p50"] / 1e3)
    )
    assert (row["topology"], row["uplink"]) == ("tree:2x2", "1gbit")
    assert table([row])[1][0][0] == "gloo-hierarchical"


def test_gloo_in_two_levels_runs_once_a_round_like_gloo() -> None:
    case = replace(CASE, backends=("gloo", "gloo-hierarchical", "inagg:32"), losses=(0.0, 0.1))
    assert list(case.contestants()) == [
        ("gloo", 0.0),
        ("gloo-hierarchical", 0.0),
        ("inagg:32", 0.0),
        ("inagg:32", 0.1),
    ]


def test_in_a_tree_gloo_has_links_of_its_own() -> None:
    tree = replace(bench(), topology="tree:2x2")
    assert (bench().gloo_path, tree.gloo_path) == ("switch", "bridge")
    assert (tree.conditions.topology, tree.conditions.uplink_name) == ("tree:2x2", "100mbit")
    assert bench().conditions.uplink_name is None
    assert replace(tree, switch="bridge", cases=(CASE,)).gloo_path == "switch"
    assert "tree:2x2, 100mbit between switches, contiguous ranks, gloo over bridges" in title(tree)


def test_a_case_has_as_many_workers_as_the_topology() -> None:
    with pytest.raises(ConfigurationError, match="tree:2x4 has 8 hosts, so 4 workers contradict it"):
        replace(bench(), topology="tree:2x4")
