"""Random generators that a dataset may draw from: those of the process, and those of the user's own."""

from __future__ import annotations

import random
from types import CodeType
from typing import Any

import numpy as np
import torch

from input_analyzer.torch import global_random
from input_analyzer.torch.layers import layers_of

SEED = 20190731
"""With which random numbers are begun anew before records are compared."""


def states(dataset: Any) -> dict[str, str]:
    """The states of all random generators that a dataset may draw from."""
    own = {name: global_random.fingerprint(_state_of(one)) for name, one in generators_of(dataset).items()}
    return states_of_process() | own


def states_of_process() -> dict[str, str]:
    """Those of the generators that everything in a process shares."""
    return {name: global_random.fingerprint(state) for name, state in global_random.states().items()}


def generators_of(dataset: Any) -> dict[str, Any]:
    """The random generators of the user's own that a dataset may draw from."""
    found: dict[str, Any] = {}
    for layer in layers_of(dataset):
        things = [dataset] if layer.name == "getitem" else [hook.target for hook in layer.hooks]
        for thing in things:
            for name, value in (*_members(thing), *_globals(layer.code), *_globals(thing)):
                if _state_of(value) is not None:
                    found[name] = value
    return found


def in_code(dataset: Any) -> frozenset[str]:
    """Those of `generators_of` that what makes a record names: it may draw from them in some records only."""
    found: set[str] = set()
    for layer in layers_of(dataset):
        things = [dataset] if layer.name == "getitem" else [hook.target for hook in layer.hooks]
        for kind in map(type, things):
            codes = (getattr(getattr(kind, name, None), "__code__", None) for name in _RECORD_MAKERS)
            found |= {f"{kind.__name__}.{name}" for code in codes if code for name in code.co_names}
    return frozenset(found & generators_of(dataset).keys())


_RECORD_MAKERS = ("__getitem__", "__getitems__", "__call__", "forward")


def begin_anew(generator: Any, seed: int = SEED) -> None:
    """Begins a generator of the user's own anew; one that has no seed stays as it is."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    else:
        generator.seed(seed)


def _members(thing: Any) -> list[tuple[str, Any]]:
    try:
        return [(f"{type(thing).__name__}.{name}", value) for name, value in vars(thing).items()]
    except TypeError:
        return []


def _globals(thing: Any) -> list[tuple[str, Any]]:
    """What a function uses of its module, or the call of an object."""
    function = thing if hasattr(thing, "__code__") else vars(type(thing)).get("__call__")
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return []
    space = getattr(function, "__globals__", {})
    return [(name, space[name]) for name in code.co_names if name in space]


def _state_of(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state()
    return None
