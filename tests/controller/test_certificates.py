# SPDX-License-Identifier: Apache-2.0
"""The command `inagg-controller certificates`. OpenSSL's command judges what it makes."""

import stat
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from inagg_controller.certificates import issue
from inagg_controller.cli import app
from inagg_controller.errors import ConfigurationError

NOW = datetime(2026, 3, 1, tzinfo=UTC)
FILES = {"ca", "api", "switch-leaf1", "controller"}


def command(folder: Path, *words: str) -> str:
    """What the command prints; it succeeds."""
    result = CliRunner().invoke(app, ["certificates", str(folder), *words])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refusal(folder: Path, *words: str) -> str:
    result = CliRunner().invoke(app, ["certificates", str(folder), *words])
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr


def openssl(*words: object) -> str:
    done = subprocess.run(
        ["openssl", *map(str, words)], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With an authority and one certificate of each kind."""
    path = tmp_path / "state" / "pki"
    issue(path, api=["10.0.0.254"], switches={"leaf1": ["192.0.2.11"]}, days=365, now=datetime.now(UTC))
    return path


def test_it_makes_an_authority_and_certificates_that_only_their_owner_can_use(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    printed = command(
        folder, "--api", "controller.example", "--api", "10.0.0.254", "--switch", "leaf1=192.0.2.11"
    )
    assert {path.name for path in folder.iterdir()} == {
        f"{name}.{kind}" for name in FILES for kind in ("pem", "key")
    }
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert {mode for name, mode in modes.items() if name.endswith(".key")} == {0o600}
    assert {mode for name, mode in modes.items() if name.endswith(".pem")} == {0o644}
    lines = printed.splitlines()
    assert [line.split(", until")[0] for line in lines] == [
        f"{folder}/ca.pem",
        f"{folder}/api.pem for controller.example, 10.0.0.254",
        f"{folder}/switch-leaf1.pem for 192.0.2.11",
        f"{folder}/controller.pem",
        "for the controller: /etc/inagg/controller: ca.pem api.pem api.key controller.pem controller.key",
        "for leaf1: /etc/inagg/switch: ca.pem switch-leaf1.pem switch-leaf1.key",
        "for hosts, and servers of sums in /etc/inagg/server: ca.pem",
        "for you alone: ca.key",
    ]


@pytest.mark.parametrize(
    ("name", "purpose"), [("api", "sslserver"), ("switch-leaf1", "sslserver"), ("controller", "sslclient")]
)
def test_openssl_accepts_each_certificate_for_its_purpose_only(folder: Path, name: str, purpose: str) -> None:
    verify = ("verify", "-x509_strict", "-CAfile", folder / "ca.pem", "-purpose")
    assert openssl(*verify, purpose, folder / f"{name}.pem").endswith(": OK\n")
    other = {"sslserver": "sslclient", "sslclient": "sslserver"}[purpose]
    with pytest.raises(subprocess.CalledProcessError):
        openssl(*verify, other, folder / f"{name}.pem")


def test_a_second_run_renews_the_certificates_and_keeps_the_authority(folder: Path) -> None:
    before = contents(folder)
    command(folder, "--api", "10.0.0.254", "--switch", "leaf1=192.0.2.11")
    after = contents(folder)
    assert {name for name in before if before[name] == after[name]} == {"ca.pem", "ca.key"}
    openssl("verify", "-CAfile", folder / "ca.pem", folder / "api.pem")


def test_other_certificates_stay_as_they_are(folder: Path) -> None:
    before = contents(folder)
    command(folder, "--switch", "leaf2=192.0.2.12")
    after = contents(folder)
    assert {name for name in before if before[name] != after[name]} == {"controller.pem", "controller.key"}
    assert set(after) - set(before) == {"switch-leaf2.pem", "switch-leaf2.key"}


def test_force_replaces_the_authority_and_keeps_the_earlier_ones(folder: Path) -> None:
    first = contents(folder)
    command(folder, "--api", "10.0.0.254", "--force")
    second = contents(folder)
    assert second["ca.pem"] != first["ca.pem"]
    openssl("verify", "-CAfile", folder / "ca.pem", folder / "api.pem")
    (folder / "ca.key").unlink()
    command(folder, "--api", "10.0.0.254", "--force")
    after = contents(folder)
    assert [after[name] for name in ("ca.pem.old", "ca.key.old")] == [first["ca.pem"], first["ca.key"]]
    assert after["ca.pem.old2"] == second["ca.pem"]
    assert "ca.key.old2" not in after
    assert stat.S_IMODE((folder / "ca.key.old").stat().st_mode) == 0o600


def test_certificates_of_an_earlier_authority_are_named_until_they_are_signed_again(folder: Path) -> None:
    def named(printed: str) -> list[str]:
        return [Path(line.split(":")[0]).name for line in printed.splitlines() if "no longer valid" in line]

    (folder / "notes.pem").write_text("no certificate")
    assert named(command(folder, "--api", "10.0.0.254")) == []
    assert named(command(folder, "--api", "10.0.0.254", "--force")) == ["controller.pem", "switch-leaf1.pem"]
    assert named(command(folder, "--api", "10.0.0.254")) == ["controller.pem", "switch-leaf1.pem"]
    assert named(command(folder, "--switch", "leaf1=192.0.2.11")) == []


def test_no_certificate_outlives_its_authority(tmp_path: Path) -> None:
    ca, _ = issue(tmp_path, api=["a"], switches={}, days=30, now=NOW)
    _, api = issue(tmp_path, api=["a"], switches={}, days=3650, now=NOW + timedelta(days=365))
    assert api.until == ca.until == NOW + timedelta(days=3650)
    found = x509.load_pem_x509_certificate((tmp_path / "api.pem").read_bytes())
    assert found.not_valid_after_utc == ca.until


def test_an_expired_authority_signs_nothing(tmp_path: Path) -> None:
    issue(tmp_path, api=["a"], switches={}, days=30, now=NOW)
    before = contents(tmp_path)
    with pytest.raises(ConfigurationError, match=r"ca\.pem expired at 2036-02-27: make another authority"):
        issue(tmp_path, api=["a"], switches={}, days=30, now=NOW + timedelta(days=3650))
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is nothing to sign: give --api HOST, or --switch NAME=HOST"),
        (["--api", "https://10.0.0.254"], "'https://10.0.0.254' is neither an IP address nor a host name"),
        (["--api", "10.0.0.254:9560"], "'10.0.0.254:9560' is neither"),
        (["--api", "10.0.0.256"], "'10.0.0.256' is neither"),
        (["--api", ""], "'' is neither"),
        (["--api", "-a.example"], "'-a.example' is neither"),
        (["--switch", "leaf1"], "--switch leaf1 is not of the form leaf1=192.0.2.11"),
        (["--switch", "leaf1="], "'' is neither"),
        (["--switch", "../leaf1=192.0.2.11"], "--switch ../leaf1: a switch's name is at most 63 letters"),
    ],
)
def test_wrong_options_are_refused_and_write_nothing(tmp_path: Path, words: list[str], message: str) -> None:
    assert message in refusal(tmp_path / "pki", *words)
    assert list(tmp_path.iterdir()) == []


def _remove(folder: Path) -> None:
    (folder / "ca.key").unlink()


def _publish(folder: Path) -> None:
    (folder / "ca.key").chmod(0o644)


def _swap(folder: Path) -> None:
    (folder / "ca.key").write_bytes((folder / "api.key").read_bytes())


def _garble(folder: Path) -> None:
    (folder / "ca.key").write_text("no key")


def _demote(folder: Path) -> None:
    (folder / "ca.pem").write_bytes((folder / "api.pem").read_bytes())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_remove, "has ca.pem but no ca.key: bring the file back to renew certificates"),
        (_publish, "ca.key: others can read it; run `chmod 600"),
        (_swap, "ca.key is not the key of"),
        (_garble, "ca.key is not a private key in PEM form without a password"),
        (_demote, "ca.pem is not the certificate of an authority that signs itself"),
    ],
)
def test_a_spoilt_authority_is_refused_and_stays_as_it_is(
    folder: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(folder)
    before = contents(folder)
    assert message in refusal(folder, "--api", "10.0.0.254")
    assert contents(folder) == before


def test_a_place_that_cannot_be_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "pki").write_text("")
    assert f"cannot write {tmp_path}/pki" in refusal(tmp_path / "pki", "--api", "10.0.0.254")
