# SPDX-License-Identifier: Apache-2.0
"""A setting is checked when it is given; an error names it as the user wrote it."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from inagg import Options
from inagg.errors import ConfigurationError
from inagg.options import StagedOptions, launcher_environment, markdown_table
from inagg_contract.ranks import host_name

NOWHERE = Path("/nowhere")
DOCS = Path(__file__).parents[2] / "docs/options.md"
URL = "http://10.0.0.254:9560"


def test_defaults() -> None:
    options = Options(controller=URL)
    assert (options.lane_bits, options.slots, options.fallback) == (32, 256, "server")


def test_environment_gives_the_same_options() -> None:
    environment = {
        "INAGG_CONTROLLER": URL,
        "INAGG_LANE_BITS": "16",
        "INAGG_SLOTS": "128",
        "INAGG_ADDRESS": "10.0.0.3",
        "INAGG_SWITCH_PORT": "3",
        "INAGG_FALLBACK": "inner",
        "INAGG_JOB_CLASS": "batch",
        "UNRELATED": "x",
    }
    assert Options.resolve(environment=environment, folder=NOWHERE) == Options(
        controller=URL,
        lane_bits=16,
        slots=128,
        address="10.0.0.3",
        switch_port=3,
        fallback="inner",
        job_class="batch",
    )


def test_the_environment_names_the_job_and_the_host() -> None:
    environment = {"INAGG_CONTROLLER": URL, "INAGG_JOB_NAME": "my model", "INAGG_HOST_NAME": "h2"}
    options = Options.resolve(environment=environment, folder=NOWHERE)
    assert (options.own_job_name, options.own_host_name) == ("my model", "h2")


NAMES = "from inagg import Options; options = Options(); print(options.own_job_name, options.own_host_name, sep='|')"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["train.py"], "train.py"),
        (["folder/sub.py", "--epochs", "3"], "sub.py"),
        (["-m", "train"], "-m train"),
        (["-m", "package"], "-m package"),
        (["-c", NAMES], ""),
    ],
)
def test_a_job_has_the_name_of_its_script_by_default(tmp_path: Path, arguments: list[str], name: str) -> None:
    for path in ("train.py", "folder/sub.py", "package/__main__.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(NAMES)
    (tmp_path / "package/__init__.py").touch()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("INAGG_")}
    found = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    assert found == f"{name}|{host_name(socket.gethostname().partition('.')[0])}\n"


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    assert (
        Options.resolve(environment={"INAGG_CONTROLLER": URL, "INAGG_SLOTS": ""}, folder=NOWHERE).slots == 256
    )


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("controller", "10.0.0.254:9560"),
        ("controller", "http://10.0.0.254:956O"),
        ("controller", "http://[::1"),
        ("controller", "http://"),
        ("controller", "http://10.0.0.254 :9560"),
        ("lane_bits", 12),
        ("job_name", "x" * 201),
        ("job_name", "a\n"),
        ("host_name", "a b"),
        ("slots", 0),
        ("slots", 1),
        ("slots", 48),
        ("address", "10.0.0.300"),
        ("switch_port", 511),
        ("fallback", "maybe"),
        ("job_class", "two words"),
        ("job_class", ""),
        ("setup_timeout_s", 0),
        ("setup_timeout_s", float("inf")),
        ("setup_timeout_s", 1e10),
        ("spin_us", float("nan")),
        ("seed", True),
        ("switch_port", True),
        ("cpus", True),
        ("slotz", 64),
        ("cpus", ""),
        ("cpus", "0,"),
        ("cpus", "3-1"),
        ("cpus", "-1"),
        ("cpus", "0-99999999999"),
        ("cpus", "1e1"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"inagg options: {setting}: "):
        Options(**{"controller": URL, setting: value})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "no controller is given. Set INAGG_CONTROLLER=http://HOST:PORT, write controller ="),
        ({"INAGG_CONTROLER": URL}, "INAGG_CONTROLER is not a setting; did you mean INAGG_CONTROLLER"),
        ({"INAGG_CONTROLLER": URL, "INAGG_LANE_BITS": "24"}, "INAGG_LANE_BITS: .*got 24"),
        ({"INAGG_CONTROLLER": URL, "INAGG_SLOTS": "many"}, "INAGG_SLOTS: .*got 'many'"),
    ],
)
def test_a_wrong_variable_is_refused_by_name(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Options.resolve(environment=environment, folder=NOWHERE)


def test_a_single_processor_may_be_a_number(tmp_path: Path) -> None:
    (tmp_path / "inagg.toml").write_text("cpus = 3")
    assert Options.resolve(Options(controller=URL), {}, tmp_path).cpus == "3"


def test_options_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Options(controller=URL).slots = 128


def test_each_setting_comes_from_the_first_place_that_has_it(tmp_path: Path) -> None:
    (tmp_path / "inagg.toml").write_text(f'controller = "{URL}"\nlane_bits = 16\nslots = 64\nseed = 5\n')
    environment = {"INAGG_SLOTS": "128", "INAGG_LANE_BITS": "8"}
    assert Options.resolve(Options(lane_bits=32), environment, tmp_path) == Options(
        controller=URL, lane_bits=32, slots=128, seed=5
    )


def test_another_file_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "inagg.toml").write_text("slots = 4")
    (tmp_path / "other.toml").write_text(f'controller = "{URL}"')
    options = Options.resolve(environment={"INAGG_CONFIG": "other.toml"}, folder=tmp_path)
    assert (options.controller, options.slots) == (URL, 256)
    with pytest.raises(ConfigurationError, match=r"INAGG_CONFIG names third\.toml, which is not a file"):
        Options.resolve(environment={"INAGG_CONFIG": "third.toml"}, folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slots = 48", r"inagg\.toml: slots: must be a power of two \(got 48\)"),
        ("slotz = 64", r"inagg\.toml: slotz: is not a setting; did you mean slots\?"),
        ("lane_bits = 12", r"inagg\.toml: lane_bits: Input should be 8, 16 or 32 \(got 12\)"),
        ("seed = true", r"inagg\.toml: seed: true and false are not values of this setting \(got True\)"),
        ("slots = ", r"inagg\.toml: Invalid value"),
        ("[inagg]", r"inagg\.toml: inagg: is not a setting; settings are controller, controller_ca"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_the_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "inagg.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        Options.resolve(Options(controller=URL), {}, tmp_path)


def test_cpu_tensors_are_staged_for_tests_only(tmp_path: Path) -> None:
    (tmp_path / "inagg.toml").write_text("stage_cpu = 1")
    with pytest.raises(ConfigurationError, match="stage_cpu: is not a setting"):
        Options.resolve(Options(controller=URL), {}, tmp_path)
    with pytest.raises(ConfigurationError, match="stage_cpu"):
        Options(stage_cpu=1)
    resolved = Options.resolve(StagedOptions(controller=URL), {"INAGG_SLOTS": "64"}, NOWHERE)
    assert (resolved.stage_cpu, resolved.slots, Options().stage_cpu) == (True, 64, False)


def test_launchers_take_settings_as_arguments() -> None:
    assert launcher_environment(["lane_bits=16", "rounding=stochastic"]) == {
        "INAGG_LANE_BITS": "16",
        "INAGG_ROUNDING": "stochastic",
    }
    for wrong, message in (
        ("lane_bits=12", "should be 8, 16 or 32"),
        ("lane_bit=16", "lane_bit: is not a setting; did you mean lane_bits"),
        ("lane_bits", "NAME=VALUE"),
        ("self=1", "self: is not a setting"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            launcher_environment([wrong])


def test_the_table_in_the_docs_is_of_this_code() -> None:
    assert DOCS.read_text().endswith(markdown_table() + "\n"), "python -m inagg.options prints it"
