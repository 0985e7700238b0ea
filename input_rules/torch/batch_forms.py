"""Datasets whose `__getitem__` computes the same for a list of indices as for its indices one by one."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from input_rules.torch.rules import NUMBERS

_STATEMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return)
# Methods of arrays and tensors, and functions of torch, that compute each element by itself.
_METHODS = frozenset(
    {
        *(
            "float",
            "double",
            "half",
            "bfloat16",
            "long",
            "int",
            "short",
            "byte",
            "bool",
            "to",
            "type",
            "astype",
        ),
        *("add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_", "clamp", "clip", "sqrt", "exp", "log"),
        *("abs", "neg", "pow", "clone", "copy", "contiguous", "type_as", "sigmoid", "tanh", "relu"),
    }
)
_FUNCTIONS = frozenset(
    {
        *("torch.from_numpy", "torch.as_tensor", "torch.tensor", "np.asarray", "np.array", "numpy.asarray"),
        *("np.ascontiguousarray", "F.one_hot", "torch.nn.functional.one_hot", "torch.clamp", "torch.sqrt"),
        *("torch.exp", "torch.log", "torch.abs", "torch.relu", "torch.sigmoid", "torch.tanh"),
    }
)


def takes_indices(dataset: Any) -> bool:
    """Return True if the records of a batch can be read by one call, as far as code and data show."""
    kind = type(dataset)
    if hasattr(dataset, "__getitems__"):
        return False
    if kind is TensorDataset:
        return True
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind.__getitem__)))
    except (OSError, TypeError, SyntaxError, AttributeError):
        return False
    (function,) = tree.body
    if not isinstance(function, ast.FunctionDef) or len(function.args.args) != 2 or function.decorator_list:
        return False
    own, index = (argument.arg for argument in function.args.args)
    check = _Check(dataset, own, index)
    return all(map(check.is_allowed, function.body)) and check.reads


class _Check:
    """Checks that code only selects rows of arrays, and computes with them element by element."""

    def __init__(self, dataset: Any, own: str, index: str) -> None:
        self._dataset, self._own, self._index = dataset, own, index
        self.reads = False

    def is_allowed(self, node: ast.AST) -> bool:
        """Return True if a statement or an expression is allowed, and all of its parts are."""
        if isinstance(node, ast.Subscript):
            return self._selects_rows(node)
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
                parts: list[ast.AST] = [node.func.value]
            elif name in _FUNCTIONS or name in NUMBERS or _is_ufunc(node.func):
                parts = []
            else:
                return False
            parts += [*node.args, *(keyword.value for keyword in node.keywords)]
            return all(map(self.is_allowed, parts))
        if isinstance(node, ast.Name):
            return node.id != self._index  # a number that is computed with
        if isinstance(node, ast.Expr):
            return isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Attribute | ast.Constant | ast.operator | ast.unaryop | ast.expr_context):
            return True
        if isinstance(node, (*_STATEMENTS, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.Dict)):
            return all(map(self.is_allowed, ast.iter_child_nodes(node)))
        return False

    def _selects_rows(self, node: ast.Subscript) -> bool:
        """Return True for the index of the record in an array that is an attribute of the dataset."""
        if not isinstance(node.slice, ast.Name) or node.slice.id != self._index:
            return False
        self.reads = True
        return isinstance(self._value_of(node.value), np.ndarray | torch.Tensor)

    def _value_of(self, node: ast.expr) -> Any:
        """Return the value of `self.x`, `self.x.y` or `self.x["y"]`; None for other expressions."""
        if isinstance(node, ast.Name) and node.id == self._own:
            return self._dataset
        if isinstance(node, ast.Attribute):
            return getattr(self._value_of(node.value), node.attr, None)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            value = self._value_of(node.value)
            return value.get(node.slice.value) if isinstance(value, dict) else None
        return None


def _is_ufunc(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute) or ast.unparse(function.value) not in ("np", "numpy"):
        return False
    found = getattr(np, function.attr, None)
    return isinstance(found, np.ufunc) or (isinstance(found, type) and issubclass(found, np.generic))
