# SPDX-License-Identifier: Apache-2.0
"""What the parts of inagg agree on, each thing once: the P4 program's constants, the controller's HTTP documents.

`constants` is generated from p4/include/constants.p4, `sizes` derives packet sizes from it, `documents` is the schema
of the HTTP API. This package needs pydantic only, so a worker needs no web framework and a launcher no torch.
"""
