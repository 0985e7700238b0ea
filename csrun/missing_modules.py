"""What to tell a user whose program imports a module that is not there."""

from __future__ import annotations

import sys

_WEIGHT_STREAMING = ("tfwse", "cerebras.tf.ws")
_PYTORCH = ("cerebras.framework", "cerebras_pytorch", "cerebras_torch", "torch_xla")


def hint(error: ModuleNotFoundError) -> str:
    """One or two sentences: where the module was searched, and how to add its package."""
    name = error.name or ""
    if _is_below(name, _WEIGHT_STREAMING):
        return (
            f"the module '{name}' belongs to weight streaming; run the program with python-ws in the place "
            "of python"
        )
    if _is_below(name, _PYTORCH):
        return (
            f"PyTorch programs for the CS system are not there, so there is no module '{name}'; "
            "expected a TensorFlow program"
        )
    top = name.partition(".")[0]
    return (
        f"there is no module '{name}' in the environment of programs ({sys.executable}); "
        f"add the package that has it: csrun pip install {top or 'PACKAGE'} "
        "(the package may have another name; docs/containers.md has more ways)"
    )


def _is_below(name: str, packages: tuple[str, ...]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)
