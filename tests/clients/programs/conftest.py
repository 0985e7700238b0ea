from __future__ import annotations

from collections.abc import Iterator

import pytest

from cs_system.testing import RunningSystem, running_system


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    with running_system(tmp_path_factory.mktemp("system")) as running:
        yield running
