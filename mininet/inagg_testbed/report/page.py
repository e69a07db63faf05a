# SPDX-License-Identifier: Apache-2.0
"""HTML pages from the templates beside this module. A page is one file: its pictures are in it."""

import base64
from pathlib import Path
from typing import Any

import jinja2


def render(template: str, **values: Any) -> str:
    """A page. template: its name in templates/. Values are escaped; one that is missing is an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("inagg_testbed.report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template(template).render(values)


def embedded(picture: Path) -> str:
    """A PNG file as the URL that holds it."""
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
