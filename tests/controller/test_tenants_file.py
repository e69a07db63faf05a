# SPDX-License-Identifier: Apache-2.0
"""The file of --tenants and the command that makes its lines; a controller process that reads it, also again."""

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from inagg.errors import ControllerForbiddenError
from inagg.membership.control import ControlClient
from inagg_controller.cli import app
from inagg_controller.errors import ConfigurationError
from inagg_controller.jobs.tenants import Tenant, digest_of
from inagg_controller.tenants_file import TenantsFile
from tests import forks
from tests.controller.launching import CommandLine, Launcher, read_line
from tests.controller.serving import OPERATORS_TOKEN

A, B = digest_of("a"), digest_of("b")
WHOLE = f"""
[[tenant]]
name = "vision"
token_sha256 = "{A}"
classes = ["batch", "default"]
jobs = 8
slots = 512
memory = "1GiB"
priority = 3
aggregation = ["leased", "shared"]
requests_per_s = 20
creations_per_min = 2.5

[[tenant]]
name = "text"
token_sha256 = ["{B}", "{digest_of("c")}"]
classes = "default"
aggregation = "server"
"""


def table(**changes: object) -> str:
    """A tenant's table, with some lines replaced or, if they are None, left out."""
    lines = {"name": '"vision"', "token_sha256": f'"{A}"', "classes": '["batch"]'} | changes
    return "\n".join(["[[tenant]]", *(f"{key} = {value}" for key, value in lines.items() if value), ""])


def file_with(folder: Path, text: str, mode: int = 0o600) -> TenantsFile:
    path = folder / "tenants.toml"
    path.write_text(text)
    path.chmod(mode)
    return TenantsFile(path, ("batch", "default"))


def test_a_file_has_the_rights_quotas_and_limits_of_each_tenant(tmp_path: Path) -> None:
    assert file_with(tmp_path, WHOLE).read() == (
        Tenant(
            name="vision",
            token_sha256=(A,),
            classes=("batch", "default"),
            jobs=8,
            slots=512,
            memory=1 << 30,
            priority=3,
            aggregation=("leased", "shared"),
            requests_per_s=20,
            creations_per_min=2.5,
        ),
        Tenant(name="text", token_sha256=(B, digest_of("c")), classes=("default",), aggregation=("server",)),
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "it has no tenants; make one with `inagg-controller tenant NAME --classes CLASS`, or leave out"),
        ("tenant = []", "it has no tenants"),
        ("[[tenant]]\nname =", "Invalid value (at "),
        ("tenant = 1", "tenant: Input should be a valid list"),
        ('tenant = ["vision"]', "tenant 1: tenant: Input should be a valid dictionary or instance of Tenant"),
        (table() + "[other]\n", "other is not a setting"),
        (table(name=None), "tenant 1: name: Field required"),
        (table(name='"two words"'), "tenant two words: name: String should match pattern"),
        (table(token_sha256=None), "tenant vision: token_sha256: Field required"),
        (table(token_sha256='"secret"'), "tenant vision: token_sha256: String should match pattern"),
        (table(token_sha256=f'"{A.upper()}"'), "tenant vision: token_sha256: String should match pattern"),
        (table(token_sha256="[]"), "tenant vision: token_sha256: must name at least one"),
        (table(token_sha256=f'["{A}", "{A}"]'), "tenant vision: token_sha256: must name each once"),
        (table(classes=None), "tenant vision: classes: Field required"),
        (table(classes="[]"), "tenant vision: classes: must name at least one"),
        (table(classes='["batch", "batch"]'), "tenant vision: classes: must name each once"),
        (
            table(classes='["bulk"]'),
            "tenant vision: classes: bulk is not a class of this controller; these are batch, default (--job-class)",
        ),
        (table(jobs="-1"), "tenant vision: jobs: Input should be greater than or equal to 0"),
        (table(jobs="true"), "tenant vision: jobs: true and false are not values of this setting"),
        (table(memory='"1GB"'), "tenant vision: memory: must be a size such as 256MiB or 2GiB"),
        (table(aggregation='"auto"'), "tenant vision: aggregation: Input should be 'leased', 'shared' or 'serv"),
        (table(requests_per_s="0"), "tenant vision: requests_per_s: Input should be greater than 0"),
        (table(creations_per_min="nan"), "tenant vision: creations_per_min: Input should be"),
        (table(jbos="1"), "tenant vision: jbos is not a setting of a tenant; these are name, jobs, slots, "),
        (table() + table(token_sha256=f'"{B}"'), "tenant vision is there twice"),
        (table() + table(name='"text"'), "tenants vision and text have the same token_sha256"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_first_fault(tmp_path: Path, text: str, fault: str) -> None:
    file = file_with(tmp_path, text)
    with pytest.raises(ConfigurationError) as refused:
        file.read()
    assert str(refused.value).startswith(f"--tenants {file.path}: {fault}")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o644, 0o602])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    file = file_with(tmp_path, WHOLE, mode)
    with pytest.raises(
        ConfigurationError, match=f"others can read or change it; run `chmod 600 {file.path}`"
    ):
        file.read()


def test_the_group_of_a_file_may_read_it(tmp_path: Path) -> None:
    assert len(file_with(tmp_path, WHOLE, 0o640).read()) == 2


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^--tenants /nonexistent: No such file or directory$"):
        TenantsFile(Path("/nonexistent"), ()).read()
    file = file_with(tmp_path, "")
    file.path.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="can't decode byte 0xff"):
        file.read()


# The command


def make(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["tenant", *words])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_prints_the_lines_of_a_tenant_and_its_token_once(tmp_path: Path) -> None:
    text, tokens = "", []
    for words in (["vision", "--classes", "batch, default"], ["text"]):
        code, lines, rest = make(*words)
        assert code == 0
        tokens.append(rest.splitlines()[-1])
        assert (len(tokens[-1]) >= 43, tokens[-1] in lines) == (True, False)
        text += lines
    found = file_with(tmp_path, text).read()
    assert [(tenant.name, tenant.token_sha256, tenant.classes) for tenant in found] == [
        ("vision", (digest_of(tokens[0]),), ("batch", "default")),
        ("text", (digest_of(tokens[1]),), ("default",)),
    ]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["two words"], "tenant two words: name: String should match pattern"),
        (["vision", "--classes", ""], "tenant vision: classes: String should have at least 1 character"),
        (["vision", "--classes", "batch,batch"], "tenant vision: classes: Value error, must name each once"),
    ],
)
def test_the_command_refuses_what_no_file_may_have(words: list[str], fault: str) -> None:
    code, lines, rest = make(*words)
    assert (code, lines) == (2, "")
    assert f"inagg-controller: {fault}" in rest


# A controller


@pytest.fixture
def arguments(tmp_path: Path, token_file: Path, free_port: int) -> dict[str, Any]:
    """Options of a controller without a switch that knows the tenant vision, whose token is a."""
    file = file_with(tmp_path, table(jobs="1"))
    return {
        "no-switch": True,
        "listen": f"127.0.0.1:{free_port}",
        "token-file": token_file,
        "job-class": "batch",
        "tenants": file.path,
    }


@pytest.fixture
def controllers(arguments: dict[str, Any]) -> Any:
    launcher = Launcher(CommandLine(arguments))
    yield launcher
    launcher.close()


def create(url: str, token: str | None) -> int:
    """Create a job. Returns its number."""
    with ControlClient(url, token=token) as client:
        return client.create_job(1, 2, aggregation="server").id


def await_log(process: forks.Process, text: str) -> None:
    """Read the log of a process until a line has the text."""
    assert process.stderr is not None
    assert any(text in line for line in iter(process.stderr.readline, "")), text


def jobs(url: str) -> list[tuple[str, str, str]]:
    answer = httpx.get(f"{url}/jobs", headers={"Authorization": f"Bearer {OPERATORS_TOKEN}"}, trust_env=False)
    return [(job["state"], job["tenant"], job["job_class"]) for job in answer.json()["jobs"]]


def test_a_controller_does_not_start_with_a_bad_file(
    controllers: Launcher, arguments: dict[str, Any]
) -> None:
    arguments["tenants"].write_text(table(classes='["bulk"]'))
    process = controllers()
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, "bulk is not a class of this controller" in errors) == (2, True)


def test_a_controller_reads_its_tenants_again_on_sighup_and_jobs_go_on(
    controllers: Launcher, arguments: dict[str, Any], free_port: int
) -> None:
    process, url, file = controllers(), f"http://127.0.0.1:{free_port}", arguments["tenants"]
    assert read_line(process) == "ready"
    with pytest.raises(ControllerForbiddenError, match="POST /jobs needs the token of a tenant"):
        create(url, None)
    with ControlClient(url) as rank:
        job = rank.create_job(1, 2, aggregation="server", token="a").id
        rank.register(job, 0, ip="127.0.0.1", udp_port=4000, server_udp_port=4001)
        assert rank.serving(job, 0).state == "running"
        file.write_text(table(name='"text"', token_sha256=f'"{B}"'))
        process.send_signal(signal.SIGHUP)
        await_log(process, "the tenants are text; no longer vision")
        create(url, "b")
        with pytest.raises(ControllerForbiddenError, match="this is not the token of a tenant"):
            create(url, "a")
        assert rank.heartbeat(job, 0).state == "running"
    assert jobs(url) == [("running", "vision", "batch"), ("joining", "text", "batch")]
    file.write_text("")
    process.send_signal(signal.SIGHUP)
    await_log(process, f"--tenants {file}: it has no tenants; ")
    create(url, "b")
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_a_controller_that_starts_again_counts_the_jobs_of_its_tenants(
    controllers: Launcher, free_port: int
) -> None:
    url = f"http://127.0.0.1:{free_port}"
    for _ in range(2):
        process = controllers()
        assert read_line(process) == "ready"
        if not jobs(url):
            create(url, "a")
        with (
            ControlClient(url, token="a") as client,
            pytest.raises(Exception, match="the tenant vision is full"),
        ):
            client.create_job(1, 2, aggregation="server")
        assert jobs(url) == [("joining", "vision", "batch")]
        process.terminate()
        assert process.wait(20) == 0
