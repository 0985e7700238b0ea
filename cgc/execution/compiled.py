"""What a mode of execution makes of a step: the content of an artifact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cgc.manifest import Estimates, ExecutableEntry, Interface, executable_file

if TYPE_CHECKING:
    from cgc.report import CompileReport, StreamedReport
    from cs_toolkit.step import StepInterface


@dataclass(frozen=True)
class Part:
    """One executable.

    Attributes:
        name: unique in the step.
        interface: what goes into and comes out of it.
        data: its bytes.
    """

    name: str
    interface: StepInterface
    data: bytes


@dataclass(frozen=True)
class Compiled:
    """A compiled step.

    Attributes:
        batch_size: samples of a step.
        parts: the executables, in the order that the mode of execution wants.
        texts: all other files by name.
        estimates: for the manifest.
        report: the estimates as objects.
    """

    batch_size: int
    parts: tuple[Part, ...]
    texts: dict[str, str]
    estimates: Estimates
    report: CompileReport | StreamedReport

    def files(self) -> dict[str, bytes]:
        """Every file of the artifact but its manifest."""
        texts = {name: text.encode() for name, text in self.texts.items()}
        return texts | {executable_file(part.name): part.data for part in self.parts}

    def entries(self) -> list[ExecutableEntry]:
        """The executables as the manifest lists them."""
        return [
            ExecutableEntry(name=part.name, interface=Interface.from_step(part.interface))
            for part in self.parts
        ]
