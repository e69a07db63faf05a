# SPDX-License-Identifier: Apache-2.0
"""Gloo's devices: what the environment asks for."""

import os
import subprocess
import sys

# Another process, because torch reads the variable once and would open no device in this one any more.
PROGRAM = """
from inagg.errors import ConfigurationError
from inagg.inner.devices import open_devices
try:
    open_devices("127.0.0.1", None)
except ConfigurationError as error:
    print(error)
"""


def test_a_transport_that_gloo_does_not_have_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "GLOO_DEVICE_TRANSPORT": "PIGEON"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "GLOO_DEVICE_TRANSPORT is 'PIGEON'" in done.stdout
    assert "Unset it" in done.stdout
