"""Hints for users whose program imports a missing module."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec

from cs_toolkit.errors import PACKAGES

_WEIGHT_STREAMING = ("tfwse", "cerebras.tf.ws")
# Packages of the original stack that the launchers' interpreters have, in addition to `PACKAGES`.
_ORIGINAL = ("cerebras", "cerebras_appliance", "cerebras_tensorflow", "tensorflow_estimator")

# The extra of the toolkit with a module, for modules that only one extra has.
FRONT_ENDS: Mapping[str, str] = {
    "cloudpickle": "torch",
    "h5py": "torch",
    "hdf5plugin": "torch",
    "safetensors": "torch",
    "tensorflow": "tf",
    "torch": "torch",
}

# Arguments of `pip install` for modules that programs for CS systems often import.
_PACKAGES: Mapping[str, str] = {
    "sklearn": "scikit-learn",
    # It depends on the package tensorflow, which would overwrite files of tensorflow-cpu.
    "tf_keras": "--no-deps tf_keras",
}

# Messages of TensorFlow to programs for Keras 2 if tf_keras is not installed.
_WITHOUT_KERAS_2 = ("Keras cannot be imported", "is not available with Keras 3")


def hint(error: BaseException) -> str | None:
    """Return where a module was searched and how to add its package; None for other errors."""
    # PackageNotFoundError is about the metadata of a distribution; its text is not the name of a module.
    if isinstance(error, ModuleNotFoundError) and not isinstance(error, PackageNotFoundError):
        return _module_hint(error.name or "")
    if any(text in str(error) for text in _WITHOUT_KERAS_2) and find_spec("tf_keras") is None:
        return f"{error} The program is for Keras 2: csrun pip install {_PACKAGES['tf_keras']}"
    return None


def _module_hint(name: str) -> str:
    if _is_below(name, _WEIGHT_STREAMING):
        return (
            f"the module '{name}' belongs to weight streaming; run the program with python-ws instead of "
            "python"
        )
    if _is_below(name, ("torch_xla",)):
        return f"the module '{name}' belongs to PyTorch programs; run the program with python-pt"
    top = name.partition(".")[0]
    found = f"there is no module '{name}' in the environment of programs ({sys.executable})"
    if top in (*PACKAGES, *_ORIGINAL) or top.startswith("cerebras"):
        # A package of that name on the index would replace modules of the toolkit.
        return (
            f"{found}; {top} is a name of the toolkit, and no package of the index adds to it: check the "
            "name, or add the folder that has the module to PYTHONPATH"
        )
    if top in FRONT_ENDS:
        return (
            f"{found}; install the toolkit with the extra that has it: "
            f"{sys.executable} -m pip install 'cs-toolkit[{FRONT_ENDS[top]}]'"
        )
    if top in _PACKAGES:
        return f"{found}; add it: csrun pip install {_PACKAGES[top]}"
    return (
        f"{found}; add the package that has it: csrun pip install {top or 'PACKAGE'} "
        "(the package may have another name; see docs/how-to/containers.md)"
    )


def _is_below(name: str, packages: tuple[str, ...]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)
