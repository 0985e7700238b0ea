"""What a scheduler is, and what passes between it and the commands.

A scheduler is one folder beside this file, or a package of a site's own; `registry` knows them by name, and
no command asks which one it has. Making a plan is a pure function, so that `--dry-run` shows, and tests
compare, what would run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from csrun.doctor.findings import Finding
from csrun.jobs.layout import JobLayout
from csrun.jobs.registry import KnownJob
from csrun.site.model import Site
from csrun.tasks.environment import EnvironmentChange, Toolkit
from csrun.tasks.roles import EXIT_REQUEUE, Role

Presence = Literal["absent", "installed", "wanted"]
"""Whether jobs can run on a scheduler here, and whether anything says that they should."""

State = Literal["waiting", "running", "done", "failed", "cancelled", "lost"]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of a scheduler's own, which every command that starts something gets.

    Attributes:
        name: as it is typed, "--partition"; none that a command has itself. Where two schedulers have the
            same one, both get its value, and help and check are those of the first.
        metavar: what stands for its value in the help.
        help: one line.
        check: returns the value, or raises ValueError with the rest of a sentence: "expected ...".
        repeated: it may be given several times; its values come in a line each.
        hidden: no help shows it: one that `check` refuses, with what to do instead.
    """

    name: str
    metavar: str
    help: str
    check: Callable[[str], str] = str
    repeated: bool = False
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of a job before its layout.

    Attributes:
        site: its settings.
        environment: of the launcher.
        flags: the scheduler's own flags that were given, by name; of repeated ones a value a line.
        total_nodes: as the user has given it.
        submit: the job will be handed to the queue.
        dry_run: nothing will be started: what cannot be asked now is a notice, no error.
    """

    site: Site
    environment: Mapping[str, str]
    flags: Mapping[str, str] = field(default_factory=dict)
    total_nodes: int | None = None
    submit: bool = False
    dry_run: bool = False


@dataclass(frozen=True)  # no slots: a scheduler adds its own fields in a class below
class Survey:
    """What a scheduler sees when it looks around for a job.

    Attributes:
        defaults: the site's settings, with what beats its default layout here.
        node_cpus: CPUs of each node.
        notices: one line each about what the user should know.
    """

    defaults: Site
    node_cpus: int
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobHere:
    """The job of the scheduler's that a launcher runs in.

    Attributes:
        nodes: of the job; None where it does not say.
        on_node: the launcher is on one of them; a shell of the job may be elsewhere.
    """

    nodes: int | None
    on_node: bool


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What the user asked for.

    Attributes:
        command: program and arguments, exactly as given.
        executed: the words that are executed for it, which differ from it where it runs in a container.
        layout: nodes, tasks, CPUs.
        log_dir: where the logs go; None: a directory of the job below ./csrun_logs.
        mount_dirs: directories that the program needs to see.
        grace_s: seconds from asking a task to end until it is killed.
        wind_down_s: seconds that workers may go on after the chief has finished.
        wait: queue for a busy CS system instead of failing.
        requeue: the job is started again after a checkpoint that SIGUSR1 asked for.
        warn_before_s: seconds before its time limit at which a submitted job is asked for a checkpoint;
            None: the scheduler's default.
    """

    command: tuple[str, ...]
    executed: tuple[str, ...]
    layout: JobLayout
    log_dir: Path | None
    mount_dirs: tuple[Path, ...]
    grace_s: float
    wind_down_s: float
    wait: bool = False
    requeue: bool = False
    warn_before_s: float | None = None


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """What a plan depends on besides the request.

    Attributes:
        job_id: identity of the new job.
        cwd: absolute directory in which the tasks start.
        environment: the launcher's own.
        toolkit: where interpreter and modules are.
        site: its settings.
        cpus: CPU numbers that this machine lets us use, ascending.
    """

    job_id: str
    cwd: Path
    environment: Mapping[str, str]
    toolkit: Toolkit
    site: Site
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task: its place in the job and what it gets beyond the environment of all tasks.

    Attributes:
        cpus: CPUs that it is pinned to; empty: not pinned.
        values: environment variables of this task alone.
        log_path: absolute path of its log.
    """

    rank: int
    role: Role
    index: int
    node: int
    cpus: tuple[int, ...]
    values: Mapping[str, str]
    log_path: Path

    @property
    def label(self) -> str:
        """How the task is called on the terminal; there is one chief, so it needs no number."""
        return "chief" if self.role == "chief" else f"worker {self.index}"


@dataclass(frozen=True)  # no slots: a scheduler adds its own fields in a class below
class LaunchPlan:
    """A job ready to be started. The job's secret token is no part of it: it is made when the job starts.

    Attributes:
        command: the user's words.
        executed: the words that are executed for them.
        change: what all tasks get in their environment.
        tasks: by rank.
        system: address of the CS system to watch; None for none.
        notices: one line each about what may differ from what the user expects.
    """

    job_id: str
    launcher: str
    command: tuple[str, ...]
    executed: tuple[str, ...]
    cwd: Path
    change: EnvironmentChange
    tasks: tuple[PlannedTask, ...]
    log_dir: Path
    system: tuple[str, int] | None
    notices: tuple[str, ...]
    grace_s: float
    wind_down_s: float

    @property
    def requeue_code(self) -> int | None:
        """How the chief leaves for the queue; None where the job cannot go back there."""
        return EXIT_REQUEUE if "CSRUN_REQUEUE" in self.change.values else None


@dataclass(frozen=True, slots=True)
class ProgramRequest:
    """One program that runs by itself: what csrun_cpu is given, an analysis of an input.

    Attributes:
        launcher: name of the command that runs it.
        command: the words that are executed.
        environment: of the program.
        avoid_system: keep off the node that owns the CS system, where there is another.
        inside: in a job, run on a node of that job instead of one of its own.
        leaving_s: seconds that the program has to tidy up after the first signal that ends it; None: it ends
            when it wants to.
    """

    launcher: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    avoid_system: bool = True
    inside: bool = False
    leaving_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """A program ready to be started.

    Attributes:
        words: that are executed.
        environment: in which they are.
        where: "on this machine".
        name: by which the scheduler finds it again; "" where that is not needed.
        terminal: the program has our terminal.
        leaving_s: as in the request.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    where: str
    name: str = ""
    terminal: bool = False
    leaving_s: float | None = None


@dataclass(frozen=True, slots=True)
class Examination:
    """What `csrun doctor` wants to know.

    Attributes:
        site: its settings.
        toolkit: where interpreter and modules are.
        cwd: absolute directory in which a job would start.
        environment: of the launcher.
        nodes: to look at; None: as many as a job has.
        probe: something may be started on them.
    """

    site: Site
    toolkit: Toolkit
    cwd: Path
    environment: Mapping[str, str]
    nodes: int | None
    probe: bool


@dataclass(frozen=True, slots=True)
class QueueView:
    """What a scheduler says of a job.

    Attributes:
        state: never "lost": a job that is forgotten has no view.
        detail: one sentence that explains the state, why it waits for instance; "" where there is nothing to.
        news: what of that is worth saying again when it changes.
        cause: the same for a job that the scheduler itself has ended: a time limit, a lost node; else "".
        nodes: their names; "" for none yet.
    """

    state: State
    detail: str = ""
    news: str = ""
    cause: str = ""
    nodes: str = ""


View = TypeVar("View", bound=Survey)
Plan = TypeVar("Plan", bound=LaunchPlan)


class Scheduler(Protocol[View, Plan]):
    """A place where jobs run, with surveys and plans of its own kind.

    Attributes:
        name: as --launcher takes it.
        title: for sentences: "Slurm".
        about: what tasks are on it, for the help of --launcher: "nodes of a cluster".
        flags: its own ones.
        submit_flag: another word for --launcher=NAME --submit; "" for none.
        has_nodes: programs can get a node of their own.
    """

    name: str
    title: str
    about: str
    flags: tuple[Flag, ...]
    submit_flag: str
    has_nodes: bool

    def presence(self, site: Site, environment: Mapping[str, str]) -> Presence:
        """Whether it is there and wanted; asked at every start, so it takes no time."""
        ...

    def job_here(self, environment: Mapping[str, str]) -> JobHere | None:
        """The job that we are in; None outside of one. Pure."""
        ...

    def task_variables(
        self, environment: Mapping[str, str], rank: int, tasks: int, cpus: int | None = None
    ) -> Mapping[str, str]:
        """What it tells a task about itself in its environment, beside what csrun tells; pure.

        An analysis of an input is one program and starts processes that stand for the tasks of a job. What
        shards by the scheduler's own variables has to find in each of them what it would find there.

        Args:
            environment: of this process. Nothing is told where the scheduler has not started it: then it
                would not have started the tasks either.
            rank: of the task.
            tasks: of the job, all on this node.
            cpus: of each task; None: what the environment says of that stays.
        """
        ...

    # A job: csrun_wse.

    def survey(self, asked: Asked) -> View:
        """Looks around before the layout of a job is decided.

        Raises:
            ToolkitError: jobs cannot run here at all, or not with these flags.
        """
        ...

    def plan(self, request: LaunchRequest, context: LaunchContext, survey: View) -> Plan:
        """Decides everything about the job; pure.

        Raises:
            ToolkitError: it can never run here.
        """
        ...

    def describe(self, plan: Plan) -> str:
        """The text of --dry-run: exactly what `run` would do; pure."""
        ...

    def run(self, plan: Plan, environment: Mapping[str, str]) -> int:
        """Runs the job to its end and returns the exit code of the launcher.

        Raises:
            ToolkitError: the job could not be started; nothing is left of it.
        """
        ...

    # A job in the queue: csrun_wse --submit, csrun status, logs and cancel.

    def script(self, request: LaunchRequest, context: LaunchContext, survey: View) -> str:
        """The script that `submit` hands to the queue, and the text of --submit --dry-run; pure.

        Raises:
            ToolkitError: there is no queue, or the job cannot be put into it.
        """
        ...

    def submit(self, script: Path, environment: Mapping[str, str]) -> str:
        """Hands a script to the queue; the number by which the scheduler knows the job.

        Raises:
            ToolkitError: it is refused; nothing was submitted.
        """
        ...

    def output_file(self, job: KnownJob) -> Path:
        """Where the queue puts what the script of a submitted job writes; pure."""
        ...

    def views(self, numbers: Collection[str], environment: Mapping[str, str]) -> Mapping[str, QueueView]:
        """What the scheduler says of its jobs, by number; those that it has forgotten are left out.

        Raises:
            ToolkitError: it cannot be asked.
        """
        ...

    def cancel(self, job: KnownJob, record: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        """Asks a job to end, by its entry and its record (empty before the start); does not wait for it.

        Raises:
            ToolkitError: it cannot be asked from here.
        """
        ...

    # One program: csrun_cpu, cs_input_analyzer.

    def plan_program(self, request: ProgramRequest, asked: Asked) -> ProgramPlan:
        """Decides how a program runs, on a node of its own where the scheduler has nodes.

        Raises:
            ToolkitError: there is no such command, or no such node.
        """
        ...

    def run_program(self, plan: ProgramPlan) -> int:
        """Runs it and returns its exit code, or makes this process the program.

        Raises:
            ToolkitError: it cannot be started.
        """
        ...

    # csrun doctor.

    def checks(self, examination: Examination) -> Iterator[Finding]:
        """Whether jobs would run on it here."""
        ...
