"""Common parts of the command lines: parsers of values, messages, exit codes, and the flag --site-config."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from cs_toolkit.errors import ToolkitError, UsageError
from cs_toolkit.garbage import leave_at_exit
from csrun.console import flush_standard_streams, say
from csrun.errors import CsrunError
from csrun.schedulers.registry import schedulers
from csrun.site import SITE_CONFIG_VARIABLE, Site
from csrun.site.loading import LoadedSite, load_site
from csrun.site.values import parse_count
from csrun.tasks.command import is_directory

SITE_FLAG = "--site-config"
EXIT_USAGE = 2
EXIT_BUG = 3
EXIT_CTRL_C = 130
DAY_S = 86_400


Callback = Callable[[click.Context, click.Parameter, Any], Any]
Function = TypeVar("Function", bound=Callable[..., object])


def count(minimum: int = 1) -> Callback:
    """Return a callback that parses a whole number of at least `minimum`; None if the flag is not given."""

    def parse(context: click.Context, param: click.Parameter, text: str | None) -> int | None:
        if text is None:
            return None
        number = parse_count(text, minimum)
        if number is None:
            flag = flag_name(param)
            raise UsageError(
                f"{flag}: got {text!r}, expected a whole number of at least {minimum}, for example {flag}=2"
            )
        return number

    return parse


def seconds(context: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """Parse a time in seconds, from 0 to a day; None if the flag is not given."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= DAY_S:
        raise UsageError(
            f"{flag_name(param)}: got {text!r}, expected seconds from 0 to {DAY_S}, for example 10"
        )
    return value


def true_or_false(context: click.Context, param: click.Parameter, text: str | None) -> bool | None:
    """Parse True or False in any case, the values that flags of csrun_cpu take."""
    if text is None:
        return None
    if text.lower() not in ("true", "false"):
        flag = flag_name(param)
        raise UsageError(f"{flag}: got {text!r}, expected True or False: write {flag}=True or {flag}=False")
    return text.lower() == "true"


def directories(context: click.Context, param: click.Parameter, lists: tuple[str, ...]) -> tuple[Path, ...]:
    """Parse comma-separated lists of existing directories; empty entries are ignored."""
    for entries in lists:
        names = [name for name in entries.split(",") if name]
        missing = [name for name in names if not is_directory(name)]
        if missing or not names:
            got = ", ".join(map(repr, missing)) or repr(entries)
            raise UsageError(
                f"{flag_name(param)}: got {got}, expected existing directories separated by commas: "
                f"create them or correct the list"
            )
    return tuple(Path(name) for entries in lists for name in entries.split(",") if name)


def mount_dirs_option(function: Function) -> Function:
    """Declare --mount-dirs: directories that a container mounts in addition to the working directory."""
    option = click.option(
        "--mount-dirs",
        callback=directories,
        multiple=True,
        metavar="DIR,DIR",
        help="Directories that the program needs to see, separated by commas.",
    )
    return option(function)


def no_mounts_notice(site: Site, mount_dirs: Sequence[Path]) -> str | None:
    """Return a notice if --mount-dirs is given and has no effect."""
    if not mount_dirs or site.container != "none":
        return None
    return "--mount-dirs has no effect here: without a container the program sees all directories"


def require_unlocked(site: Site, key: str, flag: str, given: object, in_effect: object) -> None:
    """Refuse a flag that would change a setting which a site file locks.

    Args:
        site: its settings.
        key: of the site file.
        flag: as it is typed.
        given: value of the flag.
        in_effect: value of the site, which the flag may repeat: a batch script names the site's own values.

    Raises:
        UsageError: the key is locked, and the flag has another value.
    """
    if key in site.locked and given != in_effect:
        raise UsageError(
            f"{flag}: got {given}, and {site.locked[key]} locks {key}, which is "
            f"{in_effect or 'not set'} for all jobs; expected no other value: leave the flag out, or ask who "
            f"maintains that file"
        )


def require_unlocked_command(site: Site, command: Sequence[str], mount_dirs: Sequence[Path]) -> None:
    """Refuse a --cs_ip of the user's command and directories of --mount-dirs that a site file locks.

    Raises:
        UsageError: the command names another CS system, or a directory is not one of the site's.
    """
    from csrun.system_status import cs_ip_argument  # only here: few sites lock a key

    if named := cs_ip_argument(command):
        for key in ("cs_ip", "systems"):
            require_unlocked(site, key, "--cs_ip", named, site.system_addresses)
    if further := [str(path) for path in mount_dirs if str(path.absolute()) not in site.mount_dirs]:
        require_unlocked(site, "mount_dirs", "--mount-dirs", ",".join(further), ",".join(site.mount_dirs))


def flag_name(param: click.Parameter | None) -> str:
    """Return the flag as the help spells it."""
    return param.opts[0] if param is not None else "value"


def context_settings() -> dict[str, Any]:
    """Return click's settings for the launchers.

    The first argument that is not a flag starts the user's command; everything after it is passed on
    unchanged. `_` in a flag means `-`.
    """
    return {
        "allow_interspersed_args": False,
        "help_option_names": ["--help", "-h", "-?"],
        "token_normalize_func": lambda name: name.replace("_", "-"),
        "max_content_width": 110,
    }


def require_command(command: Sequence[str], context: click.Context) -> tuple[str, ...]:
    """Return the user's command.

    Raises:
        UsageError: the command line has none.
    """
    if not command:
        raise UsageError(
            f"no command to run\n{context.get_usage()}\n"
            f"expected a program after the flags, for example: {context.info_name} python run.py"
        )
    return tuple(command)


def working_directory() -> Path:
    """Return the current directory, in which the program starts.

    Raises:
        CsrunError: the directory has been removed.
    """
    try:
        return Path.cwd()
    except OSError as error:
        raise CsrunError(
            f"the working directory cannot be used: {error.strerror}; expected an existing directory: "
            f"change to another directory"
        ) from error


def run_main(
    program: str, build: Callable[[], click.Command], arguments: Sequence[str] | None = None
) -> NoReturn:
    """Run a command line and exit with its code; an expected failure is one message on stderr.

    Args:
        program: name in usage and messages.
        build: makes the click command; may raise a ToolkitError, for instance for a variable of the site.
        arguments: of the command line; None for those of this process.
    """
    leave_at_exit()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = build().main(args=given, prog_name=program, standalone_mode=False) or 0
    except ToolkitError as error:
        say(program, str(error))
        code = error.exit_code
    except click.exceptions.Exit as leave:
        code = leave.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = EXIT_USAGE
    except click.ClickException as error:
        say(program, _click_message(program, error, given))
        code = EXIT_USAGE
    except (KeyboardInterrupt, click.Abort):
        code = EXIT_CTRL_C
    except Exception as error:
        say(program, _crash_message(program, error))
        code = EXIT_BUG
    # A second Ctrl-C while Python shuts down must not change the exit code.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    flush_standard_streams()
    sys.exit(code)


def _click_message(program: str, error: click.ClickException, given: Sequence[str]) -> str:
    all_flags = f"(all flags: {program} --help)"
    if isinstance(error, click.NoSuchOption):
        typed = next(
            (word for word in given if word.split("=")[0].replace("_", "-") == error.option_name),
            error.option_name,
        )
        flag = typed.split("=")[0]
        command = _with_flag_after_program(program, typed, given)
        if command is not None and not _near_names(flag, _visible_flags(error)):
            return (
                f"unknown flag {flag!r}; it looks like a flag of the program, which begins after "
                f"{program}'s own flags: write {command} {all_flags}"
            )
        return f"unknown flag {flag!r}; {_suggestion(error)} {all_flags}"
    if isinstance(error, click.exceptions.NoSuchCommand):
        group = error.ctx.command if error.ctx else None
        known = group.list_commands(error.ctx) if error.ctx and isinstance(group, click.Group) else []
        near = _nearest(error.command_name, known, f"expected one of: {', '.join(known)}")
        path = error.ctx.command_path if error.ctx else program
        return f"unknown command {error.command_name!r}; {near} (all commands: {path} --help)"
    if isinstance(error, click.BadOptionUsage):
        flag = error.option_name
        if flag in (word.replace("_", "-") for word in given):
            return f"{flag}: no value given; expected one after it: write {flag}=VALUE {all_flags}"
        return f"{flag}: got a value, expected none: write only {flag} {all_flags}"
    return f"{error.format_message()} {all_flags}"


def _with_flag_after_program(program: str, typed: str, given: Sequence[str]) -> str | None:
    """Return the command line with a flag moved after the program; None if no program follows the flag."""
    if typed not in given:
        return None
    at = given.index(typed)
    start = next((i for i, word in enumerate(given) if i > at and _is_program(word)), None)
    if start is None:
        return None
    # Words between the flag and the program that are no flags are its value.
    end = next((i for i in range(at + 1, start) if given[i].startswith("-")), start)
    return shlex.join([program, *given[:at], *given[end:], *given[at:end]])


def _is_program(word: str) -> bool:
    return word.endswith(".py") or Path(word).name.startswith("python")


def _near_names(flag: str, known: Sequence[str]) -> list[str]:
    """Return the most similar flag, compared without the dashes that all flags share."""
    from difflib import get_close_matches  # costs start-up time and is needed on this path only

    name = flag.lstrip("-").replace("_", "-")
    return get_close_matches(name, [each.lstrip("-") for each in known], n=1, cutoff=0.7)


def _visible_flags(error: click.NoSuchOption) -> list[str]:
    command = error.ctx.command if error.ctx else None
    return [
        name
        for param in (command.params if command else [])
        if isinstance(param, click.Option) and not param.hidden
        for name in param.opts
        if name.startswith("--")
    ]


def _suggestion(error: click.NoSuchOption) -> str:
    visible = _visible_flags(error)
    others = "".join(
        f"; pass other options of {each.title} as {flag.name}={flag.metavar}"
        for each in schedulers()
        for flag in each.flags
        if flag.repeated and flag.name in visible
    )
    return _nearest(error.option_name, visible, f"expected one of this command's flags{others}")


def _nearest(word: str, known: Sequence[str], otherwise: str) -> str:
    from difflib import get_close_matches  # costs start-up time and is needed on this path only

    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else otherwise


def _crash_message(program: str, error: Exception) -> str:
    """Write the traceback to a file and return a message with its path, or with the traceback itself."""
    import tempfile
    import traceback

    from cs_toolkit import __version__

    report = f"{program} {__version__}, Python {sys.version}\n\n" + "".join(traceback.format_exception(error))
    try:
        descriptor, path = tempfile.mkstemp(prefix=f"{program}-crash-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(report)
    except OSError:
        return f"bug in {program}: {report}"
    return f"bug in {program}: {error!r}; expected no exception here: please report it with {path}"


def site_config_option(function: Function) -> Function:
    """Declare --site-config on a launcher, which does not get its value: `command_site` reads it."""
    return _declare(function, lambda context, param, value: context.meta.update({SITE_FLAG: value}))


def use_site_config_option(function: Function) -> Function:
    """Declare --site-config on a command that calls `load_site` itself."""
    return _declare(function, _use)


def command_site(build: Callable[[Site], click.Command], arguments: Sequence[str]) -> LoadedSite:
    """Load the site of a command before its command line is built, which depends on the site (the help does).

    The file of --site-config is set in the environment, for processes that the command starts.

    Args:
        build: builds the command for a site.
        arguments: the command line without the program's name.

    Raises:
        SiteError: the settings are invalid.
    """
    if any(argument.replace("_", "-").startswith(SITE_FLAG) for argument in arguments):
        # A launcher's flags end where the user's command starts, and only click's parser knows where that is.
        command = build(Site())
        context = command.make_context(command.name, list(arguments), resilient_parsing=True)
        file = context.meta.get(SITE_FLAG)
        if isinstance(file, Path):
            _use_file(file)
    return load_site(os.environ)


def _declare(
    function: Function, callback: Callable[[click.Context, click.Parameter, Path | None], None]
) -> Function:
    option = click.option(
        SITE_FLAG,
        type=click.Path(path_type=Path),
        metavar="FILE",
        expose_value=False,
        help="Site file instead of those of the user and the project ('csrun config show' lists them). "
        f"Default: {SITE_CONFIG_VARIABLE}.",
        callback=callback,
    )
    return option(function)


def _use(context: click.Context, param: click.Parameter, value: Path | None) -> None:
    if value is not None and not context.resilient_parsing:
        _use_file(value)


def _use_file(file: Path) -> None:
    os.environ[SITE_CONFIG_VARIABLE] = str(file.absolute())
