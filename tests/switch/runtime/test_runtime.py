# SPDX-License-Identifier: Apache-2.0
"""Generated code and the native runtime: no warnings, the same results with every instruction set."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from inagg_switch import Switch
from inagg_switch.compiler import Compiled, generate
from inagg_switch.compiler.build import RUNTIME, Artifact, compile_cpp, run_compiler
from inagg_switch.compiler.parse.preprocess import preprocess, preprocess_text
from tests import INAGG_P4
from tests.switch import PROGRAMS
from tests.switch.inagg.packets import Job, read_result
from tests.switch.snippets import v1program

P4_FILES = sorted(PROGRAMS.glob("*.p4"))
CPU_FLAGS = set(Path("/proc/cpuinfo").read_text().split())
# Plain loops, AVX2, AVX-512.
INSTRUCTION_SETS = {"x86-64": set(), "x86-64-v3": {"avx2", "bmi2"}, "x86-64-v4": {"avx512bw", "avx512vl"}}
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{RUNTIME}")
HEADER = "v1model.hpp"


@pytest.fixture(scope="module")
def precompiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runtime's header, precompiled: all programs include it, and it takes most of the time."""
    folder = tmp_path_factory.mktemp("precompiled")
    run_compiler(*STRICT, "-x", "c++-header", str(RUNTIME / HEADER), "-o", str(folder / f"{HEADER}.gch"))
    return folder


@pytest.mark.parametrize("program", [INAGG_P4, *P4_FILES], ids=lambda p: p.stem)
def test_generated_code_compiles_without_a_warning(program: Path, precompiled: Path, tmp_path: Path) -> None:
    source = tmp_path / "program.cpp"
    source.write_text(generate(preprocess(program).text)[0])
    run_compiler(f"-I{precompiled}", *STRICT, "-Winvalid-pch", "-fsyntax-only", str(source))


@pytest.fixture(params=INSTRUCTION_SETS)
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Switch]:
    """Compiles a preprocessed program for one instruction set."""
    march = request.param
    if not INSTRUCTION_SETS[march] <= CPU_FLAGS:
        pytest.skip(f"this CPU has no {march}")

    def compiled(text: str) -> Switch:
        cpp, *described = generate(text)
        (tmp_path / "program.cpp").write_text(cpp)
        compile_cpp(tmp_path / "program.cpp", tmp_path / "program.so", (f"-march={march}",))
        return Switch(Compiled(text, Artifact(tmp_path / "program.so", tmp_path / "program.cpp", *described)))

    return compiled


def test_wide_sums_are_right_with_every_instruction_set(build: Callable[[str], Switch]) -> None:
    ones = (1 << 2048) - 1
    generator = random.Random(7)
    with build(preprocess(INAGG_P4, {"WORDS": "4"}).text) as program:
        job = Job(workers=2)
        job.install(program)
        for chunk in range(200):
            # Long runs of ones propagate carries; single bits start them anywhere.
            one = [ones >> generator.randrange(2048) << generator.randrange(64) & ones for _ in range(4)]
            other = [1 << generator.randrange(2048) | generator.getrandbits(2048) & 3 for _ in range(4)]
            program.process(1, job.data(0, chunk, one))
            (_, frame), _ = program.process(2, job.data(1, chunk, other))
            assert read_result(frame).words == [(a + b) & ones for a, b in zip(one, other, strict=True)]


def test_wide_fields_and_registers_keep_their_values(build: Callable[[str], Switch]) -> None:
    generator = random.Random(8)
    cells = [0] * 4
    with build(preprocess(PROGRAMS / "wide.p4").text) as program:
        for _ in range(2000):
            operation, index = generator.randrange(16), generator.randrange(5)
            a, b, c = (generator.getrandbits(512) >> generator.choice([0, 0, 256, 511]) for _ in range(3))
            packed = 5 << 516 | c << 4 | 9
            frame = bytes([operation, index]) + a.to_bytes(64) + b.to_bytes(64) + packed.to_bytes(65)
            ((_, out),) = program.process(1, frame + b"rest")
            a, b, c = wide(operation, index, cells, a, b, c)
            packed = 5 << 516 | c << 4 | 9
            assert out == frame[:2] + a.to_bytes(64) + b.to_bytes(64) + packed.to_bytes(65) + b"rest", (
                operation
            )


def wide(operation: int, index: int, cells: list[int], a: int, b: int, c: int) -> tuple[int, int, int]:
    """The ingress control of wide.p4: the new a, b and c."""
    most = (1 << 512) - 1
    held = cells[index] if index < len(cells) else 0

    def write(value: int) -> None:
        if index < len(cells):
            cells[index] = value

    match operation:
        case 0:
            a = a + b & most
        case 1:
            a = 2 * a & most
        case 2:
            a, b = 2 * a & most, a
        case 3:
            write(a)
        case 4:
            a = a + held & most
            write(a)
        case 5:
            write(a)
            a = held
        case 6:
            a = held if index < len(cells) else a
        case 7:
            a = a if a < b else 5
        case 8:
            a = a + 1 & most
        case 9:
            a = a & ~0xFF00 | index << 8
        case 10:
            a, b = (1, b) if a == b else (a, 2)
        case 11:
            a, b = b, a
        case 12:
            a = c = c + a & most
        case 13:
            a, b = cells[3], held
        case 14:
            a, b = 3, 4
        case 15:
            a = a - b & most
            write(b)
    return a, b, c


@pytest.mark.parametrize(
    ("ingress", "egress", "most"),
    [
        ("", "clone(CloneType.E2E, 1);", 1 + 1024),
        ("clone(CloneType.I2E, 1);", "clone(CloneType.E2E, 1);", 1 + 1024),
        # Of 101 packets one is a further round, the others are clones.
        ("clone(CloneType.I2E, 1); resubmit_preserving_field_list(0);", "", 1024),
        ("", "if (sm.instance_type != 2) { clone(CloneType.E2E, 1); recirculate_preserving_field_list(0); }", 1024),
    ],
)  # fmt: skip
def test_a_packet_leads_to_a_bounded_number_of_copies(ingress: str, egress: str, most: int) -> None:
    text = preprocess_text(v1program(f"sm.egress_spec = 2; {ingress}", egress=egress), "test.p4").text
    frame = bytes.fromhex("01 02 0003 00000004")
    with Switch.from_source(text, traced=True) as switch:
        switch.clone_session(1, [(3, rid) for rid in range(100)])
        for _ in range(2):  # the limit is for each packet
            lines, out = switch.trace(1, frame)
            assert most - 11 <= len(out) <= most
            assert (
                "dropped: one packet made 1024 clones, resubmissions and recirculations, the limit" in lines
            )
        switch.clone_session(1, [])
