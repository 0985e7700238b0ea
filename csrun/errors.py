"""Errors of the launchers; each class has the exit code that it leads to."""

from __future__ import annotations

from cs_toolkit.errors import ToolkitError


class CsrunError(ToolkitError):
    """An expected failure of a launcher."""


class RoleError(CsrunError):
    """The environment does not identify which task of a job this process is."""

    exit_code = 2


class LogDirError(CsrunError):
    """The log directory of a job cannot be created or written."""

    exit_code = 1


class StartError(CsrunError):
    """The machine refused to start a task (too many processes or open files, no memory)."""

    exit_code = 1


class CommandNotFoundError(CsrunError):
    """The user's command exists neither as a path nor in PATH; the exit code is that of a shell."""

    exit_code = 127


class CommandNotExecutableError(CsrunError):
    """The user's command exists and cannot be executed; the exit code is that of a shell."""

    exit_code = 126
