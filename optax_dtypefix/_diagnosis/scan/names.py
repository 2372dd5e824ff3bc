"""Find what a syntax tree takes from optax. Names are resolved as Python resolves them."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

_MODULES = frozenset(
    f"optax{name}"
    for name in (
        *("", ".contrib", ".experimental", ".losses", ".microbatching", ".monte_carlo"),
        *(".perturbations", ".projections", ".schedules", ".second_order", ".transforms"),
        *(".tree", ".tree_utils"),
    )
)
_IMPORT_BY_NAME = ("import_module", "importorskip", "__import__")
_BRANCHES = (ast.expr, ast.arguments)
"""What a node may have one of, as opposed to a list."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Names(NamedTuple):
    """What a tree takes from optax.

    Attributes:
      uses: pairs of a line and a path, such as ``optax.contrib.prodigy``.
      unresolved: lines that use a module of optax otherwise, such as ``getattr(optax, name)``.
    """

    uses: set[tuple[int, str]]
    unresolved: set[int]


def names_in(tree: ast.Module) -> Names:
    """Find all uses. A function that is imported and not used counts where it is imported."""
    walk, found = _Walk(tree), Names(set(), set())
    for node, scope in walk.reads:
        path = scope.path_of(node)
        if path and path not in _MODULES:
            found.uses.add((node.lineno, path))
        elif path and id(node) not in walk.parts:
            found.unresolved.add(node.lineno)
    used = {path for _, path in found.uses}
    for line, path in walk.imported:
        if path.startswith("optax.") and path.endswith(".*"):
            found.unresolved.add(line)
        elif path.startswith("optax.") and path not in used:
            found.uses.add((line, path))
    return found


class _Scope:
    """A module, class or function: for each name, the paths and expressions bound to it."""

    def __init__(self, outer: _Scope | None = None, *, is_class: bool = False) -> None:
        self.outer = outer
        self.is_class = is_class
        self.bound: dict[str, list[Any]] = {}

    def bind(self, name: str, value: Any = "") -> None:
        """Bind a name to the path of an import, to an expression, or to something else."""
        self.bound.setdefault(name, []).append(value)

    def path_of(self, value: Any) -> str:
        """Return the path that an expression stands for; empty if that is nothing of optax."""
        if isinstance(value, str):
            return value if value.partition(".")[0] == "optax" else ""
        if isinstance(value, ast.Name):
            return self._path_of_name(value.id)
        of, attribute = value, ""
        if isinstance(value, ast.Attribute):
            of, attribute = value.value, value.attr
        elif isinstance(value, ast.Call) and value.args:
            of, attribute = value.args[0], _literal(value)
            if _function(value) in _IMPORT_BY_NAME:
                return self.path_of(getattr(of, "value", None))
        module = self.path_of(of) if attribute else ""
        return module and f"{module}.{attribute}"

    def _path_of_name(self, name: str) -> str:
        scope: _Scope | None = self
        while scope and name not in scope.bound:
            scope = scope.outer
        if not scope:  # Bound by a star import, for example.
            return self.path_of(name)
        values = scope.bound[name]
        candidates, values[:] = values[:], [""]  # ``x = x`` stands for nothing.
        # Of several, as in ``try`` and ``except``, the one of optax counts.
        values[:] = [next(filter(None, map(scope.path_of, candidates)), "")]
        return str(values[0])


class _Walk:
    """What is read and bound in a tree, in which scope. Not by recursion: trees may be deep.

    Attributes:
      reads: expressions that may stand for something of optax.
      parts: ids of expressions that a larger one resolves, such as ``optax`` in ``optax.adam``.
      imported: pairs of a line and a path, of each ``from ... import``.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.reads: list[tuple[ast.expr, _Scope]] = []
        self.parts: set[int] = set()
        self.imported: list[tuple[int, str]] = []
        self._module = _Scope()
        waiting: list[tuple[ast.AST, _Scope]] = [(tree, self._module)]
        for node, scope in waiting:  # The loop appends to it.
            inner = self._look_at(node, scope)
            for field in node._fields:
                value = getattr(node, field, None)
                # Decorators, bases and defaults are outside of the scope that they belong to.
                where = inner if field == "body" else scope
                if isinstance(value, list):
                    waiting += [(child, where) for child in value if isinstance(child, ast.AST)]
                elif isinstance(value, _BRANCHES):
                    waiting.append((value, where))

    def _look_at(self, node: Any, scope: _Scope) -> _Scope:
        """Note what a node reads and binds, and return the scope of its body."""
        if isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
            self._read(node, scope)
        elif isinstance(node, ast.Assign):
            self.parts.add(id(node.value))
            for target in node.targets:
                scope.bind(getattr(target, "id", ""), node.value)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                scope.bind(alias.asname or name, name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                path = "." * node.level + f"{node.module}.{alias.name}"
                scope.bind(alias.asname or alias.name, path)
                self.imported.append((node.lineno, path))
        elif isinstance(node, ast.Global):
            scope.bound.update((n, self._module.bound.setdefault(n, [])) for n in node.names)
        elif isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            scope.bind(getattr(node, "name", ""))
            # The functions of a class do not see its names.
            outer = scope.outer if scope.is_class else scope
            inner = _Scope(outer, is_class=isinstance(node, ast.ClassDef))
            for part in ast.iter_child_nodes(getattr(node, "args", node)):
                if isinstance(part, ast.arg):
                    inner.bind(part.arg)
            return inner
        return scope

    def _read(self, node: Any, scope: _Scope) -> None:
        if isinstance(node, ast.Call):
            if _function(node) == "hasattr" or _literal(node):
                self.parts.update(map(id, node.args))
        elif isinstance(node, ast.Attribute):
            self.parts.add(id(node.value))
        elif isinstance(node.ctx, ast.Store):
            scope.bind(node.id)
            return
        self.reads.append((node, scope))


def _function(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _literal(call: ast.Call) -> str:
    """Return the name that ``getattr`` is given, if it is a literal."""
    if _function(call) != "getattr" or len(call.args) < 2:
        return ""
    literal = getattr(call.args[1], "value", None)
    return literal if isinstance(literal, str) else ""
