# SPDX-License-Identifier: Apache-2.0
"""Small v1model programs around a piece of P4, for the compiler's tests."""

from inagg_switch.compiler import front_end, generate
from inagg_switch.compiler.check.program import CheckedProgram
from inagg_switch.compiler.parse.preprocess import preprocess_text

HEADERS = """
header h_t { bit<8> a; bit<8> b; bit<16> c; bit<32> d; }
struct headers_t { h_t h; h_t g; h_t[3] s; }
struct metadata_t { bit<8> x; bit<16> y; bool flag; }
"""

PARSER = """
    state start { packet.extract(hdr.h); transition accept; }
"""

TEMPLATE = """\
#include <core.p4>
#include <v1model.p4>
{headers}
{top}
parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {{
{parser}
}}
control V(inout headers_t hdr, inout metadata_t meta) {{ apply {{ {verify} }} }}
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {{
{locals}
    apply {{
{apply}
    }}
}}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {{
{egress_locals}
    apply {{ {egress} }}
}}
control C(inout headers_t hdr, inout metadata_t meta) {{ apply {{ {update} }} }}
control D(packet_out packet, in headers_t hdr) {{ apply {{ {deparser} }} }}
V1Switch(P(), V(), I(), E(), C(), D()) main;
"""


def v1program(
    apply: str = "",
    *,
    locals: str = "",
    top: str = "",
    headers: str = HEADERS,
    parser: str = PARSER,
    verify: str = "",
    egress: str = "",
    egress_locals: str = "",
    update: str = "",
    deparser: str = "packet.emit(hdr);",
) -> str:
    """A whole program. Parts that are left out do nothing. Packets are forwarded only if `apply` forwards them."""
    return TEMPLATE.format(
        apply=apply, locals=locals, top=top, headers=headers, parser=parser, verify=verify, egress=egress,
        egress_locals=egress_locals, update=update, deparser=deparser,
    )  # fmt: skip


def compile_to_cpp(text: str, name: str = "test.p4") -> str:
    """All stages before the C++ compiler. Raises CompileError."""
    return generate(preprocess_text(text, name).text, name)[0]


def checked(text: str, name: str = "test.p4") -> CheckedProgram:
    """Stages 1 to 4."""
    return front_end(preprocess_text(text, name).text, name)
