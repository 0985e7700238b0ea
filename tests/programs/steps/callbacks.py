"""Executables that would call Python of the process that runs them."""

from __future__ import annotations

import dataclasses

from jax import export
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

_CALL = """
    %call = stablehlo.custom_call @xla_ffi_python_cpu_callback() {
        has_side_effect = true, mhlo.backend_config = {index = 3735928559 : ui64}
    } : () -> tensor<f32>
"""


def with_callback(executable: bytes) -> bytes:
    """Return an executable that first calls the Python object of an index that nobody has given out."""
    found = export.deserialize(bytearray(executable))
    head, brace, rest = found.mlir_module().partition("{\n    ")
    text = f"{head}{brace}{_CALL}{rest}"
    with mlir.make_ir_context():
        module = stablehlo.serialize_portable_artifact(ir.Module.parse(text), stablehlo.get_current_version())
    return bytes(dataclasses.replace(found, mlir_module_serialized=module).serialize())
