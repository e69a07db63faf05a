# SPDX-License-Identifier: Apache-2.0
"""Generated code and the native runtime: no warnings, the same results with every instruction set."""

import random
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
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{RUNTIME}")


@pytest.mark.parametrize("program", [INAGG_P4, *P4_FILES], ids=lambda p: p.stem)
def test_generated_code_compiles_without_a_warning(program: Path, tmp_path: Path) -> None:
    source = tmp_path / "program.cpp"
    source.write_text(generate(preprocess(program).text)[0])
    run_compiler(*STRICT, str(source))


@pytest.mark.parametrize("march", INSTRUCTION_SETS)
def test_wide_sums_are_right_with_every_instruction_set(march: str, tmp_path: Path) -> None:
    if not INSTRUCTION_SETS[march] <= CPU_FLAGS:
        pytest.skip(f"this CPU has no {march}")
    text = preprocess(INAGG_P4, {"WORDS": "4"}).text
    cpp, *described = generate(text)
    (tmp_path / "program.cpp").write_text(cpp)
    compile_cpp(tmp_path / "program.cpp", tmp_path / "program.so", (f"-march={march}",))
    artifact = Artifact(tmp_path / "program.so", tmp_path / "program.cpp", *described)
    ones = (1 << 2048) - 1
    generator = random.Random(7)
    with Switch(Compiled(text, artifact)) as program:
        job = Job(workers=2)
        job.install(program)
        for chunk in range(200):
            # Long runs of ones propagate carries; single bits start them anywhere.
            one = [ones >> generator.randrange(2048) << generator.randrange(64) & ones for _ in range(4)]
            other = [1 << generator.randrange(2048) | generator.getrandbits(2048) & 3 for _ in range(4)]
            program.process(1, job.data(0, chunk, one))
            (_, frame), _ = program.process(2, job.data(1, chunk, other))
            assert read_result(frame).words == [(a + b) & ones for a, b in zip(one, other, strict=True)]


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
