"""The words of Slurm's commands for a job. Pure: typed values in, words for an argument list out.

Every number is given in full. Slurm would otherwise spread tasks unevenly (4 nodes and 8 tasks become 4, 2, 1
and 1), and take what is missing from variables of an enclosing job.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import join

from cs_toolkit.errors import UsageError
from csrun.schedulers.slurm.allocation import Allocation, Component
from csrun.schedulers.slurm.options import SlurmOptions

STEP_WORDS = (
    "--input=none",
    "--mpi=none",
    "--chdir=/",
    "--wait=0",
    "--kill-on-bad-exit=0",
)
"""Of every step: agents carry input, output and errors and change to the working directory, and the launcher
alone decides what the end of a task means, whatever a site has set for `--wait` and `--kill-on-bad-exit`."""


def node_lists(parts: Sequence[Component], options: SlurmOptions) -> list[str]:
    """The nodes that each component must have: the chief's that of the CS system, the last one the user's.

    Raises:
        UsageError: a job of one node must have two.
    """
    first, asked = options.gres_node, options.nodelist
    if len(parts) > 1:
        return [first, *[""] * (len(parts) - 2), asked]
    if first and asked not in ("", first):
        raise UsageError(
            f"--nodelist={asked}: the job's one node is {first}, which holds the CS system; expected more "
            f"nodes (--total-nodes), or no --nodelist"
        )
    return [first or asked]


def request_words(component: Component, options: SlurmOptions, named: str) -> list[str]:
    """How srun or sbatch ask for one component, besides its tasks; `named` is its one of `node_lists`."""
    words = [f"--nodes={component.nodes}"]
    words += options.gres_words(with_system=component.holds_system)
    if component.holds_system:
        words += [f"--licenses={options.licence}"] if options.licence else []
    words += [f"--nodelist={named}"] if named else []
    words += options.exclude_words()
    if component.exclusive:
        words.append("--exclusive")
    return [*words, *task_words(component), *options.words]


def task_words(component: Component) -> list[str]:
    """How many tasks and CPUs one component has."""
    words = [f"--ntasks={component.tasks}", f"--ntasks-per-node={component.tasks_per_node}"]
    if component.cpus_per_task is not None:
        words.append(f"--cpus-per-task={component.cpus_per_task}")
    if component.cyclic:
        words.append("--distribution=cyclic")
    return words


def srun_job(
    name: str, parts: Sequence[Component], options: SlurmOptions, agent: Sequence[str]
) -> tuple[str, ...]:
    """Srun that asks for nodes of its own and runs an agent for every task on them."""
    words: list[str] = ["srun", f"--job-name={name}"]
    named = node_lists(parts, options)
    for number, component in enumerate(parts):
        # Options hold for one component only, and so for each of them.
        words += [":", f"--job-name={name}"] if number else []
        words += [*STEP_WORDS, *request_words(component, options, named[number]), *agent]
    return tuple(words)


def srun_step(
    name: str,
    parts: Sequence[Component],
    allocation: Allocation,
    agent: Sequence[str],
) -> tuple[str, ...]:
    """Srun that runs an agent for every task inside an allocation.

    The components of a heterogeneous allocation are those of the layout. In a plain one a host file, which
    SLURM_HOSTFILE names, says where every task goes: only so the chief gets to the node with the CS system,
    wherever in the list that stands. `--overlap`, because a shell that was started with srun holds the
    processors and resources of the job, and the step would wait for it for ever.
    """
    words = ["srun", f"--jobid={allocation.job_id}", f"--job-name={name}"]
    if not allocation.heterogeneous:
        cpus = {component.cpus_per_task for component in parts} - {None}
        tasks, nodes = sum(part.tasks for part in parts), sum(part.nodes for part in parts)
        words += [
            *STEP_WORDS,
            "--overlap",
            f"--nodes={nodes}",
            f"--ntasks={tasks}",
            "--distribution=arbitrary",
        ]
        words += [f"--cpus-per-task={count}" for count in cpus]
        return (*words, *agent)
    for number, component in enumerate(parts):
        words += [":"] if number else []
        words += [f"--het-group={number}", *STEP_WORDS, "--overlap", f"--nodes={component.nodes}"]
        words += task_words(component)
        words += agent
    return tuple(words)


def srun_cpu(
    name: str,
    options: SlurmOptions,
    command: Sequence[str],
    *,
    exclude_gres: bool,
    terminal: bool,
    cpus: int | None,
) -> tuple[str, ...]:
    """The srun that runs one command on a whole node of its own.

    Args:
        name: of job and step.
        options: what the site and the user ask for.
        command: the words to execute.
        cpus: of such a node; None: not known, and Slurm may give the command one of them only.
        exclude_gres: leave the node alone that owns the CS system.
        terminal: give the command a terminal.
    """
    words = [*_single_task(name, terminal), "--exclusive", "--mpi=none"]
    words += [] if cpus is None else [f"--cpus-per-task={cpus}"]
    words += options.exclude_words(options.gres_node if exclude_gres else "")
    words += options.gres_words(with_system=False)
    words += [f"--nodelist={options.nodelist}"] if options.nodelist else []
    return (*words, *options.words, *_one_component(command))


def srun_cpu_step(
    name: str, allocation: Allocation, command: Sequence[str], *, avoided_node: str, terminal: bool
) -> tuple[str, ...]:
    """The srun that runs one command on a node of an allocation, with all that the job has there.

    Args:
        name: of the step.
        allocation: of a shell of salloc that is on another machine.
        command: the words to execute.
        avoided_node: the node that owns the CS system, taken only where there is no other.
        terminal: as for `srun_cpu`.
    """
    group, node = next(
        (
            (number, name)
            for number, names in enumerate(allocation.groups)
            for name in names
            if name != avoided_node
        ),
        (0, allocation.nodes[0]),
    )
    words = [*_single_task(name, terminal), "--mpi=none", "--overlap"]
    words += [f"--jobid={allocation.job_id}", f"--nodelist={node}"]
    words += [f"--het-group={group}"] if allocation.heterogeneous else []
    return (*words, *_one_component(command))


def _single_task(name: str, terminal: bool) -> list[str]:
    # Without --disable-status the first SIGINT only makes srun say how the task is.
    how = ["--disable-status", *(["--pty"] if terminal else [])]
    return ["srun", *how, f"--job-name={name}", "--nodes=1", "--ntasks=1"]


def _one_component(command: Sequence[str]) -> Sequence[str]:
    if ":" in command:
        # To srun this word starts the next component of a heterogeneous job, wherever it stands.
        return ("/bin/sh", "-c", f"exec {join(command)}")
    return command


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
