"""The closed list of ops of executables: what is refused. `tests/unit/cgc/lowering` tests what is allowed."""

from __future__ import annotations

import dataclasses
import re
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax import export, lax
from jax import numpy as jnp
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.dialects.stablehlo import serialize_portable_artifact

from cs_system.engine.allowed_ops import MAX_NESTING, RefusedOpError, check_exported
from cs_system.engine.executable import load_step
from cs_system.errors import ExecutableError


def exported(function, *shapes, **options):
    found = export.export(jax.jit(function), **options)(
        *(jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes)
    )
    return dataclasses.replace(found, _get_vjp=None)  # as if deserialized


def serialized(text: str) -> bytes:
    # The serializer of MLIR knows no rules for sharding.
    text = re.sub(r", sdy\.sharding_rule = #sdy\.op_sharding_rule<.*?, custom>", "", text)
    with mlir.make_ir_context():
        return serialize_portable_artifact(ir.Module.parse(text), stablehlo.get_current_version())


def program(body: str, functions: str = "", attributes: str = "") -> export.Exported:
    """An executable of two numbers with another body."""
    text = f"""
    module @jit_step {{
      func.func public @main(%arg0: tensor<2xf32>{attributes}) -> tensor<2xf32> {{
        {body}
      }}
      {functions}
    }}
    """
    return dataclasses.replace(exported(lambda x: x + 1, (2,)), mlir_module_serialized=serialized(text))


def refused(executable: export.Exported) -> str:
    with pytest.raises(RefusedOpError) as error:
        check_exported(executable)
    return str(error.value)


def custom_call(target: str, attributes: str = "", kind: str = "tensor<2xf32>") -> export.Exported:
    return program(
        f"""%0 = stablehlo.custom_call @{target}(%arg0) {{{attributes}}} : (tensor<2xf32>) -> {kind}
        return %arg0 : tensor<2xf32>"""
    )


def test_a_plain_program_is_allowed():
    check_exported(program("%0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>\n return %0 : tensor<2xf32>"))
    check_exported(exported(lambda x: lax.linalg.cholesky(x @ x.T), (3, 3), platforms=("cpu", "cuda")))


def test_a_callback_is_refused_by_its_name():
    call = custom_call("xla_ffi_python_cpu_callback", "mhlo.backend_config = {index = 7 : ui64}")
    assert refused(call).startswith("got stablehlo.custom_call @xla_ffi_python_cpu_callback, expected one of")
    with pytest.raises(
        ExecutableError, match=r"executable 'mine' is refused: got stablehlo\.custom_call @xla_ffi"
    ):
        load_step(bytes(call.serialize()), "mine")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            '%0 = "stablehlo.all_reduce"(%arg0) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):\n'
            "%1 = stablehlo.add %a, %b : tensor<f32>\n stablehlo.return %1 : tensor<f32> })"
            "{replica_groups = dense<0> : tensor<1x1xi64>} : (tensor<2xf32>) -> tensor<2xf32>",
            "stablehlo.all_reduce",
        ),
        ("%t = stablehlo.create_token : !stablehlo.token", "stablehlo.create_token"),
        (
            '%0 = stablehlo.add %arg0, %arg0 {mhlo.frontend_attributes = {_xla_compute_type = "host"}}'
            " : tensor<2xf32>",
            "got attribute mhlo.frontend_attributes of op stablehlo.add",
        ),
        (
            '%0 = stablehlo.composite "mine.kernel" %arg0 {decomposition = @other}'
            " : (tensor<2xf32>) -> tensor<2xf32>",
            "got composite 'mine.kernel'",
        ),
        (
            "%0 = stablehlo.iota dim = 0 : tensor<4611686018427387904xi8>",
            "expected a static shape of at most",
        ),
    ],
)
def test_other_ops_and_attributes_are_refused(body, text):
    other = "func.func private @other(%arg0: tensor<2xf32>) -> tensor<2xf32> { return %arg0 : tensor<2xf32> }"
    assert text in refused(program(f"{body}\n return %arg0 : tensor<2xf32>", other))


def test_attributes_of_arguments_are_refused():
    attributes = ' {mhlo.memory_kind = "pinned_host"}'
    assert "mhlo.memory_kind" in refused(program("return %arg0 : tensor<2xf32>", "", attributes))


def test_buffers_of_linear_algebra_must_fit():
    assert "with operands of shapes [[2]]" in refused(custom_call("lapack_sgetrf_ffi"))
    good = exported(lambda x: lax.linalg.lu(x)[1], (3, 3))
    text = good.mlir_module().replace("tensor<3xi32>", "tensor<1xi32>")
    bad = dataclasses.replace(good, mlir_module_serialized=serialized(text))
    assert "with results of shapes [[3, 3], [1], []]" in refused(bad)


def test_configurations_of_linear_algebra_are_those_of_the_lowering():
    good = exported(lambda x: lax.linalg.cholesky(x), (3, 3))
    text = good.mlir_module().replace("uplo = 76 : ui8", "uplo = 7 : ui8")
    assert "configuration" in refused(dataclasses.replace(good, mlir_module_serialized=serialized(text)))


def test_functions_that_call_themselves_are_refused():
    body = "%0 = func.call @f(%arg0) : (tensor<2xf32>) -> tensor<2xf32>\n return %0 : tensor<2xf32>"
    function = f"func.func private @f(%arg0: tensor<2xf32>) -> tensor<2xf32> {{ {body} }}"
    assert "calls itself" in refused(program(body, function))


def test_calls_that_multiply_are_counted():
    def call(name):
        return (
            f"%0 = func.call @{name}(%arg0) : (tensor<2xf32>) -> tensor<2xf32>\n"
            f"%1 = func.call @{name}(%0) : (tensor<2xf32>) -> tensor<2xf32>\n return %1 : tensor<2xf32>"
        )

    functions = "\n".join(
        f"func.func private @f{n}(%arg0: tensor<2xf32>) -> tensor<2xf32> {{ {call(f'f{n + 1}')} }}"
        for n in range(40)
    )
    last = "func.func private @f40(%arg0: tensor<2xf32>) -> tensor<2xf32> { return %arg0 : tensor<2xf32> }"
    assert "ops, expected at most" in refused(program(call("f0"), functions + last))


def test_deep_nesting_is_refused():
    body = "return %arg0 : tensor<2xf32>"
    condition = "%c = stablehlo.constant dense<0> : tensor<i32>\n"
    inner = "stablehlo.return %arg0 : tensor<2xf32>"
    for _ in range(MAX_NESTING + 1):
        case = f'%0 = "stablehlo.case"(%c) ({{ {inner} }}) : (tensor<i32>) -> tensor<2xf32>'
        inner = f"{case}\nstablehlo.return %0 : tensor<2xf32>"
    text = condition + f'%1 = "stablehlo.case"(%c) ({{ {inner} }}) : (tensor<i32>) -> tensor<2xf32>\n' + body
    assert f"nested over {MAX_NESTING}" in refused(program(text))


def test_several_devices_shapes_and_gradients_are_refused():
    good = exported(lambda x: x + 1, (2,))
    assert "several devices" in refused(dataclasses.replace(good, nr_devices=2))
    assert "dynamic shape" in refused(exported(lambda x: x + 1, export.symbolic_shape("a")))
    exporter = export.export(jax.jit(lambda x: x + 1))
    data = exporter(jax.ShapeDtypeStruct((2,), np.float32)).serialize(vjp_order=1)
    assert "of its gradient" in refused(export.deserialize(data))


LOADS = """
import contextlib, random, sys
from cs_system.engine.executable import load_step
from cs_system.errors import ExecutableError

data, first, numbers = sys.stdin.buffer.read(), int(sys.argv[1]), random.Random(0)
for number in range(100):
    damaged = bytearray(data)
    damaged[numbers.randrange(len(data))] ^= 1 << numbers.randrange(8)
    if number >= first:
        print(number, flush=True)
        with contextlib.suppress(ExecutableError):
            load_step(bytes(damaged))
"""


def test_damaged_bytes_end_in_errors():
    """MLIR's reader itself may crash: it reads in the process of a run, of which the system sees the end."""
    data = bytes(exported(lambda x: jnp.tanh(x @ x), (3, 3), platforms=("cpu", "cuda")).serialize())
    first, crashes = 0, 0
    while first < 100:
        run = subprocess.run([sys.executable, "-c", LOADS, str(first)], input=data, capture_output=True)
        assert run.returncode in (0, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS), run.stderr.decode()
        crashes += run.returncode != 0
        first = int(run.stdout.split()[-1]) + 1
    assert crashes < 10


def test_a_name_that_is_not_utf8_is_refused_and_not_printed(capfd):
    found = exported(lambda x: x + 1, (2,))
    damaged = found.mlir_module_serialized.replace(b"add_v1", b"\xe3dd_v1", 1)
    assert damaged != found.mlir_module_serialized
    assert "a name is not UTF-8" in refused(dataclasses.replace(found, mlir_module_serialized=damaged))
    assert capfd.readouterr() == ("", "")
