"""The stages of a compilation, and those that every mode of execution begins with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cgc.cirh.interface import step_mode
from cgc.cirh.verify import verify_module

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from cgc.cirh.scan import Scan

COMMON_STAGES = 3
"""Of every compilation: checking and rewriting the graph at its begin, writing the artifact at its end."""

Progress = Callable[[str, int, int], None]
"""(stage that begins, stages done, stages in all as far as known); at the end once more, all done."""


class Stages:
    """Counts the stages of a compilation for whoever shows them."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._done = 0
        self._progress = progress

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Announces a stage, and counts it when it has succeeded."""
        self._tell(name)
        yield
        self._done += 1

    def expect(self, more: int) -> None:
        """Says how many stages are to come after all."""
        self._total = self._done + more

    def finish(self) -> None:
        """Announces the end."""
        self._tell("Completed")

    def _tell(self, name: str) -> None:
        if self._progress is not None:
            self._progress(name, self._done, self._total)


def rewritten(module: ModuleOp, scanned: Scan | None, pipeline: str, stages: Stages) -> ModuleOp:
    """A checked and rewritten copy of a module; two stages.

    Args:
        module: the step; it is not changed.
        scanned: the same as integers, see `cgc.cirh.scan`.
        pipeline: the rewrites.
        stages: of the compilation.

    Raises:
        CompileError: the module is invalid.
    """
    from cgc.folding.rewrite import rewrite
    from cgc.passes.pipeline import verification_wanted

    with stages.stage("Checking the graph"):
        # Ops check themselves where they are made and where they are parsed.
        if verification_wanted():
            verify_module(module)
        step_mode(module)
    with stages.stage("Rewriting the graph"):
        return rewrite(module, scanned, pipeline)
