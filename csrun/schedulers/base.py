"""The protocol of schedulers, and the records that commands and schedulers exchange.

A scheduler is a folder next to this file, or a package of a site; `registry` finds it by name, and no command
depends on a particular one. Planning is a pure function.
"""

# As planning is pure, `--dry-run` can print, and tests can compare, exactly what would run.

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from cs_toolkit.network.liveness import peer_timeout_s
from csrun.doctor import Finding
from csrun.jobs.layout import JobLayout
from csrun.jobs.registry import KnownJob
from csrun.site import Site
from csrun.tasks.environment import EnvironmentChange, Toolkit
from csrun.tasks.place import EXIT_REQUEUE, Role, TaskPlace

# Whether jobs can run on a scheduler here, and whether the site or the environment selects it.
Presence = Literal["absent", "installed", "wanted"]

State = Literal["waiting", "running", "done", "failed", "cancelled", "lost"]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of one scheduler, which every command that starts something has.

    Attributes:
        name: as it is typed, "--partition"; not a flag of a command. If two schedulers have the same flag,
            both get its value, and help and check are those of the first.
        metavar: placeholder of its value in the help.
        help: one line.
        check: returns the value, or raises ValueError with the rest of a sentence: "expected ...".
        repeated: it may be given several times; its values are joined with newlines.
        hidden: not in the help; for a flag that `check` refuses, with an alternative.
        setting: key of the site file whose value the flag replaces; "" for none.
    """

    name: str
    metavar: str
    help: str
    check: Callable[[str], str] = str
    repeated: bool = False
    hidden: bool = False
    setting: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """The known part of a request before the layout of the job is decided.

    Attributes:
        site: its settings.
        environment: of the launcher.
        flags: values of the scheduler's flags that were given, by name; of repeated ones one value per line.
        total_nodes: as the user has given it.
        submit: the job will be submitted to the queue.
        dry_run: nothing will be started; a failed query is a notice instead of an error.
    """

    site: Site
    environment: Mapping[str, str]
    flags: Mapping[str, str] = field(default_factory=dict)
    total_nodes: int | None = None
    submit: bool = False
    dry_run: bool = False


@dataclass(frozen=True)  # no slots: a scheduler adds its own fields in a class below
class Survey:
    """The resources that a scheduler finds for a job.

    Attributes:
        defaults: the site's settings, with the default layout that applies here.
        node_cpus: CPUs of each node.
        notices: for the user, one line each.
    """

    defaults: Site
    node_cpus: int
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobHere:
    """The job of the scheduler in which a launcher runs.

    Attributes:
        nodes: number of nodes of the job; None if unknown.
        on_node: the launcher runs on one of them; a shell of the job may be on another machine.
        node: the scheduler's name of this machine if it is one of them; "" if not, or if unknown.
        cpus_on_node: number of CPUs of the job on this node; None if unknown.
    """

    nodes: int | None
    on_node: bool
    node: str = ""
    cpus_on_node: int | None = None


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A request for a job.

    Attributes:
        command: program and arguments, exactly as given.
        executed: the command line that is executed for it, which differs in a container.
        layout: nodes, tasks, CPUs.
        log_dir: directory of the logs; None for a directory of the job below ./csrun_logs.
        mount_dirs: directories that the program needs to see.
        grace_s: seconds from asking a task to end until it is killed.
        wind_down_s: seconds that workers may continue after the chief has finished.
        wait: wait for a busy CS system instead of failing.
        requeue: start the job again after a checkpoint that SIGUSR1 has requested.
        warn_before_s: seconds before its time limit at which a submitted job is asked for a checkpoint;
            None for the scheduler's default.
        allow_input_change: a run may resume with a number of workers that repeats and loses samples.
        input_order: order of the batches of the workers; None for that of the program.
        max_restarts: how often each worker whose process dies is restarted.
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
    allow_input_change: bool = False
    input_order: str | None = None
    max_restarts: int = 0


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """The inputs of a plan other than the request.

    Attributes:
        job_id: id of the new job.
        cwd: absolute directory in which the tasks start.
        environment: the launcher's own.
        toolkit: location of interpreter and modules.
        site: its settings.
        cpus: numbers of the CPUs of this machine that the launcher may use, ascending.
    """

    job_id: str
    cwd: Path
    environment: Mapping[str, str]
    toolkit: Toolkit
    site: Site
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task: its place in the job, and its environment in addition to that of all tasks.

    Attributes:
        cpus: CPUs that it is pinned to; empty if it is not pinned.
        values: environment variables of only this task.
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
        """Name of the task on the terminal; the only chief needs no number."""
        return "chief" if self.role == "chief" else f"worker {self.index}"


@dataclass(frozen=True)  # no slots: a scheduler adds its own fields in a class below
class LaunchPlan:
    """A job that is ready to start. It has no secret token, which is drawn at the start.

    Attributes:
        command: program and arguments of the user.
        executed: the command line that is executed for them.
        change: change of the environment of all tasks.
        tasks: by rank.
        system: address of the CS system to watch; None for none.
        notices: about settings without effect and the like, one line each.
        max_restarts: how often each worker is restarted; 0 if the scheduler's plan does not set it.
        launch: the launcher's command line, which starts the job again; empty in a batch script. The command
            sets it, not the scheduler.
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
    max_restarts: int = field(default=0, kw_only=True)
    launch: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def peer_timeout_s(self) -> float:
        """Silence after which a task, or the CS system, counts as lost."""
        return peer_timeout_s(self.change.values)

    @property
    def requeue_code(self) -> int | None:
        """Exit code of a chief whose job goes back into the queue; None if the job cannot be requeued."""
        return EXIT_REQUEUE if "CSRUN_REQUEUE" in self.change.values else None


@dataclass(frozen=True, slots=True)
class ProgramRequest:
    """A request for a single program: of csrun_cpu, or of an input analysis.

    Attributes:
        launcher: name of the command that runs it.
        command: the command line to execute.
        environment: of the program.
        avoid_system: do not use the node that owns the CS system if there is another.
        inside: in a job, run on a node of that job instead of a separate one.
        leaving_s: seconds that the program has to clean up after the first signal that ends it; None for no
            limit.
    """

    launcher: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    avoid_system: bool = True
    inside: bool = False
    leaving_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """A program that is ready to start.

    Attributes:
        words: the command line to execute.
        environment: of the program.
        where: where it runs, for messages: "on this machine".
        name: by which the scheduler finds it; "" if that is not needed.
        terminal: the program has the terminal of the launcher.
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
    """The request of `csrun doctor`.

    Attributes:
        site: its settings.
        toolkit: location of interpreter and modules.
        cwd: absolute directory in which a job would start.
        environment: of the launcher.
        nodes: number of nodes to check; None for that of a job.
        probe: a probe may be started on them.
    """

    site: Site
    toolkit: Toolkit
    cwd: Path
    environment: Mapping[str, str]
    nodes: int | None
    probe: bool


@dataclass(frozen=True, slots=True)
class QueueView:
    """The scheduler's view of a job.

    Attributes:
        state: never "lost": a job that the scheduler has forgotten has no view.
        detail: one sentence that explains the state, such as why the job waits; "" for none.
        news: the part of `detail` that is worth printing again when it changes.
        cause: why the scheduler has ended the job: a time limit, a lost node; "" if it has not.
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
    """A place where jobs run, with its own types of surveys and plans.

    Attributes:
        name: as --launcher takes it.
        title: for sentences: "Slurm".
        about: what its tasks run on, for the help of --launcher: "nodes of a cluster".
        flags: flags of this scheduler.
        settings: dataclass of its settings in the site file, whose fields `csrun.site.setting` has made; None
            for none. They are the section of its name, or of the toolkit's own schedulers keys at the top.
        submit_flag: short form of --launcher=NAME --submit; "" for none.
        has_nodes: programs can get a separate node.
    """

    name: str
    title: str
    about: str
    flags: tuple[Flag, ...]
    settings: type[Any] | None
    submit_flag: str
    has_nodes: bool

    def presence(self, site: Site, environment: Mapping[str, str]) -> Presence:
        """Return whether the scheduler is installed and wanted. Called at every start: it must be fast."""
        ...

    def job_here(self, environment: Mapping[str, str]) -> JobHere | None:
        """Return the job that this process is in; None outside a job. Pure."""
        ...

    def task_place(self, environment: Mapping[str, str]) -> TaskPlace | None:
        """Return the place of this process, if the scheduler has started it as a task; else None. Pure.

        Raises:
            RoleError: a variable is missing or invalid.
        """
        ...

    def task_variables(
        self, environment: Mapping[str, str], rank: int, tasks: int, cpus: int | None = None
    ) -> Mapping[str, str]:
        """Return the variables that the scheduler sets for a task, in addition to those of csrun. Pure.

        Args:
            environment: of this process. Nothing is returned if the scheduler has not started it.
            rank: of the task.
            tasks: of the job, all on this node.
            cpus: of each task; None to leave the number of CPUs in the environment as it is.
        """
        # An input analysis is one program that simulates the tasks of a job with processes. Input functions
        # that shard by the variables of the scheduler must find the same values there as in a job.
        ...

    # A job: csrun_wse.

    def survey(self, asked: Asked) -> View:
        """Query the resources before the layout of a job is decided.

        Raises:
            ToolkitError: jobs cannot run here, or not with these flags.
        """
        ...

    def plan(self, request: LaunchRequest, context: LaunchContext, survey: View) -> Plan:
        """Plan the job completely. Pure.

        Raises:
            ToolkitError: it can never run here.
        """
        ...

    def describe(self, plan: Plan) -> str:
        """Return the text of --dry-run: exactly what `run` would do. Pure."""
        ...

    def run(self, plan: Plan, environment: Mapping[str, str]) -> int:
        """Run the job to its end and return the exit code of the launcher.

        Raises:
            ToolkitError: the job could not be started; nothing of it is left running.
        """
        ...

    # A job in the queue: csrun_wse --submit, csrun status, logs and cancel.

    def script(self, request: LaunchRequest, context: LaunchContext, survey: View) -> str:
        """Return the script for `submit`, which is also the text of --submit --dry-run. Pure.

        Raises:
            ToolkitError: there is no queue, or it cannot take the job.
        """
        ...

    def submit(self, script: Path, environment: Mapping[str, str]) -> str:
        """Submit a script and return the scheduler's number of the job.

        Raises:
            ToolkitError: the scheduler refuses it; nothing was submitted.
        """
        ...

    def output_file(self, job: KnownJob) -> Path:
        """Return the file of the output of a submitted job's script. Pure."""
        ...

    def views(self, numbers: Collection[str], environment: Mapping[str, str]) -> Mapping[str, QueueView]:
        """Return the scheduler's views of jobs, by number, without jobs that it has forgotten.

        Raises:
            ToolkitError: it does not answer.
        """
        ...

    def cancel(self, job: KnownJob, record: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        """Ask a job to end, by its entry and its record (empty before the start), without waiting for it.

        Raises:
            ToolkitError: that is not possible from here.
        """
        ...

    # One program: csrun_cpu, cs_input_analyzer.

    def plan_program(self, request: ProgramRequest, asked: Asked) -> ProgramPlan:
        """Plan the run of a program, on a separate node if the scheduler has nodes.

        Raises:
            ToolkitError: the command or the node does not exist.
        """
        ...

    def run_program(self, plan: ProgramPlan) -> int:
        """Run the program and return its exit code, or replace this process by it.

        Raises:
            ToolkitError: it cannot be started.
        """
        ...

    # csrun doctor.

    def checks(self, examination: Examination) -> Iterator[Finding]:
        """Check whether jobs would run on this scheduler here."""
        ...
