"""What a mode of execution makes of a step: the content of an artifact."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cgc.manifest import PROVENANCE, Estimates, ExecutableEntry, Interface, executable_file
from cgc.provenance import Provenance

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
        texts: all other files by name, but the reports for people.
        estimates: for the manifest.
        report: the estimates as objects.
        render: the reports for people, by file name, with what is told of the compilation.
    """

    batch_size: int
    parts: tuple[Part, ...]
    texts: dict[str, str]
    estimates: Estimates
    report: CompileReport | StreamedReport
    render: Callable[[Provenance], Mapping[str, str]]

    def files(self, made: Provenance) -> dict[str, bytes]:
        """Every file of the artifact but its manifest.

        Args:
            made: told in the reports for people, and in a file of its own; no other file depends on it.
        """
        texts = {**self.texts, **self.render(made)}
        if made != Provenance():
            texts[PROVENANCE] = json.dumps(made.to_json(), indent=1) + "\n"
        encoded = {name: text.encode() for name, text in texts.items()}
        return encoded | {executable_file(part.name): part.data for part in self.parts}

    def entries(self) -> list[ExecutableEntry]:
        """The executables as the manifest lists them."""
        return [
            ExecutableEntry(name=part.name, interface=Interface.from_step(part.interface))
            for part in self.parts
        ]
