# SPDX-License-Identifier: Apache-2.0
"""A traced program reports the path of each packet, and the reason of a drop."""

from collections.abc import Iterator

import pytest

from inagg_switch import Switch, SwitchError
from inagg_switch.compiler import generate
from inagg_switch.compiler.parse.preprocess import preprocess_text
from tests.switch.p4runtime.client import SMALL_P4
from tests.switch.snippets import compile_to_cpp, v1program

FRAME = bytes.fromhex("000000000202 0a0000000001 0800") + b"payload"


@pytest.fixture(scope="module")
def traced() -> Iterator[Switch]:
    with Switch.from_p4(SMALL_P4, traced=True) as sw:
        sw.insert("forward", {"dst": 0x0202}, "send", {"port": 2})
        sw.insert("ordered", {"src": (0x0A0000000000, 8), "type": 0x0800}, "mark", {"value": 5}, 7)
        yield sw


def test_the_path_of_a_packet(traced: Switch) -> None:
    lines, out = traced.trace(1, FRAME)
    assert lines == [
        "packet of 21 bytes received on port 1",
        "parser SmallParser, state start",
        "extract(hdr.ethernet)",
        "parser: error.NoError, 7 bytes not parsed",
        "control SmallVerify",
        "control SmallIngress",
        "table SmallIngress.forward: hit for dst=0x202",
        "action SmallIngress.send(port=0x2)",
        "standard_metadata.egress_spec = 0x2",
        "SmallIngress.seen count((bit<32>) standard_metadata.ingress_port=0x1)",
        "table SmallIngress.ordered: hit for src=0xa0000000001 (0xa0000000000/8), type=0x800 (0x800&0xffff), "
        "port=0x1 (0x0..0x1ff), dst=0x202 (anything), priority 7",
        "action SmallIngress.mark(value=0x5)",
        "SmallIngress.cells register_write(0x0, value_x=0x5)",
        "table SmallIngress.fixed: hit for type=0x800",
        "action NoAction()",
        "egress to port 2, rid 0",
        "control SmallEgress",
        "control SmallCompute",
        "control SmallDeparser",
        "packet of 21 bytes sent to port 2",
    ]
    assert out == [(2, FRAME)]


def test_the_trace_has_the_reason_of_a_drop(traced: Switch) -> None:
    lines, out = traced.trace(1, b"\3" * 14)
    assert out == []
    assert "table SmallIngress.forward: miss for dst=0x30303030303" in lines
    assert lines[lines.index("action SmallIngress.drop()") + 1] == "mark_to_drop(standard_metadata)"
    assert lines[-1] == "dropped: egress_spec is the drop port after ingress"
    lines, _ = traced.trace(1, b"abc")
    assert "parser: error.PacketTooShort, 3 bytes not parsed" in lines


def test_tracing_changes_no_packet_and_ends(traced: Switch) -> None:
    heard: list[str] = []
    traced.on_trace(heard.append)
    assert traced.process(1, FRAME) == [(2, FRAME)]
    lines, _ = traced.trace(1, FRAME)
    assert heard == lines  # the same packet twice; only trace() gets the lines of the second
    traced.on_trace(None)
    traced.process(1, FRAME)
    assert heard == lines


def test_a_program_that_is_not_traced_has_no_trace_code_and_refuses_to_trace() -> None:
    with Switch.from_p4(SMALL_P4) as sw:
        with pytest.raises(SwitchError, match="traced=True"):
            sw.trace(1, FRAME)
        assert sw.process(1, FRAME) == []
        assert "trace" not in sw.generated.read_text()


def test_conditions_are_shown_as_in_the_source() -> None:
    text = v1program("if (hdr.h.isValid() && hdr.h.a == 3) { sm.egress_spec = 2; }")
    cpp = generate(preprocess_text(text, "t.p4").text, "t.p4", traced=True)[0]
    assert 'std::string("if (hdr.h.isValid() && hdr.h.a == 0x3): true")' in cpp
    assert 'std::string("if (hdr.h.isValid() && hdr.h.a == 0x3): false")' in cpp
    assert "trace" not in compile_to_cpp(text)
