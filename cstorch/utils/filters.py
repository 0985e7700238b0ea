"""Filters of parameters by name, and other helpers of the original's `utils.utils`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from cstorch.errors import SessionError

FilterCallable = Callable[[str, nn.Parameter], bool]
"""Chooses parameters by name and value."""


def is_ltc_mlir_mode_enabled() -> bool:
    """Return False: programs of release 1.9 then record one step and drive the appliance.

    They use the loop of `cerebras_pytorch` only if they ask for it with `experimental_api`.
    """
    return False


def convert_glob_to_regex(f: str | re.Pattern[str]) -> re.Pattern[str]:
    """Return the regular expression for a name with wildcards; a regular expression is returned unchanged.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(f, re.Pattern):
        return f
    if not isinstance(f, str):
        raise TypeError(f"filter is a {type(f).__name__}, expected a string")
    return re.compile(fnmatch.translate(f))


def make_param_filter(param_filter: Any) -> FilterCallable:
    """Return a filter from a function, or from names with wildcards of which one has to match.

    Raises:
        TypeError: It is something else.
    """
    if callable(param_filter):
        return param_filter
    names = [param_filter] if isinstance(param_filter, str | re.Pattern) else param_filter
    if not isinstance(names, list | tuple | set):
        raise TypeError(
            f"param_filter is a {type(param_filter).__name__}, expected a string, a list of strings, or a "
            "function of the name and the parameter"
        )
    patterns = [convert_glob_to_regex(name) for name in names]
    return lambda name, param: any(pattern.search(name) for pattern in patterns)


def extract_loss(outputs: Any) -> torch.Tensor:
    """Return the loss of a model: its tensor, the first of a sequence, or `loss` of a mapping or object.

    Raises:
        SessionError: There is no loss.
    """
    found = outputs
    if isinstance(outputs, Mapping):
        found = outputs.get("loss")
    elif not isinstance(outputs, torch.Tensor) and getattr(outputs, "loss", None) is not None:
        found = outputs.loss
    elif isinstance(outputs, list | tuple) and outputs:
        found = outputs[0]
    if not isinstance(found, torch.Tensor):
        raise SessionError(
            f"a model returned a {type(outputs).__name__} without a loss, expected a tensor, a sequence that "
            "begins with one, or a mapping or object with `loss`"
        )
    return found
