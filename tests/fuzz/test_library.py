# SPDX-License-Identifier: Apache-2.0
"""A core.p4 or v1model.p4 that is another one gives a diagnostic, or its program compiles (a short run of
`tests.fuzz.library`)."""

import pytest

from tests.fuzz.front_end import compile_preprocessed
from tests.fuzz.library import PROGRAM, mutant, parts

COUNT = 100


def test_other_libraries_give_a_diagnostic_or_compile() -> None:
    results = {seed: compile_preprocessed(PROGRAM.name, mutant(seed)) for seed in range(1, 1 + COUNT)}
    wrong = {seed: r.wrong for seed, r in results.items() if r.wrong}
    assert not wrong, f"{len(wrong)} of {COUNT}, the first: {next(iter(wrong.items()))}"
    assert any(r.accepted for r in results.values())
    assert sum(bool(r.error) for r in results.values()) > COUNT // 2


@pytest.mark.parametrize(("declared", "instead"), [
    ("inout standard_metadata_t standard_metadata);", "inout standard_metadata_t smeta);"),
    ("extern void truncate(in bit<32> length);", "extern void truncate(in bit<32> size);"),
    ("out O result, in HashAlgorithm algo,", "out O result, in HashAlgorithm method,"),
    ("extern void random<T>(out T result,", "extern void random<T>(in T result,"),
    ("    bit<48> ingress_global_timestamp;", "    bit<64> ingress_global_timestamp;"),
    ("enum CloneType { I2E, E2E }", "enum CloneType { I2E, E2E, X2X }"),
    ("counter(bit<32> size, CounterType type);", "counter(bit<32> n, CounterType type);"),
    ("control Ingress<H, M>(inout H hdr,", "control Ingress<H, M>(inout H headers,"),
])  # fmt: skip
def test_a_declaration_that_differs_is_refused(declared: str, instead: str) -> None:
    library, program = parts()
    assert declared in library
    result = compile_preprocessed(PROGRAM.name, library.replace(declared, instead) + program)
    assert "is declared in another way than in v1model.p4 of inagg_switch" in result.error


@pytest.mark.parametrize(("declared", "instead"), [
    ("    bit<3> priority;", "    bit<3> priority;\n    bit<8> own;"),
    ("csum16, xor16 }", "csum16 }"),
    ("    bit<32> length();", ""),
    ("extern void resubmit<T>(in T data);", ""),
])  # fmt: skip
def test_a_library_may_have_more_metadata_and_fewer_declarations(declared: str, instead: str) -> None:
    library, program = parts()
    assert declared in library
    result = compile_preprocessed(PROGRAM.name, library.replace(declared, instead) + program)
    assert result.accepted, result.error
