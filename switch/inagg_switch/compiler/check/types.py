# SPDX-License-Identifier: Apache-2.0
"""Makes types from their references and declarations."""

from collections.abc import Mapping
from typing import Any

from inagg_switch.compiler import fold, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.context import Checker
from inagg_switch.compiler.check.names import check_annotations, declare
from inagg_switch.compiler.check.values import constant_value
from inagg_switch.compiler.parse.lexer import MAX_WIDTH
from inagg_switch.errors import CompileError, Position

_MAX_VARBIT = 1 << 16
# Annotations of fields whose arguments are numbers, and what these are.
_NUMBERED = {"field_list": "the number of a field list", "steer": "the shift of a steering field"}
# Errors of core.p4 always have the first numbers: the runtime raises them too (runtime/packet.hpp).
_CORE_ERRORS = (
    "NoError",
    "PacketTooShort",
    "NoMatch",
    "StackOutOfBounds",
    "HeaderTooShort",
    "ParserTimeout",
    "ParserInvalidArgument",
)


# --- type references


def type_of(checker: Checker, ref: syntax.TypeRef) -> t.Type:
    if isinstance(ref, syntax.BaseTypeRef):
        return _base_type(checker, ref)
    if isinstance(ref, syntax.StackTypeRef):
        return _stack_type(checker, ref)
    if isinstance(ref, syntax.TupleTypeRef):
        return t.TupleType(tuple(type_of(checker, e) for e in ref.elements))
    if isinstance(ref, syntax.DontCareTypeRef):
        return t.ANYTHING
    assert isinstance(ref, syntax.NamedTypeRef)
    return _named_type(checker, ref)


def _base_type(checker: Checker, ref: syntax.BaseTypeRef) -> t.Type:
    simple = {
        "bool": t.BOOL,
        "error": t.ERROR,
        "string": t.STRING,
        "void": t.VOID,
        "match_kind": t.MATCH_KIND,
    }
    if ref.kind in simple:
        return simple[ref.kind]
    if ref.width is None:
        if ref.kind == "varbit":
            raise CompileError("varbit needs a width: varbit<W>", ref.at)
        return t.INTEGER if ref.kind == "int" else t.BitType(1)
    width = constant_value(checker, ref.width, "a width")
    most = _MAX_VARBIT if ref.kind == "varbit" else MAX_WIDTH
    if not 1 <= width <= most:
        raise CompileError(f"width {width} is not supported: expected 1 to {most}", ref.width.at)
    if ref.kind == "varbit":
        return t.VarbitType(width)
    return t.BitType(width, ref.kind == "int")


def _stack_type(checker: Checker, ref: syntax.StackTypeRef) -> t.Type:
    element = type_of(checker, ref.element)
    bits = t.strip(element)
    whole = isinstance(bits, t.StructType | t.TupleType | t.StackType) and not t.has_header(bits)
    scalar = isinstance(bits, t.BitType | t.EnumType) or bits in (t.BOOL, t.ERROR)
    what = "an array" if whole or scalar else "a header stack"
    if not (whole or scalar or t.is_header(element) or t.is_union(element)):
        raise CompileError(f"neither a stack nor an array can hold a value of type {element}", ref.at)
    size = constant_value(checker, ref.size, f"the size of {what}")
    if not 1 <= size <= 4096:
        raise CompileError(f"size {size} of {what} is not between 1 and 4096", ref.size.at)
    return t.StackType(element, size)


def _named_type(checker: Checker, ref: syntax.NamedTypeRef) -> t.Type:
    found = checker.scope.find(ref.name, absolute=ref.absolute)
    if found is None and ref.name == "list":
        raise CompileError("list types are not supported", ref.at)
    if found is None:
        raise CompileError(f"type `{ref.name}` is not declared", ref.at)
    if isinstance(found, t.Type):
        return found
    if not isinstance(found, syntax.TypeDeclaration):
        raise CompileError(f"`{ref.name}` is not a type", ref.at)
    arguments = tuple(type_of(checker, a) for a in ref.arguments)
    if arguments and len(arguments) != len(found.type_parameters):
        raise CompileError(
            f"`{ref.name}` takes {len(found.type_parameters)} type arguments, {len(arguments)} given",
            ref.at,
        )
    return declared_type(checker, found, arguments, ref.at)


def declared_type(
    checker: Checker, declaration: syntax.TypeDeclaration, arguments: tuple[t.Type, ...], at: Position
) -> t.Type:
    """The type of a declaration, its type parameters replaced by the arguments."""
    if isinstance(declaration, syntax.ExternDeclaration):
        return t.ExternType(declaration.name, declaration, arguments)
    if isinstance(declaration, syntax.BlockTypeDeclaration | syntax.Control | syntax.Parser):
        return t.BlockType(declaration.name, declaration, arguments)
    if declaration.type_parameters and not arguments:
        raise CompileError(f"`{declaration.name}` needs type arguments", at)
    if not arguments:
        return checker.declared[id(declaration)]
    key = (id(declaration), arguments)
    if key not in checker.specialised_types:
        assert isinstance(declaration, syntax.StructDeclaration)
        generic = checker.declared[id(declaration)]
        assert isinstance(generic, t.StructType)
        variables = [t.TypeVariable(n, generic.owner) for n in declaration.type_parameters]
        binding = dict(zip(variables, arguments, strict=True))
        name = f"{declaration.name}<{', '.join(map(str, arguments))}>"
        fields = {n: substitute(f, binding) for n, f in generic.fields.items()}

        def remake(others: tuple[t.Type, ...]) -> t.Type:
            return declared_type(checker, declaration, others, at)

        wrong = next((n for n, f in fields.items() if f in (t.INTEGER, t.STRING, t.VOID)), None)
        if wrong is not None:
            raise CompileError(f"field `{wrong}` of {name} cannot be of type {fields[wrong]}", at)
        checker.specialised_types[key] = t.StructType(
            generic.kind, name, fields, declaration, 0, arguments, remake
        )
        if not any(_is_open(a) for a in arguments):
            _check_header(declaration, fields)
    return checker.specialised_types[key]


# --- declarations of types


def declare_type(checker: Checker, declaration: syntax.TypeDeclaration) -> None:
    """Declares a struct, header, union, enum or typedef. Block and extern types need no entry in `declared`."""
    if isinstance(declaration, syntax.StructDeclaration):
        checker.declared[id(declaration)] = _struct(checker, declaration)
    elif isinstance(declaration, syntax.EnumDeclaration):
        checker.declared[id(declaration)] = _enum(checker, declaration)
    elif isinstance(declaration, syntax.TypedefDeclaration):
        base = type_of(checker, declaration.ref)
        if declaration.new:
            if not (isinstance(t.strip(base), t.BitType) or base == t.BOOL):
                raise CompileError(f"`type` needs a bit, int or bool type, not {base}", declaration.at)
            base = t.NewType(declaration.name, base, declaration)
        checker.declared[id(declaration)] = base
    declare(checker, declaration)


def _struct(checker: Checker, declaration: syntax.StructDeclaration) -> t.Type:
    with checker.type_parameters(declaration.type_parameters) as variables:
        fields: dict[str, t.Type] = {}
        for field in declaration.fields:
            with checker.recovering():
                if field.name in fields:
                    raise CompileError(
                        f"{declaration.kind} {declaration.name} has two fields `{field.name}`", field.at
                    )
                fields[field.name] = t.BROKEN
                fields[field.name] = _field(checker, declaration, field)
    _check_header(declaration, fields)
    owner = next((v.owner for v in variables.values()), 0)
    return t.StructType(declaration.kind, declaration.name, fields, declaration, owner)


def _field(checker: Checker, declaration: syntax.StructDeclaration, field: syntax.Field) -> t.Type:
    type_ = type_of(checker, field.ref)
    bits = t.strip(type_)
    scalar = isinstance(bits, t.BitType | t.VarbitType | t.TypeVariable) or bits == t.BOOL
    if declaration.kind == "header_union":
        fits = t.is_header(type_)
    elif declaration.kind == "header":
        fits = scalar or (isinstance(type_, t.StructType) and type_.kind == "struct")
        fits = fits or (isinstance(type_, t.StackType) and _is_array_of_bits(type_))
    else:
        fits = (
            scalar
            or bits == t.ERROR
            or isinstance(bits, t.EnumType | t.StructType | t.StackType | t.TupleType)
        )
    if not fits:
        raise CompileError(f"a {declaration.kind} cannot have a field of type {type_}", field.at)
    check_annotations(checker, field.annotations)
    for annotation in field.annotations:
        if annotation.name in _NUMBERED:
            what = _NUMBERED[annotation.name]
            annotation.arguments = [constant_value(checker, e, what) for e in annotation.expressions]
    return type_


def _check_header(declaration: syntax.StructDeclaration, fields: Mapping[str, t.Type]) -> None:
    if declaration.kind != "header" or any(_is_open(f) for f in fields.values()):
        return
    varbits = [n for n, f in fields.items() if isinstance(f, t.VarbitType)]
    if len(varbits) > 1:
        raise CompileError(f"header {declaration.name} has more than one varbit field", declaration.at)


def _enum(checker: Checker, declaration: syntax.EnumDeclaration) -> t.Type:
    base: t.BitType | None = None
    if declaration.base is not None:
        resolved = type_of(checker, declaration.base)
        if not isinstance(resolved, t.BitType):
            raise CompileError(f"the values of an enum must be bits, not {resolved}", declaration.at)
        base = resolved
    members: dict[str, int] = {}
    for number, (name, at, value) in enumerate(declaration.members):
        if name in members:
            raise CompileError(f"enum {declaration.name} has two members `{name}`", at)
        if (value is None) != (base is None):
            raise CompileError(
                f"member `{name}` "
                + ("needs a value" if base is not None else "has a value, but the enum has no base type"),
                at,
            )
        members[name] = number
        if base is not None and value is not None:
            members[name] = constant_value(checker, value, "the value of an enum member")
            if fold.wrap(members[name], base) != members[name]:
                raise CompileError(f"{members[name]} is not a value of {base}", value.start)
    return t.EnumType(declaration.name, base, members)


def declare_members(checker: Checker, declaration: syntax.MembersDeclaration) -> None:
    """Adds the members of `error { }` or `match_kind { }` to those already declared."""
    for name, at in declaration.members:
        known = checker.errors if declaration.name == "error" else checker.match_kinds
        if name in known:
            checker.found.report(CompileError(f"{declaration.name} `{name}` is already declared", at))
        elif declaration.name == "error":
            others = len(checker.errors.keys() - _CORE_ERRORS)
            checker.errors[name] = (
                _CORE_ERRORS.index(name) if name in _CORE_ERRORS else len(_CORE_ERRORS) + others
            )
        else:
            checker.match_kinds.add(name)


def _is_array_of_bits(type_: t.Type) -> bool:
    """True for an array of bits, which is allowed in a header."""
    if isinstance(type_, t.StackType):
        return _is_array_of_bits(type_.element)
    if isinstance(type_, t.StructType):
        return type_.kind == "struct"
    return isinstance(t.strip(type_), t.BitType) or t.strip(type_) == t.BOOL


def _is_open(type_: t.Type) -> bool:
    """True if the type has type variables in it."""
    if isinstance(type_, t.StructType | t.ExternType | t.BlockType):
        return any(_is_open(a) for a in type_.arguments)
    if isinstance(type_, t.TupleType):
        return any(_is_open(e) for e in type_.elements)
    return isinstance(type_, t.TypeVariable) or (isinstance(type_, t.StackType) and _is_open(type_.element))


def substitute(type_: t.Type, binding: Mapping[t.TypeVariable, t.Type]) -> t.Type:
    """The type with its type variables replaced."""
    if isinstance(type_, t.TypeVariable):
        return binding.get(type_, type_)
    if isinstance(type_, t.TupleType):
        return t.TupleType(tuple(substitute(e, binding) for e in type_.elements), type_.exact)
    if isinstance(type_, t.StackType):
        return t.StackType(substitute(type_.element, binding), type_.size)
    if isinstance(type_, t.StructType) and type_.remake is not None and _is_open(type_):
        return type_.remake(tuple(substitute(a, binding) for a in type_.arguments))
    if isinstance(type_, t.ExternType):
        return t.ExternType(
            type_.name, type_.declaration, tuple(substitute(a, binding) for a in type_.arguments)
        )
    if isinstance(type_, t.BlockType):
        return t.BlockType(
            type_.name, type_.declaration, tuple(substitute(a, binding) for a in type_.arguments)
        )
    return type_


def set_fields(type_: t.Type) -> list[tuple[str, t.Type, Any]]:
    """The scalars of a value set's SetType: name, type, and the declaring field (None if the set is of scalars)."""
    assert isinstance(type_, t.SetType)
    element = type_.element
    return _scalars(element) if isinstance(element, t.StructType | t.TupleType) else [("", element, None)]


def _scalars(type_: t.StructType | t.TupleType) -> list[tuple[str, t.Type, Any]]:
    found: list[tuple[str, t.Type, Any]] = []
    if isinstance(type_, t.TupleType):
        parts: list[tuple[str, t.Type, Any]] = [(f"f{i}", e, None) for i, e in enumerate(type_.elements)]
    else:
        declared = {f.name: f for f in type_.declaration.fields}
        parts = [(n, f, declared[n]) for n, f in type_.fields.items()]
    for name, part, field in parts:
        if isinstance(part, t.StructType | t.TupleType):
            found.extend((f"{name}.{inner}", type_, field) for inner, type_, field in _scalars(part))
        else:
            found.append((name, part, field))
    return found
