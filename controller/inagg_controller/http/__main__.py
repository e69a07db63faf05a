# SPDX-License-Identifier: Apache-2.0
"""python -m inagg_controller.http: prints docs/controller-api.md."""

from inagg_controller.http.api import description
from inagg_controller.http.reference import reference_markdown

print(reference_markdown(description()), end="")
