# SPDX-License-Identifier: Apache-2.0
"""The HTTP API: JSON documents in, JSON or problem documents (RFC 9457) out.

Read `models` (the documents), then `api` (the routes). `guard` decides who may ask for what, `connections` how many
may ask at once; `metrics` and `reference` are the pages /metrics and /docs.
"""
