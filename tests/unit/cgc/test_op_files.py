"""An op has one stem: its class, its lowering and its importer are in files of one name."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import pytest

import cgc.lowering
from cgc.cirh.base import CirhOp, mnemonic
from cgc.cirh.ops import ALL_OPS
from cgc.lowering.jax_table import LOWERINGS

TENSORFLOWS_OWN = {"Max", "Min", "CTCLoss"}
"""Names that mean something else in TensorFlow: the largest element along dimensions, a loss of labels that a
mask selects."""

LOWERED_IN = {"convolution": ("convolution", "pool")}
"""Stems whose lowerings are in several files."""


def stem(op: type[CirhOp]) -> str:
    return op.__module__.rpartition(".")[2]


def test_every_op_is_lowered_in_the_file_of_its_stem() -> None:
    assert LOWERINGS.keys() == set(ALL_OPS)
    for op in ALL_OPS:
        files = LOWERED_IN.get(stem(op), (stem(op),))
        assert any(op in import_module(f"{cgc.lowering.__name__}.{file}").LOWERINGS for file in files), (
            op.name
        )


def test_operations_named_as_an_op_are_imported_in_the_file_of_its_stem() -> None:
    pytest.importorskip("tensorflow")
    handlers = import_module("cgc.importers.tensorflow.handlers")
    known = import_module("cgc.importers.tensorflow.handlers.table").HANDLERS
    stems = {mnemonic(op).lower(): stem(op) for op in ALL_OPS if mnemonic(op) not in TENSORFLOWS_OWN}
    found = 0
    for module in iter_modules(handlers.__path__):
        table = getattr(import_module(f"{handlers.__name__}.{module.name}"), "TABLE", {})
        if any(known.get(name) is not handler for name, handler in table.items()):
            continue  # of another table: what the same operations do on padded rows
        for name in table.keys() - TENSORFLOWS_OWN:
            assert stems.get(name.lower(), module.name) == module.name, name
            found += name.lower() in stems
    assert found > 50
