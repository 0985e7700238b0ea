"""The closed list of ops and custom calls of executables, checked before XLA parses one.

XLA executes any module, and a custom call may name any function that is registered in the
process, among them one that calls a Python object at an address of the executable's choice. The tables have
the ops that the compiler's lowering emits; `tests/unit/cgc/lowering/test_allowed_ops.py` lowers all ops and
examples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.export import Exported
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, sdy, stablehlo

from cs_toolkit.errors import ToolkitError

# Limits, far above those of real steps: the step of BERT-base has 6,500 ops in regions nested 5 deep.
MAX_OPS = 4_000_000
MAX_NESTING = 64
MAX_ELEMENTS = 1 << 48

_OPS_WITH_REGIONS = ("case", "reduce", "reduce_window", "scatter", "sort", "while")
_OTHER_OPS = """
    abs add and atan2 bitcast_convert broadcast_in_dim ceil clamp compare complex composite concatenate
    constant convert convolution cosine custom_call divide dot_general dynamic_slice dynamic_update_slice
    exponential exponential_minus_one fft floor gather imag iota is_finite log log_plus_one maximum minimum
    multiply negate not or pad power real reduce_precision remainder reshape return reverse
    round_nearest_even rsqrt select shift_left shift_right_arithmetic shift_right_logical sign sine slice sqrt
    subtract tanh transpose triangular_solve xor
"""
OPS = frozenset(
    {f"stablehlo.{name}" for name in (*_OTHER_OPS.split(), *_OPS_WITH_REGIONS)}
    | {"builtin.module", "func.call", "func.func", "func.return"}
)
_NESTING_OPS = frozenset({"func.func", *(f"stablehlo.{name}" for name in _OPS_WITH_REGIONS)})

# Composites that XLA recognizes, with the attributes of the composite; any other one is its decomposition.
COMPOSITES: Mapping[str, frozenset[str]] = {"chlo.erf": frozenset(), "chlo.top_k": frozenset({"k"})}

# Any other attribute could direct XLA to another device, memory or kernel. Ops that are missing here may have
# the attributes of their definition.
_ATTRIBUTES: Mapping[str, frozenset[str]] = {
    "builtin.module": frozenset(
        {"jax.uses_shape_polymorphism", "mhlo.num_partitions", "mhlo.num_replicas", "sym_name"}
    ),
    "stablehlo.custom_call": frozenset(
        {
            "call_target_name",
            "mhlo.backend_config",
            "mhlo.frontend_attributes",
            "operand_layouts",
            "output_operand_aliases",
            "result_layouts",
            "sdy.sharding_rule",
        }
    ),
}
_ARGUMENT_ATTRIBUTES = frozenset({"jax.global_constant", "jax.result_info"})


@dataclass(frozen=True)
class CustomCall:
    """A custom call that the lowering emits, for matrices of float32.

    Attributes:
        operands, results: Their shapes, with names for sizes: a name is the same size everywhere, and "k" is
            the smaller one of "m" and "n", "r" not larger than either.
        config: By key of its configuration, the values that it may have.
    """

    operands: tuple[str, ...]
    results: tuple[str, ...]
    config: Mapping[str, frozenset[str]] = field(default_factory=dict)


def _values(*values: object) -> frozenset[str]:
    return frozenset(map(str, values))


def _flags(*characters: str) -> frozenset[str]:
    return frozenset(f"{ord(character)} : ui8" for character in characters)


_BOOLEANS = _values("true", "false")

# The implementations of linear algebra in jaxlib, which trust the shapes of their buffers.
CUSTOM_CALLS: Mapping[str, CustomCall] = {
    "lapack_spotrf_ffi": CustomCall(("m m",), ("m m", ""), {"uplo": _flags("L", "U")}),
    "lapack_sgetrf_ffi": CustomCall(("m n",), ("m n", "k", "")),
    "lapack_sgeqrf_ffi": CustomCall(("m n",), ("m n", "k")),
    "lapack_sorgqr_ffi": CustomCall(("m n", "r"), ("m n",)),
    "lapack_ssyevd_ffi": CustomCall(
        ("m m",), ("m m", "m", ""), {"mode": _flags("V", "N"), "uplo": _flags("L", "U")}
    ),
    "lapack_sgesdd_ffi": CustomCall(("m n",), ("m n", "k", "m p", "q n", ""), {"mode": _flags("A", "S")}),
    "lapack_strsm_ffi": CustomCall(
        ("m m", "m n"),
        ("m n",),
        {
            "diag": _flags("N", "U"),
            "side": _flags("L"),
            "trans_x": _flags("N", "T"),
            "uplo": _flags("L", "U"),
        },
    ),
    "cusolver_potrf_ffi": CustomCall(("m m",), ("m m", ""), {"lower": _BOOLEANS}),
    "cusolver_getrf_ffi": CustomCall(("m n",), ("m n", "k", "")),
    "cusolver_geqrf_ffi": CustomCall(("m n",), ("m n", "k")),
    "cusolver_orgqr_ffi": CustomCall(("m n", "r"), ("m n",)),
    "cusolver_syevd_ffi": CustomCall(
        ("m m",), ("m m", "m", ""), {"algorithm": _values("0 : ui8"), "lower": _BOOLEANS}
    ),
    "cusolver_gesvd_ffi": CustomCall(
        ("m n",),
        ("m n", "k", "u p", "q v", ""),
        {"compute_uv": _values("true"), "full_matrices": _BOOLEANS, "transposed": _BOOLEANS},
    ),
    "cusolver_gesvdj_ffi": CustomCall(
        ("m n",), ("m n", "k", "m p", "n q", ""), {"compute_uv": _values("true"), "full_matrices": _BOOLEANS}
    ),
    "cu_lu_pivots_to_permutation": CustomCall(("r",), ("m",)),
}


class RefusedOpError(ToolkitError):
    """An executable contains something that is not on the list, or is too large."""


def check_exported(exported: Exported) -> None:
    """Check an executable; nothing of it is compiled or run.

    Raises:
        RefusedOpError: it contains something that no executable of the compiler contains.
    """
    shardings = {*exported.in_shardings_hlo, *exported.out_shardings_hlo} - {None}
    effects = (*exported.ordered_effects, *exported.unordered_effects)
    if exported.nr_devices != 1 or shardings or effects or exported.disabled_safety_checks:
        raise RefusedOpError("it needs several devices, has effects, or disables safety checks")
    if exported.has_vjp():
        raise RefusedOpError("it contains a second executable, of its gradient")
    for aval in (*exported.in_avals, *exported.out_avals):
        if not all(isinstance(size, int) for size in aval.shape):
            raise RefusedOpError(f"it has a value of the dynamic shape {aval.shape}")
    _check_module(_parse(exported.mlir_module_serialized))


def _parse(data: bytes) -> ir.Module:
    """Parse a portable artifact; dialects that no executable has are unknown."""
    context = ir.Context()
    context.enable_multithreading(False)
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    found: list[str] = []

    def keep(diagnostic: Any) -> bool:
        try:
            found.append(str(diagnostic.message))
        except (RuntimeError, UnicodeDecodeError):  # nanobind, for a name in damaged bytes
            found.append("a name is not UTF-8")
        return True  # not to stderr

    context.attach_diagnostic_handler(keep)
    try:
        return stablehlo.deserialize_portable_artifact(context, data)
    except ValueError as error:
        raise RefusedOpError(f"its module cannot be read ({'; '.join(found)[:200] or error})") from error


class _Counter:
    """Counts the ops of functions, and follows their calls.

    Attributes:
        ops: By function: number of ops in it.
        calls: By function: the functions that it calls, as often as it does.
    """

    def __init__(self) -> None:
        self.ops: dict[str, int] = {}
        self.calls: dict[str, list[str]] = {}
        self._current = ""

    def begin(self, name: str) -> None:
        """Begin a function."""
        self._current = name
        self.ops[name], self.calls[name] = 0, []

    def add(self, called: Iterable[str] = ()) -> None:
        """Count an op, which may call functions."""
        if not self._current:
            return
        self.ops[self._current] += 1
        self.calls[self._current].extend(called)

    def expanded(self) -> int:
        """Return the number of ops when all calls are inlined, as XLA does.

        Raises:
            RefusedOpError: a function calls itself, or calls are nested too deep.
        """
        known: dict[str, int] = {}

        def expand(name: str, path: tuple[str, ...]) -> int:
            if name in path or len(path) > MAX_NESTING:
                raise RefusedOpError(
                    f"function {name!r} calls itself, or calls are nested over {MAX_NESTING}"
                )
            if name not in known:
                called = (expand(each, (*path, name)) for each in self.calls.get(name, ()))
                known[name] = self.ops.get(name, 0) + sum(called)
            return known[name]

        return max((expand(name, ()) for name in self.ops), default=0)


def _check_module(module: ir.Module) -> None:
    counter = _Counter()
    problem: list[str] = []

    def visit(operation: Any) -> ir.WalkResult:
        op = operation.operation
        try:
            _check_op(op, counter)
        except RefusedOpError as error:
            # An exception cannot pass the walk, which is not Python.
            problem.append(str(error))
            return ir.WalkResult.INTERRUPT
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    if problem:
        raise RefusedOpError(problem[0])
    total = counter.expanded()
    if total > MAX_OPS:
        raise RefusedOpError(f"it has {total:,} ops, expected at most {MAX_OPS:,}")


def _check_op(op: ir.Operation, counter: _Counter) -> None:
    name = op.name
    if name not in OPS:
        raise RefusedOpError(f"got op {name}, which no program of the compiler contains")
    attributes = op.attributes
    if name == "stablehlo.custom_call":
        _check_custom_call(op)
    allowed = _ATTRIBUTES.get(name)
    for attribute in attributes:
        # Attributes of an op's definition have no dot in their names.
        if attribute not in allowed if allowed is not None else "." in attribute:
            raise RefusedOpError(f"got attribute {attribute} of op {name}")
    for result in op.results:
        _check_type(name, result.type)
    called: list[str] = []
    if name in _NESTING_OPS:
        _check_nesting(op)
    if name == "func.func":
        counter.begin(ir.StringAttr(attributes["sym_name"]).value)
        _check_function(attributes)
    elif name == "func.call":
        called.append(ir.FlatSymbolRefAttr(attributes["callee"]).value)
    elif name == "stablehlo.composite":
        called.append(ir.FlatSymbolRefAttr(attributes["decomposition"]).value)
        _check_composite(attributes)
    counter.add(called)


def _check_type(name: str, kind: ir.Type) -> None:
    if not isinstance(kind, ir.RankedTensorType):
        raise RefusedOpError(f"got a result of type {str(kind)[:80]} of op {name}, expected a tensor")
    if not kind.has_static_shape or math.prod(kind.shape) > MAX_ELEMENTS:
        raise RefusedOpError(
            f"got a result of type {kind} of op {name}, expected a static shape of at most {MAX_ELEMENTS:,} "
            "elements"
        )


def _check_nesting(op: ir.Operation) -> None:
    depth, parent = 0, op.parent
    while parent is not None:
        depth, parent = depth + 1, parent.operation.parent
    if depth > MAX_NESTING:
        raise RefusedOpError(f"its regions are nested over {MAX_NESTING}")


def _check_function(attributes: ir.OpAttributeMap) -> None:
    for kind in ("arg_attrs", "res_attrs"):
        for each in ir.ArrayAttr(attributes[kind]) if kind in attributes else ():
            for name in _items(each):
                if name not in _ARGUMENT_ATTRIBUTES:
                    raise RefusedOpError(f"got attribute {name} of a function's argument or result")


def _check_composite(attributes: ir.OpAttributeMap) -> None:
    name = ir.StringAttr(attributes["name"]).value
    if name not in COMPOSITES:
        raise RefusedOpError(f"got composite {name!r}, expected one of {', '.join(COMPOSITES)}")
    if "composite_attributes" in attributes:
        keys = set(_items(attributes["composite_attributes"]))
        if keys - COMPOSITES[name]:
            raise RefusedOpError(f"got attributes {', '.join(sorted(keys))} of composite {name!r}")


def _check_custom_call(op: ir.Operation) -> None:
    attributes = op.attributes
    target = ir.StringAttr(attributes["call_target_name"]).value
    known = CUSTOM_CALLS.get(target)
    what = f"stablehlo.custom_call @{target[:80]}"
    if known is None:
        raise RefusedOpError(f"got {what}, expected one of the targets {', '.join(CUSTOM_CALLS)}")
    values = _items(attributes["mhlo.backend_config"]) if "mhlo.backend_config" in attributes else {}
    if values.keys() != known.config.keys() or any(v not in known.config[k] for k, v in values.items()):
        raise RefusedOpError(f"got {what} with the configuration {values}")
    sizes: dict[str, int] = {}
    for kind, expected, got in (
        ("operand", known.operands, op.operands),
        ("result", known.results, op.results),
    ):
        shapes = [ir.RankedTensorType(value.type).shape for value in got]
        if len(shapes) != len(expected) or not all(map(_unify, expected, shapes, [sizes] * len(shapes))):
            raise RefusedOpError(f"got {what} with {kind}s of shapes {shapes}, expected {list(expected)}")
    if sizes.get("r", 0) > min(sizes["m"], sizes.get("n", sizes["m"])):
        raise RefusedOpError(f"got {what} for sizes {sizes}")


def _items(attribute: ir.Attribute) -> dict[str, str]:
    """Return the items of a dictionary attribute as text."""
    entries: Any = ir.DictAttr(attribute)  # the annotations of jaxlib lack its iterator
    return {item.name: str(item.attr) for item in entries}


def _unify(expected: str, shape: Sequence[int], sizes: dict[str, int]) -> bool:
    """Return True if a shape has the named sizes; names that are new get theirs."""
    names = expected.split()
    if "m" in sizes and "n" in sizes:
        sizes.setdefault("k", min(sizes["m"], sizes["n"]))
    return len(names) == len(shape) and all(
        sizes.setdefault(name, size) == size for name, size in zip(names, shape, strict=True)
    )
