"""The batch script of a job. Pure: typed values in, the text of the script out.

The script runs csrun_wse on the first node of the job, which is the chief's, with `exec`: Slurm's signals for
the batch shell reach csrun_wse itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import join, quote

from cs_toolkit.errors import UsageError
from cs_toolkit.version import __version__


@dataclass(frozen=True, slots=True)
class BatchScript:
    """A batch job.

    Attributes:
        name: the job's name.
        components: sbatch options of each component of the job, the chief's first. Slurm carries only some
            of them over from the first component, so each has all that it needs.
        output: absolute path of what the batch script writes; in it %j stands for the job's number.
        cwd: absolute directory in which the command starts.
        command: csrun_wse with its flags and the user's command.
        requeue: after a lost node, or when the job asks for it, it is put back into the queue.
        warn_s: seconds before the time limit at which csrun_wse gets SIGUSR1; 0: it gets none.
    """

    name: str
    components: tuple[tuple[str, ...], ...]
    output: Path
    cwd: Path
    command: tuple[str, ...]
    requeue: bool
    warn_s: int


def render(script: BatchScript) -> str:
    """The text.

    Raises:
        UsageError: a path that sbatch cannot be told.
    """
    lines = [
        "#!/bin/bash",
        f"# Written by csrun_wse {__version__}. Submit it again with: sbatch FILE",
        directive("--job-name", script.name),
        directive("--output", _output_pattern(script.output)),
        # After a requeue the job goes on, and so does its log.
        directive("--open-mode", "append"),
        directive("--requeue" if script.requeue else "--no-requeue"),
    ]
    if script.warn_s:
        lines.append(directive("--signal", f"B:USR1@{script.warn_s}"))
    for number, component in enumerate(script.components):
        if number:
            lines.append("#SBATCH hetjob")
        lines += [_option_line(option) for option in component]
    lines += ["", f"cd -- {quote(str(script.cwd))} || exit", f"exec {join(script.command)}", ""]
    return "\n".join(lines)


def directive(name: str, value: str = "") -> str:
    """An #SBATCH line with the value quoted where sbatch needs that."""
    if not value:
        return f"#SBATCH {name}"
    if "\n" in value:
        raise UsageError(
            f"{name}: got {value!r}, expected a value without a line end: an #SBATCH line cannot hold one"
        )
    plain = all(character.isalnum() or character in "-_./:,=@%+" for character in value)
    quoted = value if plain else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH {name}={quoted}"


def _option_line(option: str) -> str:
    name, _, value = option.partition("=")
    return directive(name, value)


def _output_pattern(path: Path) -> str:
    """The path as a pattern of sbatch: only %j in its last part is one."""
    if "\\" in str(path):
        raise UsageError(
            f"--log-dir: got {str(path.parent)!r}, expected a path without a backslash: to sbatch it has a "
            f"meaning of its own; give another directory"
        )
    return f"{str(path.parent).replace('%', '%%')}/{path.name}"
