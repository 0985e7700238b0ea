"""The training step of an example model as the compiler gets it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp

ROOT = Path(__file__).resolve().parent.parent


def example_step(
    model: str, params_file: str, changes: Mapping[str, Mapping[str, Any]] | None = None
) -> ModuleOp:
    """Traces a training step of `models/<model>/tf` with TensorFlow and imports it.

    One model for a process: the example programs have modules of the same names.

    Args:
        model: name of the folder.
        params_file: name of a file in its `configs`.
        changes: by group of the parameter file, values that take the place of the file's.
    """
    from estimator import CSRunConfig, import_tensorflow
    from estimator.front_end import TensorFlowFrontEnd
    from estimator.input import InputSource
    from toolkit_config.loader import load_model

    folder = ROOT / "models" / model / "tf"
    sys.path.insert(0, str(folder))
    program = import_module("run").PROGRAM
    params: dict[str, Any] = load_model(folder / "configs" / params_file, program.params).plain()
    for group, values in (changes or {}).items():
        params[group].update(values)
    import_tensorflow()
    functions = program.functions()
    config = CSRunConfig(tf_random_seed=1)
    source = InputSource(functions.train_input_fn, "train", params, config, {})
    with tempfile.TemporaryDirectory() as model_dir:
        front_end = TensorFlowFrontEnd(functions.model_fn, source, params, config, Path(model_dir))
        return front_end.program().module
