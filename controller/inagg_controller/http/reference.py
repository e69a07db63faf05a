# SPDX-License-Identifier: Apache-2.0
"""Renders the API's OpenAPI description: GET /docs, a self-contained page, and docs/controller-api.md."""

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

_environment = Environment(
    loader=PackageLoader("inagg_controller"),
    autoescape=lambda name: name is not None and name.endswith(".html.j2"),
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)


def _documents(type_: str) -> str:
    """A type in Markdown, linked if it is a document."""
    escaped = type_.replace("|", "\\|")
    return f"[{type_}](#{type_.lower()})" if type_.isidentifier() and type_[0].isupper() else escaped


_environment.filters["documents"] = _documents


def reference_page(description: Mapping[str, Any]) -> str:
    """An OpenAPI description as HTML."""
    return _render("reference.html.j2", description)


def reference_markdown(description: Mapping[str, Any]) -> str:
    """An OpenAPI description as Markdown."""
    return _render("reference.md.j2", description)


def _render(template: str, description: Mapping[str, Any]) -> str:
    operations = [
        {
            "method": method.upper(),
            "path": path,
            "text": operation.get("description", ""),
            "needs": ", ".join(name for entry in operation.get("security", []) for name in entry),
            "parameters": [
                (each["name"], each["in"], _type(each["schema"]), "" if each["required"] else "optional")
                for each in operation.get("parameters", [])
            ],
            "body": _content(operation.get("requestBody", {})),
            "answers": {
                status: (answer["description"], _content(answer))
                for status, answer in operation["responses"].items()
            },
        }
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]
    documents = {
        name: {
            "text": schema.get("description", ""),
            "fields": [
                (field, _type(of), "" if field in schema.get("required", ()) else "optional")
                for field, of in schema.get("properties", {}).items()
            ],
        }
        for name, schema in sorted(description["components"]["schemas"].items())
    }
    return _environment.get_template(template).render(
        title=description["info"]["title"],
        version=description["info"]["version"],
        text=description["info"]["description"],
        operations=operations,
        documents=documents,
    )


def _content(of: Mapping[str, Any]) -> str:
    """The type of the document in a request's body or an answer; empty without a document."""
    kinds = list(of.get("content", {}).values())
    return _type(kinds[0].get("schema", {})) if kinds else ""


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return " | ".join(f'"{value}"' for value in schema.get("enum", [schema.get("const")]))
    if "prefixItems" in schema:
        return f"[{', '.join(map(_type, schema['prefixItems']))}]"
    if schema.get("type") == "array":
        return f"[{_type(schema['items'])}]"
    if schema.get("type") == "object":
        inner = schema.get("additionalProperties", True)
        return (
            f"{{key: {_type(inner)}}}" if isinstance(inner, Mapping) else str(schema.get("title", "object"))
        )
    bounds = [
        f"{sign} {_number(schema[name])}"
        for name, sign in (
            ("minimum", "≥"),
            ("maximum", "≤"),
            ("exclusiveMinimum", ">"),
            ("exclusiveMaximum", "<"),
            ("maxLength", "length ≤"),
        )
        if name in schema
    ]
    return " ".join([str(schema.get("type", "any")), *bounds])


def _number(bound: float) -> str:
    """A bound as text: integers without a point, large powers of two as 2^n."""
    whole = int(bound)
    if whole != bound:
        return str(bound)
    return f"2^{whole.bit_length() - 1}" if whole > 1 << 20 and whole & (whole - 1) == 0 else str(whole)
