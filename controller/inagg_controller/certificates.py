# SPDX-License-Identifier: Apache-2.0
"""The operator's own certificate authority, in a folder with the certificates that it has signed (X.509, RFC 5280).

    ca.pem, ca.key                  the authority
    api.pem, api.key                of the controller's API: a TLS server
    controller.pem, controller.key  of the controller at its switches: a TLS client
    switch-NAME.pem, .key           of a switch's P4Runtime: a TLS server
    ca.pem.old, ca.key.old, .old2   earlier authorities

A switch admits every client that the authority names a client. So the authority signs one certificate for clients,
the controller's, and a switch's certificate does not open other switches.
"""

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from inagg_controller.errors import ConfigurationError

_AUTHORITY_DAYS = 3650
# Clocks of hosts that are behind the operator's.
_SKEW = timedelta(hours=1)
_SECRET, _PUBLIC = 0o600, 0o644
_OTHERS = 0o077
_SWITCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # as in topology files
_LABEL = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")  # RFC 1123, 2.1


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate that has been written. hosts: names and addresses that it is for; empty for a client."""

    path: Path
    hosts: tuple[str, ...]
    until: datetime


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def issue(
    folder: Path,
    *,
    api: Sequence[str] = (),
    switches: Mapping[str, Sequence[str]],
    days: int,
    now: datetime,
    new_authority: bool = False,
) -> list[Issued]:
    """Sign certificates with the folder's authority, each with a new key, in place of earlier ones.

    api, switches: the names and addresses of the API's host and of each switch. days: how long the certificates are
    valid from `now` on; none outlives the authority. new_authority: replace the folder's, and keep its files as "old".

    Raises ConfigurationError; nothing has been written then, unless a file cannot be.
    """
    if not api and not switches:
        raise ConfigurationError("there is nothing to sign: give --api HOST, or --switch NAME=HOST")
    servers = {"api": tuple(api)} if api else {}
    for name, hosts in switches.items():
        if not _SWITCH.fullmatch(name):
            raise ConfigurationError(
                f"--switch {name}: a switch's name is at most 63 letters, digits and . _ -, the first a letter or digit"
            )
        servers[f"switch-{name}"] = tuple(hosts)
    alternatives = {name: _alternatives(hosts) for name, hosts in servers.items()}
    new_authority = new_authority or not _exists(folder)
    authority = _new_authority(now) if new_authority else _load(folder, now)
    now = now.replace(microsecond=0)
    until = min(now + timedelta(days=days), authority.certificate.not_valid_after_utc)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if new_authority:
            _keep(folder)
            _write(folder / "ca", authority.certificate, authority.key)
        issued = []
        for name, hosts in servers.items():
            use = ExtendedKeyUsageOID.SERVER_AUTH
            _write(folder / name, *_signed(authority, name, use, alternatives[name], now, until))
            issued.append(Issued(folder / f"{name}.pem", hosts, until))
        if switches:
            client = _signed(authority, "controller", ExtendedKeyUsageOID.CLIENT_AUTH, None, now, until)
            _write(folder / "controller", *client)
            issued.append(Issued(folder / "controller.pem", (), until))
    except OSError as error:
        raise ConfigurationError(f"cannot write {error.filename}: {error.strerror}") from error
    return [Issued(folder / "ca.pem", (), authority.certificate.not_valid_after_utc), *issued]


def left_over(folder: Path) -> list[Path]:
    """The folder's certificates that its authority has not signed: parts that know only this authority refuse them."""
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    found = []
    for path in sorted(folder.glob("*.pem")):
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
        except (OSError, ValueError):  # something else
            continue
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            found.append(path)
    return found


def _keep(folder: Path) -> None:
    """Copy the authority's files to names that no earlier authority has."""
    names = ("ca.pem", "ca.key")
    endings = ("old" if number == 1 else f"old{number}" for number in count(1))
    free = next(
        ending for ending in endings if not any((folder / f"{name}.{ending}").exists() for name in names)
    )
    for name in names:
        if (folder / name).exists():
            _replace(folder / f"{name}.{free}", (folder / name).read_bytes(), _SECRET)


def _exists(folder: Path) -> bool:
    """Whether the folder has an authority. Raises ConfigurationError if it has half of one."""
    certificate, key = (folder / "ca.pem").exists(), (folder / "ca.key").exists()
    if certificate != key:
        missing, there = ("ca.key", "ca.pem") if certificate else ("ca.pem", "ca.key")
        raise ConfigurationError(
            f"{folder} has {there} but no {missing}: bring the file back to renew certificates, or make another "
            "authority with --force, which all hosts, switches and the controller must get"
        )
    return certificate


def _load(folder: Path, now: datetime) -> _Authority:
    path, key_path = folder / "ca.pem", folder / "ca.key"
    try:
        if key_path.stat().st_mode & _OTHERS:
            raise ConfigurationError(f"{key_path}: others can read it; run `chmod 600 {key_path}`")
        pem, key_pem = path.read_bytes(), key_path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {error.filename}: {error.strerror}") from error
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        certificate.verify_directly_issued_by(certificate)
        certified = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        certified = False
    if not certified:
        raise ConfigurationError(
            f"{path} is not the certificate of an authority that signs itself, in PEM form"
        )
    try:
        key = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError) as error:  # TypeError: it is encrypted
        raise ConfigurationError(f"{key_path} is not a private key in PEM form without a password") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigurationError(f"{key_path} is not the key of {path}")
    if certificate.not_valid_after_utc <= now:
        raise ConfigurationError(
            f"{path} expired at {certificate.not_valid_after_utc:%Y-%m-%d}: make another authority with --force, which "
            "all hosts, switches and the controller must get"
        )
    return _Authority(certificate, key)


def _new_authority(now: datetime) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("inagg authority")
    certificate = (
        _builder(name, name, key, now, now + timedelta(days=_AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _Authority(certificate, key)


def _signed(
    authority: _Authority,
    name: str,
    use: ObjectIdentifier,
    alternatives: x509.SubjectAlternativeName | None,
    now: datetime,
    until: datetime,
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    own = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _builder(_name(f"inagg {name}"), issuer.subject, key, now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False)
    )
    if alternatives is not None:
        builder = builder.add_extension(alternatives, critical=False)
    return builder.sign(authority.key, hashes.SHA256()), key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    # 64 characters at most (RFC 5280, appendix A.1: ub-common-name).
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternatives(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    """What clients compare with the host of their URL. Raises ConfigurationError."""
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not _HOST_NAME.fullmatch(host) or host.replace(".", "").isdecimal():
                raise ConfigurationError(
                    f"{host!r} is neither an IP address nor a host name; leave out the scheme and the port"
                ) from None
            names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(names)


def _write(path: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """Write path.key and path.pem."""
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _replace(path.with_name(f"{path.name}.key"), secret, _SECRET)
    _replace(
        path.with_name(f"{path.name}.pem"), certificate.public_bytes(serialization.Encoding.PEM), _PUBLIC
    )


def _replace(path: Path, content: bytes, mode: int) -> None:
    """Write a file at once: nobody sees a part of it, or a secret with another mode."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)  # whatever the umask is
            file.write(content)
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
