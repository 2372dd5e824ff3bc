"""Find what a syntax tree takes from optax, and where other libraries add updates up with it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .functions import Given

_MODULES = frozenset(
    f"optax{name}"
    for name in (
        *("", ".contrib", ".experimental", ".losses", ".microbatching", ".monte_carlo"),
        *(".perturbations", ".projections", ".schedules", ".second_order", ".transforms"),
        *(".tree", ".tree_utils"),
    )
)
_ADD_UP = {
    "equinox.apply_updates": "equinox.apply_updates",
    "flax.nnx.Optimizer": "flax.nnx.Optimizer.update",
    "flax.nnx.ModelAndOptimizer": "flax.nnx.ModelAndOptimizer.update",
    "jaxopt.OptaxSolver": "jaxopt.OptaxSolver.update",
}
"""What adds up as ``apply_updates`` does: where it is built or called, and how it is shown."""

_APPLY_GRADIENTS = "flax.training.train_state.TrainState.apply_gradients"
_ROOTS = ("optax", "equinox", "flax", "jaxopt")
_IMPORT_BY_NAME = ("import_module", "importorskip", "__import__")
_OF_MOMENTS = ("mu_dtype", "accumulator_dtype", "dtype_momentum")
_HALF = ("bfloat16", "float16", "half")
_WIDE = ("float32", "single", "float64", "double", "float")

Moments = frozenset[tuple[str, bool]]
"""Arguments that ask for a dtype of moments, and whether that is a half-precision literal.

By place, a literal has no name. A literal that is wide, or None, asks for nothing.
"""


class Use(NamedTuple):
    """A use of a function, such as ``optax.contrib.prodigy``.

    Attributes:
      line: its line.
      path: the path of the function.
      given: what the call passes, or None if that cannot be read.
      moments: the dtypes of moments that it asks for.
      is_literal: whether it is a call with literals alone: none is an array.
    """

    line: int
    path: str
    given: Given | None = None
    moments: Moments = frozenset()
    is_literal: bool = False


class Names(NamedTuple):
    """What a tree takes from optax.

    Attributes:
      uses: of functions.
      unresolved: lines that use a module of optax otherwise, such as ``getattr(optax, name)``.
    """

    uses: set[Use]
    unresolved: set[int]


def names_in(tree: ast.Module) -> Names:
    """Find all uses. A function that is imported and not used counts where it is imported.

    A name has one meaning in the whole file. If a file binds it to something of optax and to
    something else, in other scopes for example, it counts as optax's.
    """
    nodes = sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0))
    file, found = _File(nodes), Names(set(), set())
    for node in nodes:
        path = file.find_path(node)
        if path and not _is_of_optax(path):
            if path in _ADD_UP:
                found.uses.add(Use(node.lineno, _ADD_UP[path]))  # type: ignore[attr-defined]
        elif path and path not in _MODULES:
            found.uses.add(file.use(node, path))
        elif path and id(node) not in file.parts:
            found.unresolved.add(node.lineno)  # type: ignore[attr-defined]
        elif _applies_gradients(node):
            found.uses.add(Use(node.lineno, _APPLY_GRADIENTS))  # type: ignore[attr-defined]
    used = {use.path for use in found.uses}
    for line, path in file.imported:
        if path.startswith("optax.") and path.endswith(".*"):
            found.unresolved.add(line)
        elif path.startswith("optax.") and path not in used:
            found.uses.add(Use(line, path))
    return found


class _File:
    """What the names of a file stand for.

    Attributes:
      parts: ids of expressions that a larger one resolves, such as ``optax`` in ``optax.adam``.
      imported: pairs of a line and a path, of each ``from ... import``.
      given: by the id of an expression that is called, what it is given.
      moments: in the same way, the dtypes of moments that it is asked for.
      literal: ids of expressions that are called with literals alone.
    """

    def __init__(self, nodes: Iterable[ast.AST]) -> None:
        self.parts: set[int] = set()
        self.imported: list[tuple[int, str]] = []
        self.given: dict[int, Given | None] = {}
        self.moments: dict[int, Moments] = {}
        self.literal: set[int] = set()
        self._bound: dict[str, str] = {}
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    path = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._bind(alias.asname or path, path)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    path = "." * node.level + f"{node.module}.{alias.name}"
                    self._bind(alias.asname or alias.name, path)
                    self.imported.append((node.lineno, path))
            elif isinstance(node, ast.Assign):
                self.parts.add(id(node.value))
                path = self.find_path(node.value)
                for target in node.targets if path else ():
                    self._bind(getattr(target, "id", ""), path)
            elif isinstance(node, ast.Attribute):
                self.parts.add(id(node.value))
            elif isinstance(node, ast.Call):
                self._read(node)
                if _function(node) == "hasattr" or _literal(node):
                    self.parts.update(map(id, node.args))

    def use(self, node: Any, path: str) -> Use:
        """Return the use of a function, with what it is given."""
        own = id(node)
        moments = self.moments.get(own, frozenset())
        return Use(node.lineno, path, self.given.get(own), moments, own in self.literal)

    def _read(self, call: ast.Call) -> None:
        """Note what a function is given, also as in ``inject_hyperparams(function)(...)``."""
        self.given[id(call.func)] = _given(call.args, call.keywords)
        self.moments[id(call.func)] = _moments(call.args, call.keywords)
        values = (*call.args, *(keyword.value for keyword in call.keywords))
        if self.given[id(call.func)] is not None and all(map(_is_literal, values)):
            self.literal.add(id(call.func))
        if isinstance(call.func, ast.Call) and call.func.args:
            function, *args = call.func.args
            both = [*args, *call.args], [*call.func.keywords, *call.keywords]
            self.given[id(function)], self.moments[id(function)] = _given(*both), _moments(*both)
        elif _function(call) == "partial" and call.args:
            self.moments[id(call.args[0])] = _moments(call.args[1:], call.keywords)

    def _bind(self, name: str, path: str) -> None:
        if not _is_of_optax(self._bound.get(name, "")):
            self._bound[name] = path

    def find_path(self, node: ast.AST) -> str:
        """Return the path that an expression stands for; empty if that is nothing of optax."""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            path = self._bound.get(node.id, node.id)  # Or bound by a star import, for example.
            return path if path.partition(".")[0] in _ROOTS else ""
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            return _join(self.find_path(node.value), node.attr)
        if isinstance(node, ast.Call) and node.args:
            if _function(node) in _IMPORT_BY_NAME:
                path = str(getattr(node.args[0], "value", ""))
                return path if _is_of_optax(path) else ""
            return _join(self.find_path(node.args[0]), _literal(node))
        return ""


def _given(args: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> Given | None:
    """Return the places and names of arguments that are not None; None if some cannot be read."""
    values = [*enumerate(args), *((keyword.arg, keyword.value) for keyword in keywords)]
    if any(name is None or isinstance(value, ast.Starred) for name, value in values):
        return None
    is_none = {name for name, value in values if getattr(value, "value", value) is None}
    return frozenset(name for name, _ in values if name is not None) - is_none


def _moments(args: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> Moments:
    named = [(each.arg, _is_half(each.value)) for each in keywords if each.arg in _OF_MOMENTS]
    by_place = (("", True) for value in args if _is_half(value))
    asked = ((name, is_half) for name, is_half in named if is_half is not False)
    return frozenset([*((str(name), bool(is_half)) for name, is_half in asked), *by_place])


def _is_literal(value: ast.AST) -> bool:
    """Whether an expression is a literal, as ``1e-3``, ``-1`` and ``1 / 3`` are."""
    parts = [*ast.walk(value)]
    kinds = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop)
    return all(isinstance(part, kinds) for part in parts)


def _applies_gradients(node: ast.AST) -> bool:
    """Whether this is a call as in ``state.apply_gradients(grads=grads)``."""
    return (
        isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "apply_gradients"
        and "grads" in [keyword.arg for keyword in node.keywords]
    )


def _is_half(value: ast.expr) -> bool | None:
    """Whether an expression is a dtype of half precision; None if that cannot be read."""
    if isinstance(value, ast.Call):
        return _is_half(value.args[0]) if _function(value) == "dtype" and value.args else None
    names = (getattr(value, name, "") for name in ("attr", "id", "value"))
    name = next((name for name in names if isinstance(name, str) and name), "")
    if name in _HALF:
        return True
    return False if name in _WIDE or isinstance(value, ast.Constant) else None


def _is_of_optax(path: str) -> bool:
    return path.partition(".")[0] == "optax"


def _join(module: str, attribute: str) -> str:
    return f"{module}.{attribute}" if module and attribute else ""


def _function(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _literal(call: ast.Call) -> str:
    """Return the name that ``getattr`` is given, if it is a literal."""
    if _function(call) != "getattr" or len(call.args) < 2:
        return ""
    literal = getattr(call.args[1], "value", None)
    return literal if isinstance(literal, str) else ""
