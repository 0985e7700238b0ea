"""A digest of what a module computes: equal exactly where the canonical text is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from io import StringIO

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp
from xdsl.ir import Attribute

from cgc.cirh.interface import graph_function
from cgc.cirh.random import SeededRandomOp
from cgc.cirh.scan import Scan
from cgc.cirh.text import CanonicalPrinter, canonical_text


def module_digest(module: ModuleOp, scanned: Scan | None) -> str:
    """64 hex digits.

    Args:
        module: a step.
        scanned: its function; None where that holds other ops than those of CIRH.
    """
    digest = hashlib.sha256()
    if scanned is None:
        digest.update(canonical_text(module).encode())
        return digest.hexdigest()
    for line in (*_signature(module), *_kinds(scanned)):
        digest.update(line.encode() + b"\n")
    seeded = {kind for kind in set(map(type, scanned.ops)) if issubclass(kind, SeededRandomOp)}
    seeds = [op.op_seed for op in scanned.ops if type(op) in seeded and isinstance(op, SeededRandomOp)]
    tables = (scanned.labels, scanned.first_result, scanned.first_read, scanned.read, scanned.returned, seeds)
    for table in tables:
        digest.update(np.asarray(table, "<i8").tobytes() + b"\n")
    return digest.hexdigest()


def _signature(module: ModuleOp) -> Iterator[str]:
    function = graph_function(module)
    printer = CanonicalPrinter()
    for attributes in (module.attributes, function.attributes, function.properties):
        for name, attribute in sorted(attributes.items()):
            yield name
            yield from _lines(attribute, printer)


def _lines(attribute: Attribute, printer: CanonicalPrinter) -> Iterator[str]:
    """The text of an attribute; xDSL takes long for the hundreds of types and names of a function."""
    match attribute:
        case FunctionType():
            for types in (attribute.inputs.data, attribute.outputs.data):
                yield ", ".join(map(printer.attribute_text, types))
        case ArrayAttr() if all(isinstance(item, DictionaryAttr) for item in attribute.data):
            yield from (printer.joined(_sorted(item.data)) for item in attribute.data)
        case _:
            yield printer.attribute_text(attribute)


def _sorted(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    return dict(sorted(attributes.items()))


def _kinds(scanned: Scan) -> Iterator[str]:
    """One op of each label, whose seed may be another one's."""
    _, first = np.unique(scanned.labels, return_index=True)
    for place in first.tolist():
        out = StringIO()
        CanonicalPrinter(stream=out).print_op(scanned.ops[place])
        yield out.getvalue()
