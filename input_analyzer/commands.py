"""cs_input_analyzer: measures an input pipeline and recommends nodes, tasks and CPUs for a training run."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    require_unlocked_command,
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

PROGRAM = "cs_input_analyzer"
DEFAULT_TIME_LIMIT_S = 120
DEFAULT_SECONDS = 4

# Kills the process on the node if it hangs in its cleanup, which takes 8 s at most.
LEAVING_LIMIT_S = 20.0

_HELP = """Runs COMMAND up to its input function, measures several copies of it in parallel on one node, and
reports the rate of the input, its bottleneck, recommended changes, and the nodes, tasks and CPUs that
training needs.

COMMAND is a program that trains or compiles with `estimator` or `cerebras_pytorch`; it is not trained. Or it
is MODULE:FUNCTION or FILE.py:FUNCTION, a function without arguments that returns a tf.data.Dataset or a torch
DataLoader.

The target rate is taken from the newest compile report of the program, unless --target-samples-per-s is
given. With --mode=compile_only in COMMAND, the program is compiled first to obtain it.

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
    """Scope and duration of the measurements; None if the command line does not give a value."""

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
    """Options for changing the source as findings recommend."""

    apply: bool
    dry_run: bool
    yes: bool
    allow_dirty: bool

    def check(self, reports: ReportFiles, *, cold: bool) -> None:
        """Check that these options are compatible with each other and with the options of reports.

        Raises:
            UsageError: they are not.
        """
        flag = "--apply" if self.apply else "--apply-dry-run"
        of_report = {
            "--json": reports.json_file is not None,
            "--html": reports.html_file is not None,
            "--cold": cold,
        }
        conflicts = [name for name, given in of_report.items() if given and (self.apply or self.dry_run)]
        if conflicts:
            raise UsageError(
                f"{flag} with {conflicts[0]}: {flag} changes the source and makes no report; expected only "
                "one of them"
            )
        if self.apply and self.dry_run:
            raise UsageError("--apply with --apply-dry-run: expected only one of them")
        of_apply = {"--yes": self.yes, "--allow-dirty": self.allow_dirty}
        unused = [name for name, given in of_apply.items() if given and not self.apply]
        if unused:
            raise UsageError(f"{unused[0]} without --apply: expected it only with --apply")


def build_command(site: Site) -> click.Command:
    """Build the command line; settings of the site are the defaults of options."""

    @click.command(
        PROGRAM, context_settings=context_settings(), help=_HELP, epilog=_EPILOG, options_metavar="[FLAGS]"
    )
    @_measurement_options(site)
    @mount_dirs_option
    @_report_options
    @_source_change_options
    @scheduler_flags("Where the input is measured.")
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
        require_unlocked_command(site, arguments, mount_dirs)
        change.check(reports, cold=bool(measurement.cold))
        reports.check()
        if change.apply:
            from input_analyzer.source_changes import check_can_confirm

            check_can_confirm(yes=change.yes)
        environment = dict(os.environ)
        scheduler = where.scheduler(site, environment)
        job = scheduler.job_here(environment)
        nodes = measurement.available_nodes or (job.nodes if job else None) or site.def_nodes
        if scheduler.has_nodes and not (job and job.on_node):
            # The node may not know how many nodes the job has here.
            arguments_there = [f"--available-nodes={nodes}", *sys.argv[1:]]
            here = Path(__file__).resolve().parents[1]
            on_node = own_command(arguments_there, this_toolkit().python, here)
            again = ProgramRequest(PROGRAM, on_node, environment, inside=True, leaving_s=LEAVING_LIMIT_S)
            return scheduler.run_program(scheduler.plan_program(again, where.asked(site, environment)))

        from input_analyzer.measure.cleanup import analysis_workspace

        occupy_closed_descriptors()
        # A container image has /tmp, but may lack the folder of TMPDIR.
        parent = Path(tempfile.gettempdir()) if site.container == "none" else Path("/tmp")
        with analysis_workspace(parent) as workspace:
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
            help="Nodes available for training, all like the measured one. Default: those of the current "
            f"job, or outside of a job the site's default, {site.def_nodes}.",
        )
        @click.option(
            "--cpus-per-task",
            callback=_parse_counts,
            metavar="C,C",
            help="CPUs per task to try. Default: powers of two, from a sixteenth of the node's CPUs to all.",
        )
        @click.option(
            "--target-samples-per-s",
            callback=_positive("samples per second above 0, for example 50000"),
            metavar="R",
            help="Target rate. Default: the estimate in the compile report of the program.",
        )
        @click.option(
            "--cold",
            callback=directories,
            multiple=True,
            metavar="DIR,DIR",
            help="Folders with the input's files; these are dropped from the page cache before a first epoch "
            "is measured. Default: none, so files that were read before may still be cached.",
        )
        @click.option(
            "--seconds",
            "longest_s",
            callback=_positive(_SECONDS, DAY_S),
            metavar="SECONDS",
            default=str(DEFAULT_SECONDS),
            show_default=True,
            help="Maximum time of a measurement; it ends earlier when its interval is within 5 %.",
        )
        @click.option(
            "--time-limit",
            "limit_s",
            callback=_positive(_SECONDS, DAY_S),
            metavar="SECONDS",
            default=str(DEFAULT_TIME_LIMIT_S),
            show_default=True,
            help="Time without a batch after which the program is assumed to hang.",
        )
        @click.option(
            "--memory",
            "memory_gib",
            callback=_positive("GiB above 0, for example 16"),
            metavar="GIB",
            help="Memory limit for all tasks of a node together. Default: its free memory.",
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
        help="Write the analysis for programs; - writes it to stdout and the report to stderr.",
    )
    @click.option(
        "--html",
        "html_file",
        type=_FILE,
        metavar="FILE",
        help="Write the analysis for a browser; - writes it to stdout and the report to stderr.",
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
        help="Make mechanical changes that findings recommend in your source, after printing the diff and "
        "asking for confirmation.",
    )
    @click.option("--apply-dry-run", is_flag=True, help="Print the diff of --apply without writing anything.")
    @click.option("--yes", is_flag=True, help="With --apply: do not ask for confirmation.")
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


def _make_request(
    site: Site,
    arguments: tuple[str, ...],
    mount_dirs: tuple[Path, ...],
    measurement: MeasurementOptions,
    nodes: int,
    workspace: Workspace,
) -> Request:
    from csrun.schedulers.registry import node_name
    from input_analyzer.analysis import Target
    from input_analyzer.analyze import Request
    from input_analyzer.function_program import looks_like_function, refuse_no_program
    from input_analyzer.measure.copies import Launch
    from input_analyzer.measure.node import check_has_files, usable_cpus
    from input_analyzer.measure.rates import Effort

    check_has_files("--cold", measurement.cold)
    environment = dict(os.environ)
    refuse_no_program(arguments, environment.get("PATH", ""))
    cwd, program = working_directory(), arguments
    if len(arguments) == 1 and looks_like_function(arguments[0]):
        program = ("python", "-m", "input_analyzer.function_program", arguments[0])
    change = program_environment(environment, this_toolkit(), site)
    for notice in (unset_notice(environment, change), no_mounts_notice(site, mount_dirs)):
        if notice:
            say(PROGRAM, notice)
    require_container(site, environment.get("PATH", ""))
    mounted = [*(path.absolute() for path in mount_dirs), workspace.folder]
    memory_gib, target = measurement.memory_gib, measurement.target_samples_per_s
    launch = Launch(
        containerize(program, site, cwd, mounted),
        {**change.apply(environment), **workspace.variables},
        measurement.limit_s,
        None if memory_gib is None else int(memory_gib * 2**30),
        node_name(environment),
        workspace.folder,
    )
    cpus, most = usable_cpus(environment), max(measurement.cpus_per_task, default=0)
    if most > len(cpus):
        raise UsageError(
            f"--cpus-per-task: got {most}, expected at most {len(cpus)}, the usable CPUs of {launch.host}: "
            "leave it out, or measure on a larger node"
        )
    return Request(
        command=arguments,
        launch=launch,
        cpus=cpus,
        available_nodes=nodes,
        cpus_per_task=measurement.cpus_per_task,
        target=None if target is None else Target(target, "given with --target-samples-per-s"),
        effort=Effort(shortest_s=min(1.0, measurement.longest_s), longest_s=measurement.longest_s),
        cold=measurement.cold,
    )


def _run_and_report(request: Request, json_file: Path | None, html_file: Path | None) -> int:
    from rich.console import Console

    from input_analyzer.analyze import analyze
    from input_analyzer.report.files import TO_STDOUT
    from input_analyzer.report.text import print_report

    with _show_progress() as say_progress:
        analysis = analyze(request, say_progress)
    descriptor = STDERR if TO_STDOUT in (json_file, html_file) else STDOUT
    width = None if os.isatty(descriptor) else 120
    console = Console(width=width, no_color=not wants_color(descriptor), highlight=False)
    with console.capture() as report:
        print_report(analysis, console)
    write_text(descriptor, report.get())  # tolerates a closed pipe and any locale
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


def _apply_findings(request: Request, *, write: bool, yes: bool, allow_dirty: bool) -> int:
    from input_analyzer import source_changes
    from input_analyzer.analyze import examine, measure_change_gains

    with _show_progress() as say_progress:
        examined = examine(request, say_progress, source_only=True)
        findings = measure_change_gains(request, examined, say_progress).findings
    files = source_changes.show_diff(PROGRAM, findings)
    if write:
        source_changes.write_changes(PROGRAM, files, yes=yes, allow_dirty=allow_dirty)
    return 0


@contextmanager
def _show_progress() -> Iterator[ReportProgress]:
    """Show progress: a changing line on a terminal; otherwise a line on stderr for each new activity."""
    terminal = os.isatty(STDERR) and os.environ.get("TERM") != "dumb"
    last = ""

    def say_progress(doing: str, part: float) -> None:
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
        yield say_progress
    finally:
        if terminal:
            write_text(STDERR, _CLEAR)


# Return to the beginning of the line and clear it (ECMA-48, EL).
_CLEAR = "\r\x1b[K"


def own_command(arguments: Sequence[str], python: Path, root: Path) -> tuple[str, ...]:
    """Return the arguments that run this command on another machine and measure there."""
    start = (
        "import sys; sys.path[0] = sys.argv.pop(1); from csrun.bootstrap import run; "
        "run('cs_input_analyzer', 'input_analyzer.commands')"
    )
    return (str(python), "-E", "-c", start, str(root), *arguments)
