"""cs_input_analyzer: measures an input pipeline and recommends nodes, tasks and CPUs for a training."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from cs_toolkit.errors import ToolkitError, UsageError
from cs_toolkit.version import __version__
from csrun.commands.completion import files
from csrun.commands.flags import (
    DAY_S,
    command_site,
    context_settings,
    count,
    directories,
    flag_name,
    mount_dirs_option,
    no_mounts_notice,
    require_command,
    run_main,
    site_config_option,
    working_directory,
)
from csrun.commands.scheduler_flags import Where, scheduler_flags
from csrun.console import STDERR, STDOUT, occupy_closed_descriptors, say, wants_color, write_text
from csrun.errors import CsrunError
from csrun.schedulers.base import ProgramRequest
from csrun.site.model import Site
from csrun.tasks.command import containerize, require_container
from csrun.tasks.environment import program_environment, this_toolkit, unset_notice

if TYPE_CHECKING:
    from input_analyzer.analysis import Analysis
    from input_analyzer.analyze import ReportProgress, Request
    from input_analyzer.measure.cleanup import Workspace
    from input_analyzer.measure.copies import Launch

PROGRAM = "cs_input_analyzer"
DEFAULT_TIME_LIMIT_S = 120
DEFAULT_SECONDS = 4

LEAVING_LIMIT_S = 20.0
"""Ends the process on the node, should it hang while it tidies up, which takes it 8 s at most."""

_HELP = """Runs COMMAND up to its input function, measures copies of that side by side on one node, and tells
how fast the input is, which stage bounds it, what to change, and how many nodes, tasks and CPUs a training
needs.

COMMAND is a program that trains or compiles with `estimator`; nothing is trained. Or it is one word,
MODULE:FUNCTION or FILE.py:FUNCTION, a function without arguments that returns a tf.data.Dataset or a torch
DataLoader.

The rate to reach is that of the newest compile report of the program, unless --target-samples-per-s says
another. With --mode=compile_only in COMMAND the program is compiled for that.

Flags may be written with _ or -, as --flag VALUE or --flag=VALUE.
"""

_EPILOG = """\b
Examples:
  cs_input_analyzer python run.py --mode=compile_only
  cs_input_analyzer --available-nodes=4 --cpus-per-task=2,4,8 --json=input.json python run.py --mode=train
  csrun_wse --recommendation=input.json python run.py --mode=train --cs_ip=192.0.2.7
  cs_input_analyzer --target-samples-per-s=50000 --html=input.html data.py:train_input
"""


def main() -> NoReturn:
    """Entry point."""
    run_main(PROGRAM, lambda: build_command(command_site(build_command, sys.argv[1:]).site))


def build_command(site: Site) -> click.Command:
    """The command line; `site` fills in what the user leaves open."""

    @click.command(
        PROGRAM, context_settings=context_settings(), help=_HELP, epilog=_EPILOG, options_metavar="[FLAGS]"
    )
    @click.option(
        "--available-nodes",
        callback=count(),
        metavar="N",
        help="Nodes that a training may use, all like the measured one. Default: those of the job of the "
        f"scheduler that it is called in, else the site's, {site.def_nodes}.",
    )
    @mount_dirs_option
    @click.option(
        "--cpus-per-task",
        callback=_counts,
        metavar="C,C",
        help="CPUs per task that are tried. Default: powers of two, from a sixteenth of the node to all.",
    )
    @click.option(
        "--target-samples-per-s",
        callback=_positive("samples per second above 0, for example 50000"),
        metavar="R",
        help="Rate to reach. Default: what the compile report of the program estimates.",
    )
    @click.option(
        "--json",
        "json_file",
        type=_FILE,
        metavar="FILE",
        help="Write the analysis for programs; - for stdout, the report then goes to stderr.",
    )
    @click.option(
        "--html",
        "html_file",
        type=_FILE,
        metavar="FILE",
        help="Write the analysis for a browser; - likewise.",
    )
    @click.option(
        "--apply",
        is_flag=True,
        help="Write what findings recommend into your source, as far as that is mechanical: prints the diff, "
        "and asks.",
    )
    @click.option("--apply-dry-run", is_flag=True, help="Print the diff of --apply, and write nothing.")
    @click.option("--yes", is_flag=True, help="With --apply: do not ask.")
    @click.option(
        "--allow-dirty", is_flag=True, help="With --apply: also files with changes not committed to git."
    )
    @click.option(
        "--cold",
        callback=directories,
        multiple=True,
        metavar="DIR,DIR",
        help="Folders of the input's files, which are dropped from the memory of the operating system before "
        "a first epoch is measured. Default: none, and what was read before may still be there.",
    )
    @click.option(
        "--seconds",
        "longest_s",
        callback=_positive(_SECONDS, DAY_S),
        metavar="SECONDS",
        default=str(DEFAULT_SECONDS),
        show_default=True,
        help="Longest time of a measurement; it ends earlier when its interval is within 5 %.",
    )
    @click.option(
        "--time-limit",
        "limit_s",
        callback=_positive(_SECONDS, DAY_S),
        metavar="SECONDS",
        default=str(DEFAULT_TIME_LIMIT_S),
        show_default=True,
        help="So long the program may be without a batch before it counts as hanging.",
    )
    @click.option(
        "--memory",
        callback=_positive("GiB above 0, for example 16"),
        metavar="GIB",
        help="Memory that the tasks of a node may take. Default: what is free on it.",
    )
    @scheduler_flags("Where it is measured.")
    @site_config_option
    @click.version_option(__version__, prog_name=PROGRAM)
    @click.argument(
        "command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARGUMENT]...", shell_complete=files
    )
    @click.pass_context
    def cs_input_analyzer(
        context: click.Context,
        available_nodes: int | None,
        mount_dirs: tuple[Path, ...],
        cpus_per_task: tuple[int, ...],
        target_samples_per_s: float | None,
        json_file: Path | None,
        html_file: Path | None,
        apply: bool,
        apply_dry_run: bool,
        yes: bool,
        allow_dirty: bool,
        cold: tuple[Path, ...],
        longest_s: float,
        limit_s: float,
        memory: float | None,
        where: Where,
        command: tuple[str, ...],
    ) -> int:
        words = require_command(command, context)
        given = {"--json": json_file is not None, "--html": html_file is not None, "--cold": bool(cold)}
        _check_apply(apply, apply_dry_run, given, {"--yes": yes, "--allow-dirty": allow_dirty})
        # --help does not pay for it.
        from input_analyzer.report.files import check_different, check_writable

        check_different(json_file, html_file)
        check_writable("--json", json_file)
        check_writable("--html", html_file)
        if apply:
            from input_analyzer.source_changes import check_can_confirm

            check_can_confirm(yes=yes)
        environment = dict(os.environ)
        scheduler = where.scheduler(site, environment)
        job = scheduler.job_here(environment)
        nodes = available_nodes or (job.nodes if job else None) or site.def_nodes
        if scheduler.has_nodes and not (job and job.on_node):
            again = ProgramRequest(
                PROGRAM, _again(nodes), environment, inside=True, leaving_s=LEAVING_LIMIT_S
            )
            return scheduler.run_program(scheduler.plan_program(again, where.asked(site, environment)))
        with _analysis(site) as workspace:
            from input_analyzer.analysis import Target
            from input_analyzer.analyze import Request
            from input_analyzer.measure.node import check_has_files
            from input_analyzer.measure.rates import Effort

            check_has_files("--cold", cold)
            memory_bytes = None if memory is None else int(memory * 2**30)
            wanted = target_samples_per_s
            request = Request(
                command=words,
                launch=_launch(site, words, mount_dirs, workspace, limit_s, memory_bytes),
                cpus=_usable_cpus(cpus_per_task),
                available_nodes=nodes,
                cpus_per_task=cpus_per_task,
                target=None if wanted is None else Target(wanted, "given with --target-samples-per-s"),
                effort=Effort(shortest_s=min(1.0, longest_s), longest_s=longest_s),
                cold=cold,
            )
            if apply or apply_dry_run:
                return _change_source(request, write=apply, yes=yes, allow_dirty=allow_dirty)
            return _report(request, json_file, html_file)

    return cs_input_analyzer


_SECONDS = f"seconds above 0, at most {DAY_S}, for example 10"
_FILE = click.Path(path_type=Path, allow_dash=True)


def _counts(context: click.Context, param: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Parses whole numbers separated by commas, each once, ascending; none where the flag is not given."""
    if text is None:
        return ()
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        flag = flag_name(param)
        raise UsageError(
            f"{flag}: got {text!r}, expected whole numbers of at least 1 separated by commas: {flag}=1,2,4"
        )
    return tuple(sorted({int(part) for part in parts}))


def _positive(
    expected: str, most: float = sys.float_info.max
) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """Parses a number above 0, up to `most`; `expected` says what of, with an example."""

    def parse(context: click.Context, param: click.Parameter, text: str | None) -> float | None:
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= most:
            raise UsageError(f"{flag_name(param)}: got {text!r}, expected {expected}")
        return value

    return parse


def _usable_cpus(cpus_per_task: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of the CPUs of this node that may be used.

    Raises:
        UsageError: a task is to have more.
    """
    from input_analyzer.measure.node import host_name, usable_cpus

    cpus = usable_cpus(os.environ)
    if cpus_per_task and max(cpus_per_task) > len(cpus):
        raise UsageError(
            f"--cpus-per-task: got {max(cpus_per_task)}, expected at most {len(cpus)}, the CPUs of "
            f"{host_name(os.environ)} that may be used: leave it out, or measure on a larger node"
        )
    return cpus


def _launch(
    site: Site,
    words: tuple[str, ...],
    mount_dirs: tuple[Path, ...],
    workspace: Workspace,
    limit_s: float,
    memory_bytes: int | None,
) -> Launch:
    from input_analyzer.function_program import looks_like_function, refuse_no_program
    from input_analyzer.measure.copies import Launch
    from input_analyzer.measure.node import host_name

    environment = dict(os.environ)
    refuse_no_program(words, environment.get("PATH", ""))
    cwd = working_directory()
    program = words
    if len(words) == 1 and looks_like_function(words[0]):
        program = ("python", "-m", "input_analyzer.function_program", words[0])
    change = program_environment(environment, this_toolkit(), site)
    for notice in (unset_notice(environment, change), no_mounts_notice(site, mount_dirs)):
        if notice:
            say(PROGRAM, notice)
    require_container(site, environment.get("PATH", ""))
    mounted = [*(path.absolute() for path in mount_dirs), workspace.folder]
    executed = containerize(program, site, cwd, mounted)
    variables = {**change.apply(environment), **workspace.variables}
    return Launch(executed, variables, limit_s, memory_bytes, host_name(environment), workspace.folder)


def _report(request: Request, json_file: Path | None, html_file: Path | None) -> int:
    from input_analyzer.analyze import analyze
    from input_analyzer.report.files import TO_STDOUT

    with _progress() as tell:
        analysis = analyze(request, tell)
    _print(analysis, STDERR if TO_STDOUT in (json_file, html_file) else STDOUT)
    write_reports(analysis, json_file, html_file)
    return 0


def write_reports(analysis: Analysis, json_file: Path | None, html_file: Path | None) -> None:
    """Writes what is asked for; one that cannot be written does not keep the other from it.

    Raises:
        CsrunError: something could not be written.
    """
    from input_analyzer.report.files import write

    texts: list[tuple[Path, str]] = []
    if json_file is not None:
        texts.append((json_file, json.dumps(analysis.to_json(), indent=2) + "\n"))
    if html_file is not None:
        from input_analyzer.report.page import render_html

        texts.append((html_file, render_html(analysis)))
    failures = []
    for path, text in texts:
        try:
            write(path, text)
        except ToolkitError as error:
            failures.append(str(error))
    if failures:
        raise CsrunError("\n".join(failures))


def _check_apply(
    apply: bool, dry_run: bool, reports: Mapping[str, bool], of_apply: Mapping[str, bool]
) -> None:
    """Whether the flags around --apply go together.

    Args:
        apply: --apply is given.
        dry_run: --apply-dry-run is given.
        reports: By flag whether it is given; those of a report, which is not made with the two.
        of_apply: By flag whether it is given; those that say how --apply is to write.

    Raises:
        UsageError: they do not.
    """
    flag = "--apply" if apply else "--apply-dry-run"
    beside = [name for name, given in reports.items() if given and (apply or dry_run)]
    if beside:
        raise UsageError(
            f"{flag} with {beside[0]}: it only changes the source and makes no report; expected one of the "
            "two: leave the other out"
        )
    if apply and dry_run:
        raise UsageError("--apply with --apply-dry-run: expected one of the two: leave the other out")
    alone = [name for name, given in of_apply.items() if given and not apply]
    if alone:
        raise UsageError(f"{alone[0]} without --apply: expected it with --apply, whose writing it is about")


def _change_source(request: Request, *, write: bool, yes: bool, allow_dirty: bool) -> int:
    from input_analyzer import source_changes
    from input_analyzer.analyze import examine, measure_change_gains

    with _progress() as tell:
        examined = examine(request, tell, source_only=True)
        findings = measure_change_gains(request, examined, tell).findings
    files = source_changes.show_diff(PROGRAM, findings)
    if write:
        source_changes.write_changes(PROGRAM, files, yes=yes, allow_dirty=allow_dirty)
    return 0


def _print(analysis: Analysis, descriptor: int) -> None:
    from rich.console import Console

    from input_analyzer.report.text import print_report

    width = None if os.isatty(descriptor) else 120
    console = Console(width=width, no_color=not wants_color(descriptor), highlight=False)
    with console.capture() as report:
        print_report(analysis, console)
    write_text(descriptor, report.get())  # as text may: to a reader that has gone, in any locale


@contextmanager
def _progress() -> Iterator[ReportProgress]:
    """One line that changes on a terminal; elsewhere a line on stderr whenever something new begins."""
    terminal = os.isatty(STDERR) and os.environ.get("TERM") != "dumb"
    last = ""

    def tell(doing: str, part: float) -> None:
        nonlocal last
        if terminal:
            text = f"{100 * part:3.0f} % {doing}"
            write_text(STDERR, f"{_CLEAR}{text[: shutil.get_terminal_size().columns - 1]}")
            return
        step = doing.partition(", round ")[0]
        if step != last:
            say(PROGRAM, f"{100 * part:3.0f} % {step}")
            last = step

    try:
        yield tell
    finally:
        if terminal:
            write_text(STDERR, _CLEAR)


_CLEAR = "\r\x1b[K"
"""To the begin of the line, of which nothing is left (ECMA-48, EL)."""


def _analysis(site: Site) -> AbstractContextManager[Workspace]:
    """What an analysis happens in."""
    import tempfile

    from input_analyzer.measure.cleanup import analysis_workspace

    occupy_closed_descriptors()
    # An image has /tmp; what TMPDIR names here, it may lack.
    return analysis_workspace(Path(tempfile.gettempdir()) if site.container == "none" else Path("/tmp"))


def _again(nodes: int) -> tuple[str, ...]:
    """This command for a node; what holds for the job here does not there, where one node is all it has."""
    arguments = [f"--available-nodes={nodes}", *sys.argv[1:]]
    return own_command(arguments, this_toolkit().python, Path(__file__).resolve().parents[1])


def own_command(arguments: Sequence[str], python: Path, root: Path) -> tuple[str, ...]:
    """This command for another machine, which then measures on that machine."""
    start = (
        "import sys; sys.path[0] = sys.argv.pop(1); from csrun.bootstrap import run; "
        "run('cs_input_analyzer', 'input_analyzer.commands')"
    )
    return (str(python), "-E", "-c", start, str(root), *arguments)
