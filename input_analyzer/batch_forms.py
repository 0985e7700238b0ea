"""Plan the change from functions of single records before `batch()` to functions of batches after it.

There are two ways. In the form "batch_ops" the calls of `map` follow `batch`, and the operations in their
functions become those of batches: `parse_single_example` becomes `parse_example`, shapes get a leading size,
axes count from the next dimension. In the form "vectorized" the functions stay, and `tf.vectorized_map`
applies them to a batch. Whether a form computes the same is not decided here: the analyzer reads batches with
it.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from input_analyzer.source_edits import (
    Edit,
    Position,
    append_argument,
    end_of,
    end_of_object,
    replace_node,
    split_lines,
    start_of,
    text_between,
)
from input_rules.findings import Finding
from input_rules.torch.rules import NUMBERS

MAP_BEFORE_BATCH = "map-before-batch"
SINGLE_RECORDS = "loader-records-single"
# The forms of changes that are tried; the first one that computes the same is recommended.
VECTORIZED = "vectorized"
FORMS = {MAP_BEFORE_BATCH: ("batch_ops", VECTORIZED), SINGLE_RECORDS: ("batch",)}

_Function = ast.FunctionDef | ast.Lambda
_BLOCKS = ("body", "orelse", "finalbody", "handlers")


class NotMechanicalError(Exception):
    """A change is left to the author; the message is the reason."""


def plan_batch_form(finding: Finding, form: str, tree: ast.Module, source: str) -> list[Edit]:
    """Return the edits that move calls of `map` after a `batch`, or that read a dataset by batches.

    Args:
        finding: Its lines name the calls.
        form: One of its `FORMS`.
        tree: The syntax tree of the source.
        source: The file that the finding is about.

    Raises:
        NotMechanicalError: It takes more than that.
    """
    code = _Code(tree, source)
    if finding.id == SINGLE_RECORDS:
        return _read_batches(finding, code)
    if not finding.related:
        return _split_map_and_batch(finding, form, code)
    maps, batch = _find_calls(finding, code)
    functions = [code.first_argument(call) for call in maps]
    inner = _edit_functions(functions, form, code)
    edits = []
    moved = ""
    for call in maps:
        start = end_of_object(call, source)
        if start is None or not isinstance(call.func, ast.Attribute):
            raise NotMechanicalError("its call is not that of a method")
        if not code.is_within(call, batch):
            code.check_same_block(call, batch)
            line, column = end_of(call.func)
            dot = (line, column - len(".map"))
            moved += text_between(source, dot, end_of(call), inner)
            edits.append(code.delete_call(call, start))
        else:
            moved += text_between(source, start, end_of(call), inner)
            edits.append(Edit(start, end_of(call), ""))
    outside = [edit for edit in inner if not any(_contains(cut, edit) for cut in edits)]
    return [*edits, *outside, Edit(end_of(batch), end_of(batch), moved)]


def _edit_functions(functions: list[ast.expr], form: str, code: _Code) -> list[Edit]:
    """Return the edits with which functions of records take batches."""
    if form != VECTORIZED:
        return _batch_ops(functions, code)
    if not code.names_tensorflow:
        raise NotMechanicalError("the file does not import TensorFlow as tf")
    return [_vectorize(function, code) for function in functions]


def _split_map_and_batch(finding: Finding, form: str, code: _Code) -> list[Edit]:
    """Return the edits that make `batch` and `map` of `apply(map_and_batch(...))`."""
    calls = [
        (call, call.args[0])
        for call in code.calls_at("apply", int((finding.source or "").rpartition(":")[2]))
        if call.args and isinstance(call.args[0], ast.Call)
    ]
    found = [(call, inner) for call, inner in calls if ast.unparse(inner.func).endswith("map_and_batch")]
    if len(found) != 1 or not code.names_tensorflow:
        raise NotMechanicalError("it is not certain which call of map_and_batch() is meant")
    ((call, combined),) = found
    function, size = _argument(combined, 0, "map_func"), _argument(combined, 1, "batch_size")
    drops, start = _argument(combined, 3, "drop_remainder"), end_of_object(call, code.source)
    if function is None or size is None or start is None:
        raise NotMechanicalError("the arguments of map_and_batch() do not name its function")
    inner = _edit_functions([function], form, code)
    mapped = text_between(code.source, start_of(function), end_of(function), inner)
    whole = f", drop_remainder={ast.unparse(drops)}" if drops is not None else ""
    text = f".batch({ast.unparse(size)}{whole}).map({mapped}, num_parallel_calls=tf.data.AUTOTUNE)"
    edit = Edit(start, end_of(call), text)
    return [edit, *(one for one in inner if not _contains(edit, one))]


def _contains(outer: Edit, inner: Edit) -> bool:
    return outer.start <= inner.start and inner.end <= outer.end


def _find_calls(finding: Finding, code: _Code) -> tuple[list[ast.Call], ast.Call]:
    """Return the calls of `map`, in pipeline order, and that of `batch`."""
    places = [place.rpartition(":") for place in (finding.source or "", *finding.related)]
    if len({path for path, _, _ in places}) != 1:
        raise NotMechanicalError("map() and batch() are in different files")
    *lines, batch_line = (int(line) for _, _, line in places)
    maps: list[ast.Call] = []
    for line in dict.fromkeys(lines):
        found = code.calls_at("map", line)
        if len(found) != lines.count(line):
            raise NotMechanicalError("it is not certain which calls of map() are meant")
        maps += found
    batches = code.calls_at("batch", batch_line)
    if not lines or len(batches) != 1:
        raise NotMechanicalError("it is not certain which call of batch() is meant")
    if len({id(code.scope_of(call)) for call in (*maps, batches[0])}) != 1:
        raise NotMechanicalError("map() and batch() are in different functions")
    return maps, batches[0]


@dataclass
class _Code:
    """A source file with its syntax tree."""

    tree: ast.Module
    source: str
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in ast.walk(self.tree):
            self.parents.update((child, node) for child in ast.iter_child_nodes(node))

    def calls_at(self, name: str, line: int) -> list[ast.Call]:
        """Return the calls of a method on a line, in the order of a chain."""
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
                first = node.func.end_lineno or node.lineno
                if first <= line <= (node.end_lineno or first):
                    found.append(node)
        return sorted(found, key=end_of)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, the nearest first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def scope_of(self, node: ast.AST) -> ast.AST:
        """Return the function around a node, or the module."""
        scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        return next((one for one in self.above(node) if isinstance(one, scopes)), self.tree)

    def is_within(self, inner: ast.AST, outer: ast.AST) -> bool:
        """Return True if a node is a part of another one."""
        return any(node is outer for node in self.above(inner))

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """Return the statement that has an expression."""
        return next(one for one in self.above(node) if isinstance(one, ast.stmt))

    def check_same_block(self, call: ast.Call, batch: ast.Call) -> None:
        """Check that the statements of two calls always run one after the other.

        Raises:
            NotMechanicalError: One of them is in a branch or a loop.
        """
        first, later = self.statement_of(call), self.statement_of(batch)
        for name in _BLOCKS:
            block = getattr(self.parents[first], name, [])
            if first in block and later in block and block.index(first) < block.index(later):
                return
        raise NotMechanicalError("map() and batch() are in different blocks")

    def delete_call(self, call: ast.Call, start: Position) -> Edit:
        """Return the edit that removes a call from its chain, or its statement if nothing remains."""
        statement = self.statement_of(call)
        lines = split_lines(self.source)
        if (
            isinstance(statement, ast.Assign)
            and statement.value is call
            and isinstance(call.func, ast.Attribute)
            and len(statement.targets) == 1
            and ast.unparse(statement.targets[0]) == ast.unparse(call.func.value)
        ):
            (first, column), (last, end) = start_of(statement), end_of(statement)
            alone = not lines[first - 1][:column].strip() and not lines[last - 1].encode()[end:].strip()
            if alone and column == len(lines[first - 1][:column]):
                return Edit((first, 0), (last + 1, 0), "")
        return Edit(start, end_of(call), "")

    def first_argument(self, call: ast.Call) -> ast.expr:
        """Return the function that a call of `map` applies."""
        named = [keyword.value for keyword in call.keywords if keyword.arg == "map_func"]
        given = [*call.args[:1], *named]
        if len(given) != 1 or isinstance(given[0], ast.Starred):
            raise NotMechanicalError("the arguments of map() do not name its function")
        return given[0]

    def resolve(self, function: ast.expr) -> _Function | None:
        """Return the definition of a function in this file; None if it is elsewhere."""
        if isinstance(function, ast.Lambda):
            return function
        if isinstance(function, ast.Call):
            is_partial = ast.unparse(function.func) in ("partial", "functools.partial")
            return self.resolve(function.args[0]) if is_partial and function.args else None
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
        owner = function.value if isinstance(function, ast.Attribute) else None
        if owner is not None and not (isinstance(owner, ast.Name) and owner.id in self._owners(function)):
            return None
        around = set(map(id, (self.tree, *self.above(function))))
        found = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.FunctionDef)
            and node.name == name
            and (owner is not None or id(self.parents[node]) in around)
        ]
        return found[0] if len(found) == 1 else None

    def _owners(self, node: ast.AST) -> set[str]:
        """Return the names by which code refers to methods of its own class."""
        classes = {one.name for one in self.above(node) if isinstance(one, ast.ClassDef)}
        return {"self", "cls"} | classes

    def assignments_of(self, name: ast.expr | None) -> list[ast.Assign]:
        """Return the assignments to a name in its function."""
        if not isinstance(name, ast.Name):
            return []
        return [
            node
            for node in ast.walk(self.scope_of(name))
            if isinstance(node, ast.Assign)
            and any(isinstance(one, ast.Name) and one.id == name.id for one in node.targets)
        ]

    def makers_of(self, value: ast.expr | None) -> set[str]:
        """Return the names of the classes that make a value; nothing if that is unknown."""
        values = [value] if isinstance(value, ast.Call) else [one.value for one in self.assignments_of(value)]
        if not all(isinstance(one, ast.Call) for one in values):
            return set()
        return {ast.unparse(one.func).split(".")[-1] for one in values if isinstance(one, ast.Call)}

    @property
    def names_tensorflow(self) -> bool:
        """True if the name `tf` is TensorFlow."""
        return any(
            any(name.name.startswith("tensorflow") and name.asname == "tf" for name in node.names)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
        )


def _read_batches(finding: Finding, code: _Code) -> list[Edit]:
    """Return the edits with which all loaders of a dataset read whole batches."""
    places = [place.rpartition(":") for place in (finding.source or "", *finding.related)]
    if len({path for path, _, _ in places}) != 1:
        raise NotMechanicalError("the dataset and its DataLoader are in different files")
    imports = [name for node in ast.walk(code.tree) if isinstance(node, ast.Import) for name in node.names]
    if not any(name.name.split(".")[0] == "torch" and not name.asname for name in imports):
        raise NotMechanicalError("the file does not import torch")
    lines = [int(line) for _, _, line in places]
    loaders = [
        node
        for node in ast.walk(code.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "DataLoader"
    ]
    own = [call for call in loaders if call.lineno <= lines[-1] <= (call.end_lineno or call.lineno)]
    if len(own) != 1:
        raise NotMechanicalError("it is not certain which call of DataLoader() is meant")
    edits = []
    if finding.related:
        methods = [
            node
            for node in ast.walk(code.tree)
            if isinstance(node, ast.FunctionDef) and node.name == "__getitem__" and node.lineno == lines[0]
        ]
        if len(methods) != 1 or not isinstance(kind := code.parents[methods[0]], ast.ClassDef):
            raise NotMechanicalError("its class is not on that line")
        # Loaders that expect single records would get a batch.
        for call in loaders:
            made_by = code.makers_of(_argument(call, 0, "dataset"))
            if call not in own and (not made_by or kind.name in made_by):
                if made_by != {kind.name}:
                    raise NotMechanicalError("another DataLoader may read the dataset, too")
                own.append(call)
        after = ((methods[0].end_lineno or 0) + 1, 0)
        added = [
            "",
            "# A loader reads a whole batch: the index is a list.",
            *_method_of_batches(methods[0], code),
        ]
        text = "".join(f"{' ' * methods[0].col_offset}{line}".rstrip() + "\n" for line in added)
        edits.append(Edit(after, after, text))
    else:
        dataset = _argument(own[0], 0, "dataset")
        made = code.assignments_of(dataset)
        if not isinstance(dataset, ast.Name) or len(made) != 1:
            raise NotMechanicalError("its dataset is not made by one assignment to a name")
        name, after = dataset.id, (end_of(made[0])[0] + 1, 0)
        text = f"{' ' * made[0].col_offset}{name}.__getitems__ = {name}.__getitem__  # whole batches\n"
        edits.append(Edit(after, after, text))
    for call in own:
        if any(keyword.arg in (None, "collate_fn", "batch_sampler") for keyword in call.keywords):
            raise NotMechanicalError("its DataLoader has other settings for batches")
        argument = append_argument(call, "collate_fn=torch.utils.data.default_convert", code.source)
        if argument is not None:
            edits.append(argument)
    return edits


def _method_of_batches(method: ast.FunctionDef, code: _Code) -> list[str]:
    """Return the lines of `__getitems__`, without their indentation in the class."""
    edits = []
    for call in (node for node in ast.walk(method) if isinstance(node, ast.Call)):
        name = getattr(call.func, "id", "")
        if name in NUMBERS and len(call.args) == 1:
            inner = text_between(code.source, start_of(call.args[0]), end_of(call.args[0]))
            edits.append(replace_node(call, f"torch.as_tensor({inner}).{NUMBERS[name]}()"))
    if not edits:
        return ["__getitems__ = __getitem__"]
    text = text_between(code.source, (method.lineno, 0), end_of(method), edits)
    return textwrap.dedent(text.replace("def __getitem__(", "def __getitems__(", 1)).splitlines()


def _vectorize(function: ast.expr, code: _Code) -> Edit:
    """Apply a function to all records of a batch."""
    text = text_between(code.source, start_of(function), end_of(function))
    definition = code.resolve(function)
    names = [] if definition is None else [one.arg for one in definition.args.args]
    takes_one = len([name for name in names if name not in ("self", "cls")]) == 1
    is_partial = isinstance(function, ast.Call)
    # For a lambda in its own parentheses, too: it would swallow what follows.
    mapped = f"({text})" if isinstance(function, ast.Lambda) else text
    if takes_one and not is_partial and definition is not None and definition.args.vararg is None:
        called = f"lambda batch: tf.vectorized_map({text}, batch, fallback_to_while_loop=False)"
    else:
        called = (
            f"lambda *batch: tf.vectorized_map(lambda record: {mapped}(*record), batch, "
            "fallback_to_while_loop=False)"
        )
    return replace_node(function, called)


def _batch_ops(functions: Iterable[ast.expr], code: _Code) -> list[Edit]:
    """Return the edits with which functions of records, and those that they call, take batches."""
    edits: dict[Edit, None] = {}
    used = list(functions)
    waiting, reached = list(used), list[ast.AST]()
    changed: list[ast.FunctionDef] = []
    while waiting:
        definition = code.resolve(waiting.pop())
        if definition is None or definition in reached:
            continue
        reached.append(definition)
        own: list[Edit] = []
        body = definition.body if isinstance(definition.body, list) else [definition.body]
        for call in (node for part in body for node in ast.walk(part) if isinstance(node, ast.Call)):
            own += _edit_call(call, code)
            waiting.append(call.func)
        if own and isinstance(definition, ast.FunctionDef):
            changed.append(definition)
        edits.update(dict.fromkeys(own))
    for definition in changed:
        for node in ast.walk(code.tree):
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
            known = node in used or any(code.is_within(node, one) for one in (*used, *reached))
            if name == definition.name and isinstance(node, ast.Name | ast.Attribute) and not known:
                raise NotMechanicalError(f"{definition.name}() is also used elsewhere, for single records")
    return list(edits)


def _edit_call(call: ast.Call, code: _Code) -> Iterator[Edit]:
    """Yield the edits with which a call in a function of records works on a batch."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "parse_single_example":
        line, column = end_of(call.func)
        yield Edit((line, column - len(name)), (line, column), "parse_example")
    elif name in _SHAPES:
        yield _lead(_argument(call, *_SHAPES[name]), "-1" if name == "reshape" else "None")
    elif name in _AXES:
        position, keyword, default = _AXES[name]
        axis = _argument(call, position, keyword)
        if axis is None:
            if default is None:
                raise NotMechanicalError(f"{name}() without an axis needs one")
            end = (call.end_lineno or 0, (call.end_col_offset or 1) - 1)
            yield Edit(end, end, f", {keyword}={default + 1}")
        else:
            yield from _shift(axis, name)
    elif name == "transpose":
        order = _argument(call, 1, "perm")
        if not isinstance(order, ast.List | ast.Tuple):
            raise NotMechanicalError("transpose() without a list of dimensions")
        yield _lead(order, "0")
        for one in order.elts:
            yield from _shift(one, name)
    elif name in ("numpy_function", "py_function", "py_func"):
        _check_elementwise(_argument(call, 0, "func"), code)


# Arguments that are shapes: their position and keyword.
_SHAPES = {"reshape": (1, "shape"), "ensure_shape": (1, "shape"), "set_shape": (0, "shape")}
# Arguments that are axes: position, keyword, and the default.
_AXES: dict[str, tuple[int, str, int | None]] = {
    "expand_dims": (1, "axis", None),
    "squeeze": (1, "axis", None),
    "concat": (1, "axis", None),
    "stack": (1, "axis", 0),
    **dict.fromkeys(
        ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_any", "reduce_all"),
        (1, "axis", None),
    ),
    **dict.fromkeys(("reduce_std", "reduce_variance", "argmax", "argmin"), (1, "axis", None)),
}


def _argument(call: ast.Call, position: int, keyword: str) -> ast.expr | None:
    named = next((one.value for one in call.keywords if one.arg == keyword), None)
    return named or (call.args[position] if len(call.args) > position else None)


def _lead(shape: ast.expr | None, size: str) -> Edit:
    """Add a size before the others of a list."""
    if not isinstance(shape, ast.List | ast.Tuple):
        raise NotMechanicalError("a shape is not written as a list")
    if any(isinstance(one, ast.UnaryOp) for one in shape.elts) and size == "-1":
        raise NotMechanicalError("a shape has an unknown size already")
    line, column = start_of(shape)
    if shape.elts:
        place = start_of(shape.elts[0])
        return Edit(place, place, f"{size}, ")
    return Edit((line, column + 1), (line, column + 1), f"{size}," if isinstance(shape, ast.Tuple) else size)


def _shift(axis: ast.expr, name: str) -> Iterator[Edit]:
    """Count an axis from the next dimension; one that counts from the end stays."""
    if isinstance(axis, ast.UnaryOp) and isinstance(axis.op, ast.USub):
        return
    if isinstance(axis, ast.List | ast.Tuple):
        for one in axis.elts:
            yield from _shift(one, name)
    elif isinstance(axis, ast.Constant) and type(axis.value) is int:
        yield replace_node(axis, str(axis.value + 1))
    else:
        raise NotMechanicalError(f"an axis of {name}() is not written as a number")


_ELEMENTWISE_NODES = (
    *(ast.FunctionDef, ast.Lambda, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.AugAssign, ast.Name),
    *(ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Attribute, ast.Call, ast.Tuple),
    *(ast.keyword, ast.expr_context, ast.Expr),
)
_ELEMENTWISE_METHODS = frozenset({"astype", "copy"})


def _check_elementwise(function: ast.expr | None, code: _Code) -> None:
    """Check that a Python function only computes with whole arrays, element by element.

    Raises:
        NotMechanicalError: It has a branch, a loop, an index, or a call that may need single records.
    """
    if function is None or _is_ufunc(function):
        return
    definition = code.resolve(function)
    reason = NotMechanicalError("its Python function may need single records")
    if definition is None:
        raise reason
    for node in ast.walk(definition):
        if not isinstance(node, _ELEMENTWISE_NODES):
            raise reason
        if isinstance(node, ast.Call) and not (
            _is_ufunc(node.func)
            or (isinstance(node.func, ast.Attribute) and node.func.attr in _ELEMENTWISE_METHODS)
        ):
            raise reason


def _is_ufunc(function: ast.expr) -> bool:
    """Return True for `np.sin` and the like, which compute each element by itself."""
    if not isinstance(function, ast.Attribute) or ast.unparse(function.value) not in ("np", "numpy"):
        return False
    found = getattr(np, function.attr, None)
    return isinstance(found, np.ufunc) or (isinstance(found, type) and issubclass(found, np.generic))
