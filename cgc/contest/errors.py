"""Errors of the contest tools."""

from __future__ import annotations

from cgc.errors import CompileError


class ContestFileError(CompileError):
    """A graph or a solution that cannot be read or written; the message starts with the file and line."""

    exit_code = 2


class ContestError(CompileError):
    """A graph that has no legal placement: which kernel, what it needs, what there is."""
