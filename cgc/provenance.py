"""Where a compiled step comes from: what a report tells besides what it estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Provenance:
    """Who compiled what, when and with what; no part of an artifact's key.

    Attributes:
        model: what the program calls its model; empty where it has no name.
        program: path of the program.
        command: its command line.
        compiled_at: local time with its zone, as "2026-03-01 12:30:00 +0100".
        versions: version of the toolkit and what it stands on, by name.
    """

    model: str = ""
    program: str = ""
    command: str = ""
    compiled_at: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def lines(self) -> list[tuple[str, str]]:
        """What is known, as (label, text)."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        found = (
            ("Model", self.model),
            ("Program", self.program),
            ("Command", self.command),
            ("Compiled", self.compiled_at),
            ("Versions", versions),
        )
        return [(label, text) for label, text in found if text]

    def to_json(self) -> dict[str, object]:
        """Content of `provenance.json`."""
        return {
            "model": self.model,
            "program": self.program,
            "command": self.command,
            "compiled_at": self.compiled_at,
            "versions": dict(self.versions),
        }
