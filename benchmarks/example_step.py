"""The training step of an example model as the compiler gets it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp

MODELS = Path(__file__).resolve().parent.parent / "models"


def example_step(
    model: str, params_file: str, changes: Mapping[str, Mapping[str, Any]] | None = None
) -> ModuleOp:
    """Traces a training step of `models/<model>/tf` with TensorFlow and imports it.

    Args:
        model: name of the folder.
        params_file: name of a file in its `configs`.
        changes: by group of the parameter file, values that take the place of the file's.
    """
    from cs_toolkit.loader import load_model
    from estimator import CSRunConfig, import_tensorflow
    from estimator.cs.program import TensorFlowFrontEnd
    from estimator.input.dataset import InputSource

    import_tensorflow()
    network, data, schema = (
        import_module(f"models.{model}.tf.{part}") for part in ("model", "data", "params")
    )
    path = MODELS / model / "tf" / "configs" / params_file
    params: dict[str, Any] = load_model(path, schema.Params).plain()
    for group, values in (changes or {}).items():
        params[group].update(values)
    config = CSRunConfig(tf_random_seed=1)
    source = InputSource(data.train_input_fn, "train", params, config, {})
    with tempfile.TemporaryDirectory() as model_dir:
        front_end = TensorFlowFrontEnd(network.model_fn, source, params, config, Path(model_dir))
        return front_end.program().module
