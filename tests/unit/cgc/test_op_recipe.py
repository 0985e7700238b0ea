"""The recipe for an op in CONTRIBUTING.md, applied to a copy of the compiler: `cirh.Tan` takes four files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Text that each file gets at its end. Both importers express tan by sine and cosine: the op replaces that.
ADDED = {
    "cgc/cirh/elementwise.py": '''

@irdl_op_definition
class TanOp(UnaryOp):
    """Tangent of radians."""

    name = "cirh.Tan"
    TRAITS: ClassVar[OpTraits] = pointwise(TRANSCENDENTAL)
''',
    "cgc/lowering/elementwise.py": """
LOWERINGS[ops.TanOp] = plain(lambda x: lax.div(lax.sin(x), lax.cos(x)))
""",
    "cgc/importers/tensorflow/handlers/elementwise.py": """
TABLE["Tan"] = lambda node: node.emit.unary(ops.TanOp, node.x(0))
""",
    "cgc/importers/aten/handlers/elementwise.py": """
TABLE["aten.tan.default"] = lambda node: node.emit.unary(ops.TanOp, node.cast())
""",
}


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow")
def test_an_op_takes_four_files_of_the_product(tmp_path: Path) -> None:
    assert len(ADDED) <= 4
    for package in ("cgc", "configs", "cs_toolkit"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in ADDED.items():
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write(text)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    # -P: the folder of this file, which has modules of its own, stays out of the way.
    done = subprocess.run(
        [sys.executable, "-P", __file__], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def check() -> None:
    """Check the op in both importers, a compiled step, a generated kernel, and a folded constant."""
    import numpy as np
    import tensorflow as tf

    import cgc
    from cgc.cirh.base import CirhOp
    from cgc.cirh.interface import step_interface
    from cgc.cirh.ops import ALL_OPS, ConstOp
    from cgc.driver import compile_step
    from cgc.execution.compilation import CompileOptions
    from cgc.importers import aten
    from cgc.importers.aten.graph import Graph, Node, Tensor
    from cgc.importers.tensorflow import import_step
    from cgc.lowering.interpret import step_function
    from cgc.passes.constant_fold import evaluate
    from cs_toolkit.fabric import load_fabric

    assert Path(cgc.__file__).is_relative_to(Path.cwd()), "the unchanged compiler is on the path"
    x = np.linspace(-1.5, 1.5, 48, dtype=np.float32).reshape(8, 6)
    expected = np.tan(x.astype(np.float64))

    with tf.Graph().as_default() as graph:
        given = tf.compat.v1.placeholder(tf.float32, x.shape)
        outputs = {"y": tf.tan(given)}
    of_tensorflow = import_step(graph, inputs=[given], outputs=outputs, updates=[], mode="infer", seed=0)
    given, found = Tensor(0, x.shape, "float32"), Tensor(1, x.shape, "float32")
    node = Node("aten.tan.default", {"self": given}, (found,))
    recorded = Graph(nodes=[node], inputs=[given], outputs={"y": found})
    of_torch = aten.import_step(recorded, mode="infer", seed=0)

    for module in (of_tensorflow.module, of_torch):
        names = [op.name for op in module.walk() if isinstance(op, CirhOp)]
        assert names == ["cirh.Tan"], names
        step_number = [np.int32(0)] * len(step_interface(module).state)
        _, (result,) = step_function(module)(step_number, [x])
        np.testing.assert_allclose(result, expected, rtol=1e-5)

    compiled = compile_step(of_torch, Path("compiled"), CompileOptions(), load_fabric("cs2"))
    nests = compiled.artifact.read("lair.mlir").decode()
    assert "linalg.generic" in nests, nests
    assert "math.sin" in nests, nests

    (tan,) = [op for op in ALL_OPS if op.name == "cirh.Tan"]
    folded = evaluate(tan(ConstOp.from_array(x)), [x])
    assert folded is not None
    np.testing.assert_allclose(folded, expected, rtol=1e-6)


if __name__ == "__main__":
    check()
