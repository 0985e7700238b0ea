"""csrun completion: shell completion of flags, subcommands, files and job ids for all commands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from cs_toolkit.errors import UsageError
from cs_toolkit.files import replace_file
from csrun.console import STDOUT, say, write_text
from csrun.errors import CsrunError
from csrun.jobs.registry import known_jobs

PROGRAM = "csrun"
PROGRAMS = ("csrun", "csrun_cpu", "csrun_wse", "cs_input_analyzer", "cs_system")
SHELLS = ("bash", "zsh", "fish")
MARK = "# completion of csrun, csrun_cpu, csrun_wse, cs_input_analyzer and cs_system"
_SCRIPTS: Mapping[str, str] = {
    "bash": ".local/share/csrun/completion.bash",
    "zsh": ".local/share/csrun/completion.zsh",
    "fish": ".config/fish/conf.d/csrun.fish",  # fish reads this folder without a line in a start file
}
# zsh has completion only after compinit has run.
_BEFORE: Mapping[str, tuple[str, ...]] = {
    "zsh": ("(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }",)
}
_START_FILES: Mapping[str, str] = {"bash": ".bashrc", "zsh": ".zshrc"}


@click.command("completion", options_metavar="[FLAGS]")
@click.argument("shell", required=False, type=click.Choice(SHELLS), metavar="[bash|zsh|fish]")
@click.option("--install", "action", flag_value="install", help="Add it to the start files of your shell.")
@click.option("--remove", "action", flag_value="remove", help="Remove it from them.")
def completion(shell: str | None, action: str | None) -> int:
    """Completes flags, subcommands, files and job ids of all commands with the Tab key.

    Prints the script for SHELL, by default yours. With --install it is read at the start of every shell.

    \b
    Examples:
      csrun completion --install
      source <(csrun completion bash)      (for this shell only)
    """
    chosen = shell or Path(os.environ.get("SHELL", "")).name
    if chosen not in SHELLS:
        raise UsageError(
            f"the shell {chosen!r} (SHELL) is unknown; expected one of: {', '.join(SHELLS)}: name it, for "
            f"example 'csrun completion bash'"
        )
    home = Path(os.environ.get("HOME") or "~").expanduser()
    if action is None:
        write_text(STDOUT, script_for(chosen))
        return 0
    try:
        files = install(chosen, home) if action == "install" else remove(chosen, home)
    except OSError as error:
        raise CsrunError(
            f"cannot write {error.filename}: {error.strerror}; expected a writable home "
            f"directory: 'csrun completion {chosen}' prints the script to stdout"
        ) from error
    done = "installed in" if action == "install" else "removed from"
    say(PROGRAM, f"completion for {chosen} {done} {', '.join(map(str, files)) or 'nothing'}")
    if action == "install":
        say(PROGRAM, f"new shells have it; 'csrun completion {chosen} --remove' removes it")
    return 0


def script_for(shell: str) -> str:
    """Return the completion script for all commands."""
    kind = get_completion_class(shell)
    assert kind is not None, f"click knows no completion for {shell}"
    command = click.Command(PROGRAM)
    parts = [
        kind(command, {}, program, f"_{program.upper()}_COMPLETE").source().strip() for program in PROGRAMS
    ]
    return "\n\n".join([MARK, *_BEFORE.get(shell, ()), *parts]) + "\n"


def install(shell: str, home: Path) -> list[Path]:
    """Write the script, and a line in the start file of a shell that does not find the script itself.

    Raises:
        OSError: a file cannot be written.
    """
    script = home / _SCRIPTS[shell]
    script.parent.mkdir(parents=True, exist_ok=True)
    replace_file(script, script_for(shell))
    start = _start_file(shell, home)
    if start is None:
        return [script]
    before = start.read_text(encoding="utf-8") if start.exists() else ""
    line = f'source "$HOME/{_SCRIPTS[shell]}"  {MARK}\n'
    if line not in before:
        gap = "" if not before or before.endswith("\n") else "\n"
        _rewrite(start, before + gap + line)
    return [script, start]


def remove(shell: str, home: Path) -> list[Path]:
    """Undo `install` and return the files that have changed.

    Raises:
        OSError: a file cannot be written.
    """
    changed = []
    script, start = home / _SCRIPTS[shell], _start_file(shell, home)
    if script.exists():
        script.unlink()
        changed.append(script)
    if start is not None and start.exists():
        lines = start.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if MARK not in line]
        if kept != lines:
            _rewrite(start, "".join(kept))
            changed.append(start)
    return changed


def job_ids(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the id of a job, newest first, with its command as help."""
    return [
        CompletionItem(job.job_id, help=" ".join(job.command)[:60])
        for job in known_jobs(os.environ)
        if job.job_id.startswith(incomplete)
    ]


def tasks(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a task that has a log in the job that the command line names."""
    named = context.params.get("job")
    jobs = [job for job in known_jobs(os.environ) if named and job.job_id == named]
    logs = (path.stem for job in jobs for path in Path(job.log_dir).glob("*.log"))
    return [CompletionItem(name) for name in sorted([*logs, "all"]) if name.startswith(incomplete)]


def files(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete files: the arguments of the user's command."""
    return [CompletionItem(incomplete, type="file")]


def _start_file(shell: str, home: Path) -> Path | None:
    return home / _START_FILES[shell] if shell in _START_FILES else None


def _rewrite(path: Path, text: str) -> None:
    # In place: a start file is often a symbolic link into a repository, which a rename would replace.
    path.write_text(text, encoding="utf-8")
