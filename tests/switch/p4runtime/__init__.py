# SPDX-License-Identifier: Apache-2.0
"""Tests of the P4Runtime server over real gRPC. `client` is a controller, `objects` has the messages that it writes."""
