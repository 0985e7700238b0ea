from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cs_system.memoryx.config import MemoryxConfig
from cs_system.memoryx.engine import StreamedEngine

from .streamed_steps import Streamed, running_memoryx, stack_of_three


@pytest.fixture(scope="session")
def stack() -> Streamed:
    """Return the stack of all tests, which nothing changes."""
    return stack_of_three()


@pytest.fixture(scope="session")
def memoryx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The address of a MemoryX that nobody breaks."""
    with running_memoryx(tmp_path_factory.mktemp("memoryx")) as (_, address):
        yield address


@contextmanager
def loaded(stack: Streamed, place: MemoryxConfig) -> Iterator[StreamedEngine]:
    engine = stack.engine(place)
    try:
        engine.put_state(stack.state)
        yield engine
    finally:
        engine.free()


@pytest.fixture
def engine(stack: Streamed, memoryx: tuple[str, int], tmp_path: Path) -> Iterator[StreamedEngine]:
    """Return an engine with a state; weights and results travel as between machines."""
    with loaded(stack, MemoryxConfig((memoryx,), tmp_path, maps_files=False)) as engine:
        yield engine


@pytest.fixture
def own(stack: Streamed, tmp_path: Path) -> Iterator[StreamedEngine]:
    """Return an engine with a state and its own MemoryX."""
    with loaded(stack, MemoryxConfig((), tmp_path)) as engine:
        yield engine
