# SPDX-License-Identifier: Apache-2.0
"""Gloo's devices: what the environment asks for."""

import pytest

from inagg.errors import ConfigurationError
from inagg.inner.devices import open_devices


def test_a_transport_that_gloo_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_DEVICE_TRANSPORT", "PIGEON")
    with pytest.raises(ConfigurationError, match=r"GLOO_DEVICE_TRANSPORT is 'PIGEON'.*Unset it"):
        open_devices("127.0.0.1", None)
