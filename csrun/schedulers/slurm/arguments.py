"""Arguments of Slurm's commands for a job. Pure."""

# Every number is given explicitly. Otherwise Slurm would distribute tasks unevenly (8 tasks on 4 nodes become
# 4, 2, 1 and 1), and take missing numbers from variables of an enclosing job.

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import join

from cs_toolkit.errors import UsageError
from csrun.schedulers.slurm.allocation import Allocation, Component
from csrun.schedulers.slurm.options import SlurmOptions

# Arguments of every step: the agents handle input, output and the working directory, and the launcher handles
# ended tasks, whatever a site has configured for `--wait` and `--kill-on-bad-exit`.
STEP_ARGUMENTS = (
    "--input=none",
    "--mpi=none",
    "--chdir=/",
    "--wait=0",
    "--kill-on-bad-exit=0",
)


def node_lists(parts: Sequence[Component], options: SlurmOptions) -> list[str]:
    """Return the required nodes of each component: of the first the CS system's, of the last the user's.

    Raises:
        UsageError: two different nodes are required for a job of one node.
    """
    first, asked = options.gres_node, options.nodelist
    if len(parts) > 1:
        return [first, *[""] * (len(parts) - 2), asked]
    if first and asked not in ("", first):
        raise UsageError(
            f"--nodelist={asked}: the only node of the job is {first}, which holds the CS system; expected "
            f"more nodes (--total-nodes), or no --nodelist"
        )
    return [first or asked]


def request_arguments(component: Component, options: SlurmOptions, named: str) -> list[str]:
    """Return the arguments of srun and sbatch that request one component; `named` is from `node_lists`."""
    arguments = [f"--nodes={component.nodes}"]
    arguments += options.gres_arguments(with_system=component.holds_system)
    if component.holds_system:
        arguments += [f"--licenses={options.licence}"] if options.licence else []
    arguments += [f"--nodelist={named}"] if named else []
    arguments += options.exclude_arguments()
    if component.exclusive:
        arguments.append("--exclusive")
    return [*arguments, *task_arguments(component), *options.arguments]


def task_arguments(component: Component) -> list[str]:
    """Return the arguments for tasks and CPUs of one component."""
    arguments = [f"--ntasks={component.tasks}", f"--ntasks-per-node={component.tasks_per_node}"]
    if component.cpus_per_task is not None:
        arguments.append(f"--cpus-per-task={component.cpus_per_task}")
    if component.cyclic:
        arguments.append("--distribution=cyclic")
    return arguments


def srun_job(
    name: str, parts: Sequence[Component], options: SlurmOptions, agent: Sequence[str]
) -> tuple[str, ...]:
    """Return the srun that allocates nodes and runs an agent for every task on them."""
    arguments: list[str] = ["srun", f"--job-name={name}"]
    named = node_lists(parts, options)
    for number, component in enumerate(parts):
        # Options apply to one component, so they are repeated for each.
        arguments += [":", f"--job-name={name}"] if number else []
        arguments += [*STEP_ARGUMENTS, *request_arguments(component, options, named[number]), *agent]
    return tuple(arguments)


def srun_step(
    name: str,
    parts: Sequence[Component],
    allocation: Allocation,
    agent: Sequence[str],
) -> tuple[str, ...]:
    """Return the srun that runs an agent for every task inside an allocation.

    The components of a heterogeneous allocation are those of the layout.
    """
    # In another allocation the host file of SLURM_HOSTFILE places every task, and the chief on the node with
    # the CS system; Slurm reads that file for --distribution=arbitrary.
    # --overlap: a shell that was started with srun holds the CPUs and resources of the job, and the step
    # would wait for them forever.
    arguments = ["srun", f"--jobid={allocation.job_id}", f"--job-name={name}"]
    if not allocation.heterogeneous:
        cpus = {component.cpus_per_task for component in parts} - {None}
        tasks, nodes = sum(part.tasks for part in parts), sum(part.nodes for part in parts)
        arguments += [
            *STEP_ARGUMENTS,
            "--overlap",
            f"--nodes={nodes}",
            f"--ntasks={tasks}",
            "--distribution=arbitrary",
        ]
        arguments += [f"--cpus-per-task={count}" for count in cpus]
        return (*arguments, *agent)
    for number, component in enumerate(parts):
        arguments += [":"] if number else []
        arguments += [f"--het-group={number}", *STEP_ARGUMENTS, "--overlap", f"--nodes={component.nodes}"]
        arguments += task_arguments(component)
        arguments += agent
    return tuple(arguments)


def srun_cpu(
    name: str,
    options: SlurmOptions,
    command: Sequence[str],
    *,
    exclude_gres: bool,
    terminal: bool,
    cpus: int | None,
) -> tuple[str, ...]:
    """Return the srun that runs one command on a separate whole node.

    Args:
        name: of job and step.
        options: of the site and the user.
        command: program and arguments.
        cpus: of such a node; None if unknown, with which Slurm may give the command only one.
        exclude_gres: do not use the node that owns the CS system.
        terminal: give the command a terminal.
    """
    arguments = [*_single_task(name, terminal), "--exclusive", "--mpi=none"]
    arguments += [] if cpus is None else [f"--cpus-per-task={cpus}"]
    arguments += options.exclude_arguments(options.gres_node if exclude_gres else "")
    arguments += options.gres_arguments(with_system=False)
    arguments += [f"--nodelist={options.nodelist}"] if options.nodelist else []
    return (*arguments, *options.arguments, *_one_component(command))


def srun_cpu_step(
    name: str, allocation: Allocation, command: Sequence[str], *, avoided_node: str, terminal: bool
) -> tuple[str, ...]:
    """Return the srun that runs one command on a node of an allocation, with all its resources there.

    Args:
        name: of the step.
        allocation: of this job.
        command: program and arguments.
        avoided_node: the node that owns the CS system, used only if there is no other.
        terminal: give the command a terminal.
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
    arguments = [*_single_task(name, terminal), "--mpi=none", "--overlap"]
    arguments += [f"--jobid={allocation.job_id}", f"--nodelist={node}"]
    arguments += [f"--het-group={group}"] if allocation.heterogeneous else []
    return (*arguments, *_one_component(command))


def _single_task(name: str, terminal: bool) -> list[str]:
    # Without --disable-status, srun only prints the status of the task at the first SIGINT.
    how = ["--disable-status", *(["--pty"] if terminal else [])]
    return ["srun", *how, f"--job-name={name}", "--nodes=1", "--ntasks=1"]


def _one_component(command: Sequence[str]) -> Sequence[str]:
    if ":" in command:
        # For srun this argument starts the next component of a heterogeneous job, at any position.
        return ("/bin/sh", "-c", f"exec {join(command)}")
    return command


_GENERIC_NAMES = frozenset(
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
    """Return a unique name for the queue: the subject of a command and the end of the job's id.

    Args:
        command: program and arguments of the user.
        cwd: absolute directory in which it starts.
        job_id: csrun's id.
    """
    # The subject first: Slurm's lists show eight characters of a name.
    return f"{subject(command, cwd)}-{job_id.rpartition('-')[2]}"


def subject(command: Sequence[str], cwd: Path) -> str:
    """Return a word that characterizes a command: its script, or the nearest folder with a specific name."""
    script = next((word for word in command[1:] if word.endswith((".py", ".sh"))), command[0])
    arguments = list(command)
    at = arguments.index("-m") + 1 if "-m" in arguments[:3] else len(arguments)
    module = arguments[at] if at < len(arguments) and not arguments[at].startswith("-") else ""
    path = cwd / (module.replace(".", "/") if module else script)
    for name in (path.stem, *(folder.name for folder in path.parents)):
        if name.lower() not in _GENERIC_NAMES and name.strip("./"):
            return _plain(name)
    return _plain(Path(command[0]).name)


def _plain(name: str) -> str:
    """Replace characters that have a meaning for Slurm's commands."""
    return "".join(character if character.isalnum() or character in "_.+" else "_" for character in name)
