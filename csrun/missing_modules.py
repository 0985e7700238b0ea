"""Hints for a user whose program imports a missing module."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec

from cs_toolkit.errors import PACKAGES

_WEIGHT_STREAMING = ("tfwse", "cerebras.tf.ws")
_ORIGINAL = ("cerebras", "cerebras_appliance", "cerebras_tensorflow", "tensorflow_estimator")
"""Names of the original stack that the launchers' interpreters have, besides `PACKAGES`."""

FRONT_ENDS: Mapping[str, str] = {
    "cloudpickle": "torch",
    "h5py": "torch",
    "hdf5plugin": "torch",
    "safetensors": "torch",
    "tensorflow": "tf",
    "torch": "torch",
}
"""Extras of the toolkit that have a module, where only one of them has it."""

_PACKAGES: Mapping[str, str] = {
    "sklearn": "scikit-learn",
    # It asks for the package tensorflow, which would overwrite files of tensorflow-cpu.
    "tf_keras": "--no-deps tf_keras",
}
"""What `pip install` wants for modules that programs for CS systems often import."""


_WITHOUT_KERAS_2 = ("Keras cannot be imported", "is not available with Keras 3")
"""What TensorFlow says to programs for Keras 2 where tf_keras is not installed."""


def hint(error: BaseException) -> str | None:
    """One or two sentences: where a module was searched, and how to add its package.

    None for an error that says nothing of a module.
    """
    # That one is of a distribution whose metadata is missing; its text is no name of a module.
    if isinstance(error, ModuleNotFoundError) and not isinstance(error, PackageNotFoundError):
        return _of_a_module(error.name or "")
    if any(words in str(error) for words in _WITHOUT_KERAS_2) and find_spec("tf_keras") is None:
        return f"{error} The program is for Keras 2: csrun pip install {_PACKAGES['tf_keras']}"
    return None


def _of_a_module(name: str) -> str:
    if _is_below(name, _WEIGHT_STREAMING):
        return (
            f"the module '{name}' belongs to weight streaming; run the program with python-ws in the place "
            "of python"
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
        "(the package may have another name; docs/containers.md has more ways)"
    )


def _is_below(name: str, packages: tuple[str, ...]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)
