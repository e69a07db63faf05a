# SPDX-License-Identifier: Apache-2.0
"""TLS of the API, where the controller is a server, and of P4Runtime, where it is a client. Files are in PEM form.

Each function raises ConfigurationError, which names the file.
"""

import logging
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from inagg_controller.errors import ConfigurationError

_log = logging.getLogger(__name__)

_RENEW = timedelta(days=30)


def server_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The TLS of the API from --tls-cert and --tls-key; None without them."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigurationError("HTTPS needs both --tls-cert and --tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_pair(context, certificate, key)
    _warn_before_end(certificate)
    return context


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTls:
    """TLS of the connections to switches. authority: of the switches' certificates.

    certificate, key: the controller's own, for switches that admit only their authority's clients; or neither.
    """

    authority: Path
    certificate: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """A context for a handshake as gRPC makes it, with the files as they are now."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(self.authority)
        except ssl.SSLError as error:
            raise ConfigurationError(f"{self.authority} has no certificate in PEM form") from error
        except OSError as error:
            raise ConfigurationError(f"cannot read {self.authority}: {error.strerror}") from error
        if self.certificate is not None and self.key is not None:
            _load_pair(context, self.certificate, self.key)
        context.set_alpn_protocols(["h2"])
        return context


def switch_tls(authority: Path | None, certificate: Path | None, key: Path | None) -> SwitchTls | None:
    """The TLS of --p4runtime-ca, --p4runtime-cert and --p4runtime-key; None without them."""
    if (certificate is None) != (key is None):
        raise ConfigurationError("--p4runtime-cert and --p4runtime-key belong together")
    if authority is None:
        if certificate is not None:
            raise ConfigurationError(
                "--p4runtime-cert needs --p4runtime-ca, by which the controller knows switches"
            )
        return None
    tls = SwitchTls(authority=authority, certificate=certificate, key=key)
    tls.context()
    if certificate is not None:
        _warn_before_end(certificate)
    return tls


def _load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        until = _end(certificate)
        # Without a password it would ask for one at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (ValueError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"{certificate} and {key} are not a certificate and its key in PEM form"
        ) from error
    except OSError as error:
        place = error.filename or key  # load_cert_chain names no file
        raise ConfigurationError(f"cannot read {place}: {error.strerror}") from error
    if until <= datetime.now(UTC):
        raise ConfigurationError(
            f"{certificate} expired at {until:%Y-%m-%d %H:%M} UTC; renew it (inagg-controller certificates)"
        )


def _warn_before_end(certificate: Path) -> None:
    until = _end(certificate)
    if until - datetime.now(UTC) < _RENEW:
        _log.warning("%s expires at %s; renew it (inagg-controller certificates)", certificate, until)


def _end(certificate: Path) -> datetime:
    """When the first certificate of the file, which is the server's or client's own, expires."""
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
