"""Whether a module draws random numbers when it is imported that are other ones in every process.

An examination imports the user's module once. What the module draws then is the same in everything that is
compared in that process, but every worker of a run imports the module itself.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

from input_analyzer.imports import on_import

AT_IMPORT = (
    "random numbers are drawn without a seed when the module is imported: every worker draws others, and "
    "parts of other orders would lose records"
)
_LIBRARIES = ("tensorflow", "keras", "torch")
"""They draw when they are imported themselves, which decides about no records."""
_LAYERS = "keras.src.random.seed_generator"
"""Draws seeds with which layers begin, which decide about no records either."""


@contextmanager
def import_watched() -> Iterator[Callable[[], bool]]:
    """Follows the random numbers that everything in a process shares: of Python, NumPy and torch.

    Yields:
        What tells whether any have been drawn meanwhile, by other than frameworks for themselves, from a
        generator that had not been seeded; also from one of `numpy.random.default_rng()`.
    """
    watch = _Watch()
    with ExitStack() as stack:
        stack.callback(watch.end)
        watch.add(random, "getstate", ("seed", "setstate"))
        for name in _LIBRARIES:
            stack.enter_context(on_import(name, watch.resume, watch.pause))
        stack.enter_context(on_import(_LAYERS, watch.leave_layers_out))
        # Inside those, as they import NumPy themselves.
        stack.enter_context(on_import("numpy.random", watch.add_numpy))
        stack.enter_context(on_import("torch", watch.add_torch))
        yield watch.has_drawn


class _Watch:
    """The generators that have been met so far."""

    def __init__(self) -> None:
        self._shared: list[_Shared] = []
        self._own: list[tuple[Any, bytes]] = []
        self._undo: list[Callable[[], None]] = []
        self._drawn = False
        self._paused = 0

    def add(self, module: Any, get: str, setters: tuple[str, ...]) -> None:
        """Follows a generator that functions of a module read and set."""
        shared = _Shared(getattr(module, get))
        self._shared.append(shared)
        for name in setters:
            self._replace(module, name, lambda plain: self._setting(shared, plain))

    def add_numpy(self) -> None:
        """Follows that of NumPy, and those that are made without a seed."""
        module = sys.modules["numpy.random"]
        self.add(module, "get_state", ("seed", "set_state"))
        self._replace(module, "default_rng", self._making)

    def add_torch(self) -> None:
        """Follows that of torch."""
        self.add(sys.modules["torch"], "get_rng_state", ("seed", "manual_seed", "set_rng_state"))

    def leave_layers_out(self) -> None:
        """What layers of Keras draw does not count."""
        self._replace(
            sys.modules[_LAYERS],
            "python_random",
            lambda plain: SimpleNamespace(randint=self._aside(plain.randint)),
        )

    def pause(self) -> None:
        """What is drawn from here on does not count."""
        self._note()
        self._paused += 1

    def resume(self) -> None:
        """It counts again; at once where nothing was paused."""
        self._paused = max(self._paused - 1, 0)
        for shared in self._shared:
            shared.begin()

    def has_drawn(self) -> bool:
        """Whether numbers were drawn without a seed."""
        self._note()
        return self._drawn or any(_state(made) != before for made, before in self._own)

    def end(self) -> None:
        """Puts back what was replaced; what the module has kept of it does no more than it did before."""
        self._paused += 1
        while self._undo:
            self._undo.pop()()

    def _note(self) -> None:
        if not self._paused:
            self._drawn = self._drawn or any(shared.has_drawn() for shared in self._shared)

    def _replace(self, module: Any, name: str, made: Callable[[Any], Any]) -> None:
        plain = getattr(module, name)
        setattr(module, name, made(plain))
        self._undo.append(lambda: setattr(module, name, plain))

    def _aside(self, plain: Any) -> Any:
        def drawing(*args: Any) -> Any:
            self.pause()
            try:
                return plain(*args)
            finally:
                self.resume()

        return drawing

    def _setting(self, shared: _Shared, plain: Any) -> Any:
        def setting(*args: Any, **kwargs: Any) -> Any:
            self._note()
            unset = [value is None for value in (*args, *kwargs.values())]
            found = plain(*args, **kwargs)
            if not self._paused:
                shared.set_to(seeded=bool(unset) and not unset[0])
            return found

        return setting

    def _making(self, plain: Any) -> Any:
        def default_rng(seed: Any = None) -> Any:
            made = plain(seed)
            if seed is None and not self._paused:
                self._own.append((made, _state(made)))
            return made

        return default_rng


class _Shared:
    """A generator of a process; it begins unseeded."""

    def __init__(self, get: Callable[[], Any]) -> None:
        self._get = get
        self._seeded = False
        self.begin()

    def begin(self) -> None:
        """What was drawn until now does not count."""
        self._before = self._now()

    def has_drawn(self) -> bool:
        """Whether numbers were drawn since, without a seed."""
        return not self._seeded and self._now() != self._before

    def set_to(self, seeded: bool) -> None:
        """It was set: put back to where it was without a seed it has none."""
        self._seeded = seeded and self._now() != self._before
        if not self._seeded:
            self.begin()

    def _now(self) -> bytes:
        found = self._get()
        return found.numpy().tobytes() if hasattr(found, "numpy") else pickle.dumps(found)


def _state(generator: Any) -> bytes:
    return pickle.dumps(generator.bit_generator.state)
