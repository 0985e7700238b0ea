"""Directories that cannot be written are one message before any slow work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cs_runtime.embedded_system import EmbeddedSystem
from cs_runtime.errors import ModelDirError
from csrun.tasks.roles import TaskInfo
from cstorch.input.workers import LocalWorkers
from cstorch.loop.loaders import _new_folder

NEEDED_BY: dict[str, Callable[[Path], object]] = {
    "embedded system": lambda folder: EmbeddedSystem(folder / "cs_system.log"),
    "executor": _new_folder,
    "workers": lambda folder: LocalWorkers(2, folder / "job", TaskInfo.from_environment()),
}


@pytest.mark.parametrize("name", NEEDED_BY)
def test_a_directory_that_cannot_be_made(name: str, tmp_path: Path) -> None:
    blocked = tmp_path / "file" / "model_dir"
    blocked.parent.write_text("not a directory")
    with pytest.raises(ModelDirError, match=r"cannot write to model_dir '.*Not a directory; free space"):
        NEEDED_BY[name](blocked)
