# SPDX-License-Identifier: Apache-2.0
"""Contracts between the parts of inagg: the P4 program's constants, the documents of the controller's HTTP API.

`constants` is generated from p4/include/constants.p4, `sizes` derives packet sizes from it, `documents` is the schema
of the HTTP API, `program` finds the P4 program. This package needs only pydantic, so a worker needs no web framework
and a launcher no torch.
"""
