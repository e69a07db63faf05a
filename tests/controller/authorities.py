# SPDX-License-Identifier: Apache-2.0
"""Authorities and certificates for tests of TLS, as `inagg-controller certificates` makes them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from inagg_controller.certificates import issue

VALID_DAYS = 365


class Authorities:
    """Folders of `inagg-controller certificates`, for 127.0.0.1 where nothing else is said.

    good: of the authority that all trust. expired: of the same authority, certificates of the year before the last.
    elsewhere: of the same authority, for another host. stranger: of another authority.
    """

    def __init__(self, folder: Path) -> None:
        self.good, self.expired, self.elsewhere, self.stranger = (
            folder / name for name in ("good", "expired", "elsewhere", "stranger")
        )
        now = datetime.now(UTC)
        long_ago = now - timedelta(days=2 * VALID_DAYS)
        self._issue(self.expired, "127.0.0.1", long_ago)
        for path in (self.good, self.elsewhere):
            path.mkdir()
            for name in ("ca.pem", "ca.key"):
                (path / name).write_bytes((self.expired / name).read_bytes())
                (path / name).chmod(0o600)
        self._issue(self.good, "127.0.0.1", now)
        self._issue(self.elsewhere, "elsewhere.example", now)
        self._issue(self.stranger, "127.0.0.1", now)

    @staticmethod
    def _issue(folder: Path, host: str, now: datetime) -> None:
        issue(folder, api=[host], switches={"s1": [host]}, days=VALID_DAYS, now=now)
