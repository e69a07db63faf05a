# SPDX-License-Identifier: Apache-2.0
"""The HTTP API: JSON documents in, JSON or problem documents (RFC 9457) out.

Read `inagg_contract.documents` (the documents), then `api` (the routes). `guard` decides who may make which request,
`connections` limits connections; `metrics` and `reference` are the pages /metrics and /docs.
"""
