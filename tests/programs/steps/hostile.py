"""Executables that no compiler of ours makes."""

from __future__ import annotations

import dataclasses
import re

from jax import export
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

_CALL = """
    %call = stablehlo.custom_call @xla_ffi_python_cpu_callback() {
        has_side_effect = true, mhlo.backend_config = {index = 3735928559 : ui64}
    } : () -> tensor<f32>
"""

_LOOP = """
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %loop:2 = stablehlo.while(%flag = %zero, %value = SCALAR) : tensor<i32>, tensor<f32>
    cond {
      %equal = stablehlo.compare EQ, %flag, %flag : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %equal : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.xor %flag, %one : tensor<i32>
      %sine = stablehlo.sine %value : tensor<f32>
      stablehlo.return %next, %sine : tensor<i32>, tensor<f32>
    }
"""


def with_callback(executable: bytes) -> bytes:
    """Return an executable that first calls the Python object of an index that nobody has given out."""
    found = export.deserialize(bytearray(executable))
    head, body = _split(found)
    return _serialize(found, f"{head}{_CALL}{body}")


def with_endless_loop(executable: bytes) -> bytes:
    """Return an executable that never ends; it has a scalar of float32 among its arguments."""
    found = export.deserialize(bytearray(executable))
    head, body = _split(found)
    scalar = re.findall(r"(%arg\d+): tensor<f32>", head)[0]
    body = re.sub(rf"{scalar}\b", "%loop#1", body)
    return _serialize(found, head + _LOOP.replace("SCALAR", scalar) + body)


def _split(exported: export.Exported) -> tuple[str, str]:
    head, brace, body = exported.mlir_module().partition("{\n    ")
    return head + brace, body


def _serialize(exported: export.Exported, text: str) -> bytes:
    with mlir.make_ir_context():
        module = stablehlo.serialize_portable_artifact(ir.Module.parse(text), stablehlo.get_current_version())
    return bytes(dataclasses.replace(exported, mlir_module_serialized=module).serialize())
