# SPDX-License-Identifier: Apache-2.0
"""The token of a tenant in the options: where it comes from, and that nothing shows it."""

import pickle
import traceback
from pathlib import Path

import pytest

from inagg.errors import ConfigurationError
from inagg.options import Options, launcher_environment

TOKEN = "the-secret-token-of-a-tenant"
URL = "http://127.0.0.1:9"


def options_of(folder: Path, environment: dict[str, str], **given: object) -> Options:
    return Options.resolve(Options(**given), {"INAGG_CONTROLLER": URL} | environment, folder)


def test_without_a_token_there_is_none(tmp_path: Path) -> None:
    assert options_of(tmp_path, {}).read_token() is None


def test_a_token_comes_from_the_program_a_variable_or_a_file(tmp_path: Path) -> None:
    assert options_of(tmp_path, {}, controller_token=TOKEN).read_token() == TOKEN
    assert options_of(tmp_path, {"INAGG_CONTROLLER_TOKEN": TOKEN}).read_token() == TOKEN
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    options = options_of(tmp_path, {"INAGG_CONTROLLER_TOKEN_FILE": str(file)})
    assert options.read_token() == TOKEN
    file.write_text("another")
    assert options.read_token() == "another"
    assert (
        options_of(tmp_path, {"INAGG_CONTROLLER_TOKEN_FILE": str(file)}, controller_token=TOKEN).read_token()
        == TOKEN
    )


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "No such file or directory; it must have the token that the operator has given"),
        (b"", "it must have the token that the operator has given, and no more"),
        (
            b"The token of vision:\nsecret\n",
            "it must have the token that the operator has given, and no more",
        ),
        (b"\xff\xfe", "it is not text; it must have the token that the operator has given"),
    ],
)
def test_a_bad_file_is_refused_and_its_content_is_not_shown(
    tmp_path: Path, content: bytes | None, fault: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError) as found:
        Options(controller_token_file=file).read_token()
    assert str(found.value) == f"controller_token_file {file}: {fault}"


def test_options_do_not_show_their_token() -> None:
    options = Options(controller=URL, controller_token=TOKEN)
    for shown in (repr(options), str(options), str(options.model_dump()), options.model_dump_json()):
        assert TOKEN not in shown
    assert pickle.loads(pickle.dumps(options)).read_token() == TOKEN


@pytest.mark.parametrize("wrong", [f"{TOKEN} {TOKEN}", f"{TOKEN}\n", f"é{TOKEN}"])
def test_an_error_does_not_show_a_wrong_token(tmp_path: Path, wrong: str) -> None:
    for make in (
        lambda: Options(controller_token=wrong),
        lambda: options_of(tmp_path, {"INAGG_CONTROLLER_TOKEN": wrong}),
        lambda: launcher_environment([f"controller_token={wrong}"]),
    ):
        with pytest.raises(ConfigurationError, match="must be a token as the operator gives it") as found:
            make()
        assert TOKEN not in "".join(traceback.format_exception(found.value))


def test_an_error_about_another_setting_does_not_show_the_token(tmp_path: Path) -> None:
    for make in (
        lambda: Options(controller_token=TOKEN, slots=3),
        lambda: options_of(tmp_path, {"INAGG_CONTROLLER_TOKEN": TOKEN, "INAGG_SLOTS": "3"}),
        lambda: launcher_environment([f"controller_token={TOKEN}", "slots"]),
        lambda: launcher_environment([f"controller_token={TOKEN}", f"controller_token={TOKEN}"]),
        lambda: Options(controler_token=TOKEN),
    ):
        with pytest.raises(ConfigurationError) as found:
            make()
        assert TOKEN not in "".join(traceback.format_exception(found.value))


@pytest.mark.parametrize("above", ["a variable", "the program"])
def test_a_token_in_either_form_hides_those_of_lower_sources(tmp_path: Path, above: str) -> None:
    (tmp_path / "token").write_text("from-a-file")
    (tmp_path / "inagg.toml").write_text(
        'controller = "http://h:1"\ncontroller_token = "from-the-configuration"\n'
    )
    variable = {"INAGG_CONTROLLER_TOKEN_FILE": str(tmp_path / "token")}
    if above == "a variable":
        options = options_of(tmp_path, variable)
    else:
        options = options_of(
            tmp_path, {"INAGG_CONTROLLER_TOKEN": "old"}, controller_token_file=tmp_path / "token"
        )
    assert options.read_token() == "from-a-file"


def test_a_launcher_takes_no_token_on_its_command_line() -> None:
    with pytest.raises(ConfigurationError, match="give controller_token_file"):
        launcher_environment(["controller_token=secret"])
