# SPDX-License-Identifier: Apache-2.0
"""Lowers functions, and instances of controls and parsers, with their local declarations."""

from inagg_switch.compiler import ir, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.lower.constants import zero
from inagg_switch.compiler.lower.context import Instance, Scope, StaticArgument
from inagg_switch.compiler.lower.expressions import expression
from inagg_switch.compiler.lower.instances import is_static, make_instance
from inagg_switch.compiler.lower.parsers import lower_state, lower_value_set
from inagg_switch.compiler.lower.statements import lower_body
from inagg_switch.compiler.lower.tables import lower_table
from inagg_switch.compiler.names import control_plane_name


def lower_function(scope: Scope, declaration: syntax.Function, static: list[StaticArgument]) -> ir.Function:
    """Lowers a function written in P4 for the values of its static parameters. The checker makes sure that it calls no
    action and applies no table."""
    assert declaration.body is not None
    given = iter(static)
    parameters: list[ir.Parameter] = []
    for p in declaration.parameters:
        if is_static(p):
            scope.values[id(p)] = next(given)
        else:
            parameters.append(ir.Parameter(scope.variable(p, p.type), p.type, p.direction or "in"))
    scope.locals.update(p.name for p in parameters)
    name = scope.stage.code_names.unique(declaration.name)
    return ir.Function(name, parameters, declaration.result_type, lower_body(scope, declaration.body))


def lower_block(scope: Scope, instance: Instance) -> ir.Block:
    """Lowers one instance of a control or parser."""
    declaration = instance.declaration
    scope.values.update(instance.values)
    name = scope.stage.code_names.unique(instance.path)
    scope.namespace.unique(name)  # a member must not have the name of its class
    block = ir.Block(name, instance.path, declaration, _parameters(scope, instance), scope.members)
    for local in declaration.locals:
        with scope.recovering(local):
            _local(scope, local)
    if isinstance(declaration, syntax.Parser):
        for state in declaration.states:
            with scope.recovering(state):
                block.states.append(lower_state(scope, state))
    else:
        body = lower_body(scope, declaration.body)
        block.body = ir.Group((*_initialisations(scope), body))
    block.actions = list(scope.actions.values())
    block.tables = list(scope.tables.values())
    block.parts = _parts(scope, declaration)
    block.objects = scope.objects
    block.exits = ir.exits(block.body)
    return block


def _parameters(scope: Scope, instance: Instance) -> list[ir.Parameter]:
    given = iter(instance.static)
    parameters: list[ir.Parameter] = []
    for p in instance.declaration.parameters:
        if is_static(p):
            scope.values[id(p)] = next(given)
            continue
        direction = p.direction or ("ref" if isinstance(p.type, t.ExternType) else "in")
        parameters.append(ir.Parameter(scope.variable(p, p.type), p.type, direction))
    return parameters


def _parts(scope: Scope, declaration: syntax.Control | syntax.Parser) -> list[ir.Action | ir.Block]:
    places = {id(local): place for place, local in enumerate(declaration.locals)}
    placed: list[tuple[int, ir.Action | ir.Block]] = [
        (places[number], action) for number, action in scope.actions.items() if number in places
    ]
    for number, instance in scope.instances:
        if instance.block is not None:
            placed.append((places.get(number, len(places)), instance.block))
    return [part for _, part in sorted(placed, key=lambda one: one[0])]


# --- local declarations


def _local(scope: Scope, local: syntax.Declaration) -> None:
    if isinstance(local, syntax.Instantiation):
        make_instance(scope, local)
    elif isinstance(local, syntax.Variable):
        initial = zero(local.type) if local.value is None else expression(scope, local.value)
        name = scope.variable(local, local.type)
        scope.members.append(ir.Declare(name, local.type, initial))
    elif isinstance(local, syntax.Table):
        scope.tables[id(local)] = lower_table(scope, local)
    elif isinstance(local, syntax.ValueSet):
        full_name = control_plane_name(local, scope.path)
        member = scope.stage.members.unique(full_name)
        scope.add_object(lower_value_set(scope, local, full_name, member))


def _initialisations(scope: Scope) -> list[ir.Stmt]:
    """Assignments of the initial values of the block's variables; they run at each apply."""
    return [
        ir.Assign(ir.Var(m.type, m.name), m.value)
        for m in scope.members
        if m.value is not None and not (isinstance(m.value, ir.Const) and m.value.value is None)
    ]


def lower_action(scope: Scope, declaration: syntax.Action) -> ir.Action:
    outer = scope.locals
    parameters = [
        ir.Parameter(scope.variable(p, p.type), p.type, p.direction or "in") for p in declaration.parameters
    ]
    scope.locals = {p.name for p in parameters}
    body = lower_body(scope, declaration.body)
    scope.locals = outer
    assert not isinstance(scope.declaration, syntax.Function)
    own = any(local is declaration for local in scope.declaration.locals)
    full_name = control_plane_name(declaration, scope.path if own else "")
    return ir.Action(
        scope.namespace.unique(declaration.name), full_name, declaration, parameters, body, ir.exits(body)
    )
