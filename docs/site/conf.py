# SPDX-License-Identifier: Apache-2.0
"""Builds the site of the documentation: `make docs`.

The pages are the repository's own Markdown files. The folder of sources is the repository, so a link leads to the same
page here and on a forge. docs/README.md is the menu. A link to a page or a heading that does not exist fails the build.
"""

import re
from importlib.metadata import version as installed
from pathlib import Path

from docutils import nodes
from pygments.lexers.c_cpp import CLexer
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
HOME, MENU, COURSE = "README", "docs/README", "docs/course/README"

project = "inagg"
version = release = installed("inagg")
html_title = f"inagg {version}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = HOME
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/course/**.md",
    "docs/site/api.rst",
    "p4/README.md",
    "switch/README.md",
]
exclude_patterns = [".*", "build", "results"]

myst_heading_anchors = 4
html_theme = "furo"
html_copy_source = False
html_show_copyright = False

default_role = "code"  # single backquotes in docstrings
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 80


def menu() -> str:
    """The site's menu: the lists of links of docs/README.md. A page that is in two lists stands in the first."""
    listed = {HOME}
    trees = [f"```{{toctree}}\n:hidden:\n\n{MENU}\n```"]
    for section in (ROOT / MENU).with_suffix(".md").read_text().split("\n## ")[1:]:
        linked = re.findall(r"^- \[[^]]*\]\(([^)#]+)\.(?:md|rst)\)", section, re.MULTILINE)
        pages = [str((ROOT / "docs" / page).resolve().relative_to(ROOT)) for page in linked]
        entries = "\n".join("/" + page for page in dict.fromkeys(pages) if page not in listed)
        listed.update(pages)
        trees.append(f"```{{toctree}}\n:hidden:\n:caption: {section.partition(chr(10))[0]}\n\n{entries}\n```")
    return "\n\n".join(trees)


def add_menu(app: Sphinx, page: str, source: list[str]) -> None:
    if page == HOME:
        source[0] += "\n\n" + menu()
    elif page == COURSE:
        source[0] += "\n\n```{toctree}\n:hidden:\n:glob:\n\nlab*/README\n```"


def name_folders(app: Sphinx, page: nodes.document) -> None:
    """Make the link to a folder of the repository the folder's name. A link to a source file leads to a copy of it."""
    links = [link for link in page.findall(pending_xref) if link["reftype"] == "myst"]
    for link in links:
        folder = (ROOT / Path(link["refdoc"]).parent / link["reftarget"]).resolve()
        if folder.is_dir():
            name = f"{folder.relative_to(ROOT)}/"
            link.replace_self(nodes.literal(name, name))


def mark_code(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """In docstrings an indented block after an empty line is code, as in Markdown."""
    is_code = False
    marked: list[str] = []
    for line in lines:
        indented = line.startswith("    ")
        if indented and not is_code and marked and not marked[-1]:
            marked += ["::", ""]
        is_code = indented or (is_code and not line)
        marked.append(line)
    lines[:] = marked


def plain_types(
    app: Sphinx,
    what: str,
    name: str,
    thing: object,
    options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Signatures without pydantic's validators."""
    validated = r"~?typing\.Annotated\[(~?typing\.Literal\[[^]]*\]), [^()]*BeforeValidator\([^)]*\)\]"
    return signature and re.sub(validated, r"\1", signature), returns


def write_front_door(app: Sphinx, error: Exception | None) -> None:
    """The site's address without a page leads to the README."""
    if error is None:
        (Path(app.outdir) / "index.html").write_text(
            f'<!doctype html><title>inagg</title><meta http-equiv="refresh" content="0; url={HOME}.html">\n'
        )


def setup(app: Sphinx) -> None:
    app.add_lexer("p4", CLexer)
    app.connect("source-read", add_menu)
    app.connect("doctree-read", name_folders)
    app.connect("autodoc-process-docstring", mark_code, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", plain_types)
    app.connect("build-finished", write_front_door)
