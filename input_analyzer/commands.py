"""cs_input_analyzer: measures an input pipeline and recommends nodes, tasks and CPUs for a training."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cs_toolkit import __version__
from cs_toolkit.errors import ToolkitError, UsageError
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
from csrun.site import Site
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

# Kills the process on the node if it hangs in its cleanup, which takes 8 s at most.
LEAVING_LIMIT_S = 20.0

_HELP = """Runs COMMAND up to its input function, measures copies of it side by side on one node, and reports
the rate of the input, the stage that bounds it, what to change, and how many nodes, tasks and CPUs training
needs.

COMMAND is a program that trains or compiles with `estimator`; nothing is trained. Or it is
MODULE:FUNCTION or FILE.py:FUNCTION, a function without arguments that returns a tf.data.Dataset or a torch
DataLoader.

The rate to reach is that of the newest compile report of the program, unless --target-samples-per-s is
given. With --mode=compile_only in COMMAND the program is compiled for that.

Flags may be written with _ or -, as --flag VALUE or --flag=VALUE.
"""

_EPILOG = """\b
Examples:
  cs_input_analyzer python run.py --mode=compile_only
  cs_input_analyzer --available-nodes=4 --cpus-per-task=2,4,8 --json=input.json python run.py --mode=train
  csrun_wse --recommendation=input.json python run.py --mode=train --cs_ip=192.0.2.7
  cs_input_analyzer --target-samples-per-s=50000 --html=input.html data.py:train_input
"""

_SECONDS = f"seconds above 0, at most {DAY_S}, for example 10"
_FILE = click.Path(path_type=Path, allow_dash=True)


def main() -> NoReturn:
    """Run the command as a console script."""
    run_main(PROGRAM, lambda: build_command(command_site(build_command, sys.argv[1:]).site))


@dataclass(frozen=True, slots=True)
class MeasurementOptions:
    """What is measured, and how long; None where the command line leaves it open."""

    available_nodes: int | None
    cpus_per_task: tuple[int, ...]
    target_samples_per_s: float | None
    cold: tuple[Path, ...]
    longest_s: float
    limit_s: float
    memory_gib: float | None


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Files of the analysis in addition to the report on the terminal."""

    json_file: Path | None
    html_file: Path | None

    def check(self) -> None:
        """Check that the files differ and can be written.

        Raises:
            ToolkitError: they are the same file, or one cannot be written.
        """
        from input_analyzer.report.files import check_different, check_writable  # only here: --help is light

        check_different(self.json_file, self.html_file)
        check_writable("--json", self.json_file)
        check_writable("--html", self.html_file)


@dataclass(frozen=True, slots=True)
class SourceChangeOptions:
    """Whether and how findings change the source."""

    apply: bool
    dry_run: bool
    yes: bool
    allow_dirty: bool


def build_command(site: Site) -> click.Command:
    """Build the command line; the settings of the site replace what the user leaves open."""

    @click.command(
        PROGRAM, context_settings=context_settings(), help=_HELP, epilog=_EPILOG, options_metavar="[FLAGS]"
    )
    @_measurement_options(site)
    @mount_dirs_option
    @_report_options
    @_source_change_options
    @scheduler_flags("Where it is measured.")
    @site_config_option
    @click.version_option(__version__, prog_name=PROGRAM)
    @click.argument(
        "command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARGUMENT]...", shell_complete=files
    )
    @click.pass_context
    def cs_input_analyzer(
        context: click.Context,
        measurement: MeasurementOptions,
        mount_dirs: tuple[Path, ...],
        reports: ReportFiles,
        change: SourceChangeOptions,
        where: Where,
        command: tuple[str, ...],
    ) -> int:
        arguments = require_command(command, context)
        _check_apply_flags(change, reports, cold=bool(measurement.cold))
        reports.check()
        if change.apply:
            from input_analyzer.source_changes import check_can_confirm

            check_can_confirm(yes=change.yes)
        environment = dict(os.environ)
        scheduler = where.scheduler(site, environment)
        job = scheduler.job_here(environment)
        nodes = measurement.available_nodes or (job.nodes if job else None) or site.def_nodes
        if scheduler.has_nodes and not (job and job.on_node):
            again = ProgramRequest(
                PROGRAM, _command_for_node(nodes), environment, inside=True, leaving_s=LEAVING_LIMIT_S
            )
            return scheduler.run_program(scheduler.plan_program(again, where.asked(site, environment)))
        with _prepare_workspace(site) as workspace:
            request = _make_request(site, arguments, mount_dirs, measurement, nodes, workspace)
            if change.apply or change.dry_run:
                return _apply_findings(
                    request, write=change.apply, yes=change.yes, allow_dirty=change.allow_dirty
                )
            return _run_and_report(request, reports.json_file, reports.html_file)

    return cs_input_analyzer


def _measurement_options(site: Site) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare the options of a measurement; the command gets them as one argument, `measurement`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.option(
            "--available-nodes",
            callback=count(),
            metavar="N",
            help="Nodes available for training, all like the measured one. Default: those of the scheduler's "
            f"job that this is called in, otherwise the site's, {site.def_nodes}.",
        )
        @click.option(
            "--cpus-per-task",
            callback=_parse_counts,
            metavar="C,C",
            help="CPUs per task to try. Default: powers of two, from a sixteenth of the node to all.",
        )
        @click.option(
            "--target-samples-per-s",
            callback=_positive("samples per second above 0, for example 50000"),
            metavar="R",
            help="Rate to reach. Default: the estimate in the compile report of the program.",
        )
        @click.option(
            "--cold",
            callback=directories,
            multiple=True,
            metavar="DIR,DIR",
            help="Folders of the input's files, which are dropped from the page cache before a first epoch "
            "is measured. Default: none; files that were read before may still be cached.",
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
            help="Time without a batch after which the program counts as hanging.",
        )
        @click.option(
            "--memory",
            "memory_gib",
            callback=_positive("GiB above 0, for example 16"),
            metavar="GIB",
            help="Memory for the tasks of a node. Default: its free memory.",
        )
        @wraps(function)
        def command(
            *arguments: Any,
            available_nodes: int | None,
            cpus_per_task: tuple[int, ...],
            target_samples_per_s: float | None,
            cold: tuple[Path, ...],
            longest_s: float,
            limit_s: float,
            memory_gib: float | None,
            **values: Any,
        ) -> Any:
            measurement = MeasurementOptions(
                available_nodes, cpus_per_task, target_samples_per_s, cold, longest_s, limit_s, memory_gib
            )
            return function(*arguments, measurement=measurement, **values)

        return command

    return decorate


def _report_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare the files of the analysis; the command gets them as one argument, `reports`."""

    @click.option(
        "--json",
        "json_file",
        type=_FILE,
        metavar="FILE",
        help="Write the analysis for programs; - for stdout, with the report on stderr.",
    )
    @click.option(
        "--html",
        "html_file",
        type=_FILE,
        metavar="FILE",
        help="Write the analysis for a browser; - for stdout, with the report on stderr.",
    )
    @wraps(function)
    def command(*arguments: Any, json_file: Path | None, html_file: Path | None, **values: Any) -> Any:
        return function(*arguments, reports=ReportFiles(json_file, html_file), **values)

    return command


def _source_change_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare the options of changes to the source; the command gets them as one argument, `change`."""

    @click.option(
        "--apply",
        is_flag=True,
        help="Write mechanical changes that findings recommend into your source, after printing the diff and "
        "asking.",
    )
    @click.option("--apply-dry-run", is_flag=True, help="Print the diff of --apply, and write nothing.")
    @click.option("--yes", is_flag=True, help="With --apply: do not ask.")
    @click.option(
        "--allow-dirty", is_flag=True, help="With --apply: also change files with uncommitted changes."
    )
    @wraps(function)
    def command(
        *arguments: Any, apply: bool, apply_dry_run: bool, yes: bool, allow_dirty: bool, **values: Any
    ) -> Any:
        change = SourceChangeOptions(apply, apply_dry_run, yes, allow_dirty)
        return function(*arguments, change=change, **values)

    return command


def _parse_counts(context: click.Context, param: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Parse positive integers separated by commas, without duplicates, ascending; empty if not given."""
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
    """Return a parser of numbers above 0, up to `most`; `expected` describes them with an example."""

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
    """Return the numbers of the CPUs of this node that may be used.

    Raises:
        UsageError: a task should have more CPUs.
    """
    from csrun.schedulers.registry import node_name
    from input_analyzer.measure.node import usable_cpus

    cpus = usable_cpus(os.environ)
    if cpus_per_task and max(cpus_per_task) > len(cpus):
        raise UsageError(
            f"--cpus-per-task: got {max(cpus_per_task)}, expected at most {len(cpus)}, the CPUs of "
            f"{node_name(os.environ)} that may be used: leave it out, or measure on a larger node"
        )
    return cpus


def _make_request(
    site: Site,
    arguments: tuple[str, ...],
    mount_dirs: tuple[Path, ...],
    measurement: MeasurementOptions,
    nodes: int,
    workspace: Workspace,
) -> Request:
    from input_analyzer.analysis import Target
    from input_analyzer.analyze import Request
    from input_analyzer.measure.node import check_has_files
    from input_analyzer.measure.rates import Effort

    check_has_files("--cold", measurement.cold)
    memory_gib, target = measurement.memory_gib, measurement.target_samples_per_s
    memory_bytes = None if memory_gib is None else int(memory_gib * 2**30)
    return Request(
        command=arguments,
        launch=_plan_launch(site, arguments, mount_dirs, workspace, measurement.limit_s, memory_bytes),
        cpus=_usable_cpus(measurement.cpus_per_task),
        available_nodes=nodes,
        cpus_per_task=measurement.cpus_per_task,
        target=None if target is None else Target(target, "given with --target-samples-per-s"),
        effort=Effort(shortest_s=min(1.0, measurement.longest_s), longest_s=measurement.longest_s),
        cold=measurement.cold,
    )


def _plan_launch(
    site: Site,
    words: tuple[str, ...],
    mount_dirs: tuple[Path, ...],
    workspace: Workspace,
    limit_s: float,
    memory_bytes: int | None,
) -> Launch:
    from csrun.schedulers.registry import node_name
    from input_analyzer.function_program import looks_like_function, refuse_no_program
    from input_analyzer.measure.copies import Launch

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
    return Launch(executed, variables, limit_s, memory_bytes, node_name(environment), workspace.folder)


def _run_and_report(request: Request, json_file: Path | None, html_file: Path | None) -> int:
    from input_analyzer.analyze import analyze
    from input_analyzer.report.files import TO_STDOUT

    with _show_progress() as tell:
        analysis = analyze(request, tell)
    _print_report(analysis, STDERR if TO_STDOUT in (json_file, html_file) else STDOUT)
    write_reports(analysis, json_file, html_file)
    return 0


def write_reports(analysis: Analysis, json_file: Path | None, html_file: Path | None) -> None:
    """Write the requested reports; an error of one does not prevent the other.

    Raises:
        CsrunError: a report could not be written.
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


def _check_apply_flags(change: SourceChangeOptions, reports: ReportFiles, *, cold: bool) -> None:
    """Check that the options of changes to the source fit the others.

    Raises:
        UsageError: they are not compatible.
    """
    flag = "--apply" if change.apply else "--apply-dry-run"
    of_report = {
        "--json": reports.json_file is not None,
        "--html": reports.html_file is not None,
        "--cold": cold,
    }
    conflicts = [name for name, given in of_report.items() if given and (change.apply or change.dry_run)]
    if conflicts:
        raise UsageError(
            f"{flag} with {conflicts[0]}: it only changes the source and makes no report; expected one of "
            "the two: leave the other out"
        )
    if change.apply and change.dry_run:
        raise UsageError("--apply with --apply-dry-run: expected one of the two: leave the other out")
    of_apply = {"--yes": change.yes, "--allow-dirty": change.allow_dirty}
    alone = [name for name, given in of_apply.items() if given and not change.apply]
    if alone:
        raise UsageError(f"{alone[0]} without --apply: expected it with --apply, whose writing it is about")


def _apply_findings(request: Request, *, write: bool, yes: bool, allow_dirty: bool) -> int:
    from input_analyzer import source_changes
    from input_analyzer.analyze import examine, measure_change_gains

    with _show_progress() as tell:
        examined = examine(request, tell, source_only=True)
        findings = measure_change_gains(request, examined, tell).findings
    files = source_changes.show_diff(PROGRAM, findings)
    if write:
        source_changes.write_changes(PROGRAM, files, yes=yes, allow_dirty=allow_dirty)
    return 0


def _print_report(analysis: Analysis, descriptor: int) -> None:
    from rich.console import Console

    from input_analyzer.report.text import print_report

    width = None if os.isatty(descriptor) else 120
    console = Console(width=width, no_color=not wants_color(descriptor), highlight=False)
    with console.capture() as report:
        print_report(analysis, console)
    write_text(descriptor, report.get())  # tolerates a closed pipe and any locale


@contextmanager
def _show_progress() -> Iterator[ReportProgress]:
    """Show progress: a changing line on a terminal; otherwise a line on stderr for each new activity."""
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


# Return to the beginning of the line and clear it (ECMA-48, EL).
_CLEAR = "\r\x1b[K"


def _prepare_workspace(site: Site) -> AbstractContextManager[Workspace]:
    """Prepare the workspace of an analysis."""
    import tempfile

    from input_analyzer.measure.cleanup import analysis_workspace

    occupy_closed_descriptors()
    # A container image has /tmp, but may lack the folder of TMPDIR.
    return analysis_workspace(Path(tempfile.gettempdir()) if site.container == "none" else Path("/tmp"))


def _command_for_node(nodes: int) -> tuple[str, ...]:
    """Return this command for a node, with the number of nodes that the job has here."""
    arguments = [f"--available-nodes={nodes}", *sys.argv[1:]]
    return own_command(arguments, this_toolkit().python, Path(__file__).resolve().parents[1])


def own_command(arguments: Sequence[str], python: Path, root: Path) -> tuple[str, ...]:
    """Return this command for another machine, which then measures on that machine."""
    start = (
        "import sys; sys.path[0] = sys.argv.pop(1); from csrun.bootstrap import run; "
        "run('cs_input_analyzer', 'input_analyzer.commands')"
    )
    return (str(python), "-E", "-c", start, str(root), *arguments)
