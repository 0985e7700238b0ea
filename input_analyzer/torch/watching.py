"""Notices the calls of a loader's datasets and transforms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from input_analyzer.torch.profile import Profile
from input_rules.torch.layers import Hook, Layer, is_function, is_iterable


@contextmanager
def watched(layers: tuple[Layer, ...], profile: Profile) -> Iterator[None]:
    """While it is open, every call of a layer but the last is noticed by the profile.

    Objects get a class derived from their own for so long, functions a wrapper in their place. What does not
    let itself be changed so counts for what it is called by.
    """
    undo: list[Callable[[], None]] = []
    try:
        for layer in layers[:-1]:
            for hook in layer.hooks:
                with suppress(TypeError, AttributeError):
                    undo.append(_watch(hook, layer, profile))
        yield
    finally:
        for step in reversed(undo):
            step()


def _watch(hook: Hook, layer: Layer, profile: Profile) -> Callable[[], None]:
    target = hook.target
    if is_function(target):
        return _replace(hook, _timed(target, layer.name, profile))
    kind = type(target)
    if layer.op == "transform":
        methods = {"__call__": _timed(kind.__call__, layer.name, profile)}
    elif is_iterable(target):
        methods = {"__iter__": _timed_steps(kind.__iter__, layer.name, profile)}
    else:
        names = [name for name in ("__getitem__", "__getitems__") if getattr(kind, name, None)]
        methods = {name: _timed(getattr(kind, name), layer.name, profile) for name in names}
    space = {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__, **methods}
    make: Any = type(kind)  # its metaclass
    target.__class__ = make(kind.__name__, (kind,), space)
    return functools.partial(setattr, target, "__class__", kind)


def _replace(hook: Hook, wrapper: Any) -> Callable[[], None]:
    owner, place = hook.owner, hook.place
    if isinstance(place, int):
        owner[place] = wrapper
        return functools.partial(owner.__setitem__, place, hook.target)
    setattr(owner, str(place), wrapper)
    return functools.partial(setattr, owner, str(place), hook.target)


def _timed(function: Any, name: str, profile: Profile) -> Any:
    @functools.wraps(function, assigned=("__name__", "__doc__"), updated=())
    def timed(*args: Any, **kwargs: Any) -> Any:
        profile.enter(name)
        try:
            return function(*args, **kwargs)
        finally:
            profile.leave()

    return timed


def _timed_steps(function: Any, name: str, profile: Profile) -> Any:
    step = _timed(next, name, profile)

    def steps(self: Any) -> Iterator[Any]:
        records = iter(_timed(function, name, profile)(self))
        while True:
            try:
                record = step(records)
            except StopIteration:
                return
            yield record

    return steps
