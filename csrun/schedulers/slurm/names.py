"""What jobs are called in the queue, whose lists show eight characters of a name. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_SAYS_NOTHING = frozenset(
    [
        *(
            "run",
            "main",
            "__main__",
            "train",
            "program",
            "app",
            "script",
            "start",
            "launch",
            "python",
            "bash",
        ),
        *("tf", "tensorflow", "pytorch", "torch", "src", "code", "scripts", "bin", "models", "sh", "env"),
    ]
)


def job_name(command: Sequence[str], cwd: Path, job_id: str) -> str:
    """What a command is about, with the end of the job's id behind it: no two jobs have the same.

    Args:
        command: the user's words.
        cwd: absolute directory in which it starts.
        job_id: our own id.
    """
    return f"{subject(command, cwd)}-{job_id.rpartition('-')[2]}"


def subject(command: Sequence[str], cwd: Path) -> str:
    """A word for what a command is about: its script, or the nearest folder whose name says more."""
    script = next((word for word in command[1:] if word.endswith((".py", ".sh"))), command[0])
    module = _module(command)
    path = cwd / (module.replace(".", "/") if module else script)
    for name in (path.stem, *(folder.name for folder in path.parents)):
        if name.lower() not in _SAYS_NOTHING and name.strip("./"):
            return _plain(name)
    return _plain(Path(command[0]).name)


def _module(command: Sequence[str]) -> str:
    words = list(command)
    at = words.index("-m") + 1 if "-m" in words[:3] else len(words)
    return words[at] if at < len(words) and not words[at].startswith("-") else ""


def _plain(name: str) -> str:
    """The name with nothing in it that Slurm's commands take for something else."""
    return "".join(character if character.isalnum() or character in "_.+" else "_" for character in name)
