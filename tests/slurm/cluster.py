"""A real Slurm cluster of several emulated nodes on this machine, private to the user who starts it.

munged, slurmctld and one slurmd per node are our own children and live in one temporary directory; nothing in
/etc, /run or /var is read or written except Slurm's programs and plugins. Any user may start one.
"""

from __future__ import annotations

import os
import pwd
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
INSTALL = "apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge"
SYSTEM_PATH = "/usr/sbin:/sbin"
START_LIMIT_S = 30.0
DRAIN_LIMIT_S = 10.0
STOP_LIMIT_S = 5.0
POLL_S = 0.02

# AuthInfo's cred_expire is also the delay before a requeued job starts again. The short timeouts make a lost
# node known within about 10 s. config_overrides: the nodes declare more CPUs than this machine has.
_CONFIGURATION = """\
ClusterName=csfix
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=cred_expire=5,socket={folder}/munge/munge.socket.2
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.txt
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldTimeout=30
SlurmdTimeout=5
MessageTimeout=2
TCPTimeout=1
KillWait={kill_wait_s}
MinJobAge=300
InactiveLimit=0
RequeueExit=75
GresTypes=cs
Licenses=cs:1
LaunchParameters=use_interactive_step
{extra}
{nodes}
PartitionName=all Nodes=cs-node[1-{num_nodes}] Default=YES MaxTime=INFINITE State=UP
{partitions}
"""
_NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Boards=1 "
    "SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=2000 {features} State=UNKNOWN"
)
_SLURM_PREFIXES = ("SLURM", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_")


def missing_programs() -> list[str]:
    """Return the programs that a cluster needs and that are not installed."""
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
    return [program for program in PROGRAMS if shutil.which(program, path=path) is None]


class SlurmCluster:
    """A cluster of `nodes` nodes cs-node1 .. cs-nodeN; one of them owns the generic resource cs:1.

    There is a licence cs:1 too, and one partition "all". Use it in a `with` statement.

    Args:
        nodes: number of nodes.
        cpus: CPUs that each of them declares.
        isolate: every node has a pid namespace of its own, so that `kill_node` is a power cut: its tasks
            end with it. Without that a killed node daemon leaves them running.
        system_node: number of the node that owns the resource.
        kill_wait_s: from Slurm's SIGTERM to its SIGKILL.
        extra: further lines of slurm.conf.
        partitions: lines of slurm.conf for partitions in addition to "all".

    Attributes:
        environment: variables of this process without any of Slurm's, and SLURM_CONF.
    """

    def __init__(
        self,
        nodes: int = 4,
        cpus: int = 4,
        *,
        isolate: bool = False,
        kill_wait_s: int = 5,
        system_node: int = 1,
        extra: str = "",
        partitions: str = "",
    ) -> None:
        self.names = [f"cs-node{number}" for number in range(1, nodes + 1)]
        self._cpus = cpus
        self._isolate = isolate
        self._kill_wait_s = kill_wait_s
        self._system_node = f"cs-node{system_node}"
        self._extra = extra
        self._partitions = partitions
        self._user = pwd.getpwuid(os.geteuid()).pw_name
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.folder = Path()
        self.environment: dict[str, str] = {}

    def __enter__(self) -> SlurmCluster:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run(self, *argv: str, limit_s: float = 60.0) -> str:
        """Runs one of Slurm's commands; its output.

        Raises:
            subprocess.CalledProcessError: it failed; its complaint is in `stderr`.
        """
        return subprocess.run(
            argv,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=True,
        ).stdout

    def states(self) -> dict[str, str]:
        """The state of every node, in short: idle, alloc, down* ..."""
        try:
            text = self.run("sinfo", "-h", "-N", "-p", "all", "-o", "%N %t")
        except subprocess.CalledProcessError:
            return {}
        return dict(line.split() for line in text.splitlines())

    def jobs(self) -> list[str]:
        """The ids of all jobs that wait, run or are being cleaned up after."""
        return self.run("squeue", "-h", "-o", "%i").split()

    def start_node(self, name: str) -> None:
        """Starts a node's daemon."""
        (self.folder / "spool" / name).mkdir(exist_ok=True)
        command = ["slurmd", "-D", "-N", name, "-f", str(self.folder / "slurm.conf")]
        if self._isolate:
            root = os.geteuid() == 0
            namespaces = ["unshare", *([] if root else ["--map-current-user"])]
            namespaces += ["--fork", "--kill-child=SIGKILL", "--pid", "--uts", "--mount-proc", "--"]
            named = f"hostname {name}; " if root else ""
            command = [*namespaces, "sh", "-c", f'{named}exec "$@"', "sh", *command]
        self._spawn(name, command)

    def start_killed_nodes(self) -> None:
        """Starts the daemons of all nodes that have been killed."""
        for name in self.names:
            if name not in self._daemons:
                self.start_node(name)

    def kill_node(self, name: str) -> None:
        """Ends a node at once: with `isolate` a power cut, without it its daemon only."""
        self.kill_daemon(name)

    def start_controller(self) -> None:
        """Starts slurmctld, which recovers the state that a killed one has left."""
        recover = [] if "slurmctld" in self._daemons or not any((self.folder / "state").iterdir()) else ["-R"]
        self._spawn("slurmctld", ["slurmctld", "-D", *recover, "-f", str(self.folder / "slurm.conf")])
        self._wait(self._controller_listens, "slurmctld")

    def start_munge(self) -> None:
        """Starts munged, without which nothing in the cluster can be asked."""
        munge = self.folder / "munge"
        self._spawn(
            "munged",
            [
                "munged",
                "--foreground",
                f"--key-file={munge}/munge.key",
                f"--socket={munge}/munge.socket.2",
                f"--pid-file={munge}/munged.pid",
                f"--log-file={munge}/munged.log",
                f"--seed-file={munge}/munged.seed",
                "--num-threads=4",
            ],
        )
        self._wait((munge / "munge.socket.2").exists, "munged")

    def kill_daemon(self, name: str) -> None:
        """Kills "munged", "slurmctld" or a node's daemon by its name; `start_...` brings it back."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()
        if name == "munged":  # it removes its socket only when it is asked to end
            (self.folder / "munge" / "munge.socket.2").unlink(missing_ok=True)

    def stop(self) -> None:
        """Ends all jobs and daemons and removes the directory; does nothing the second time."""
        if self._isolate:  # a node takes everything on it along: nothing has to be asked, or waited for
            for name in [name for name in self._daemons if name != "munged"]:
                self._daemons[name].kill()
        elif (self.folder / "slurm.conf").exists():  # without it every command would wait for a minute
            self._shut_down()
        self._end_daemons()

    def _shut_down(self) -> None:
        with suppress(subprocess.SubprocessError, OSError):
            self.run("scancel", "--full", "--user", self._user)
        limit_s = time.monotonic() + DRAIN_LIMIT_S
        while time.monotonic() < limit_s and self._has_jobs():
            time.sleep(POLL_S)
        with suppress(subprocess.SubprocessError, OSError):
            # Ends slurmctld and every slurmd, those in a namespace too, which no signal from outside reaches.
            self.run("scontrol", "shutdown")

    def _end_daemons(self) -> None:
        munged = self._daemons.pop("munged", None)
        limit_s = time.monotonic() + STOP_LIMIT_S
        for daemon in self._daemons.values():
            _end(daemon, limit_s - time.monotonic())
        self._daemons.clear()
        if munged is not None:
            munged.terminate()
            _end(munged, STOP_LIMIT_S)
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        # Not pytest's tmp_path: munged wants every directory above its socket to be open to all (0755), and
        # the socket's path to be shorter than 108 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)
        for name in ("state", "spool", "munge"):
            (self.folder / name).mkdir(mode=0o755)
        clean = {name: text for name, text in os.environ.items() if not name.startswith(_SLURM_PREFIXES)}
        self.environment = {**clean, "SLURM_CONF": str(self.folder / "slurm.conf")}
        key = self.folder / "munge" / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self._configure()
        self.start_munge()
        self.start_controller()
        # Only now: a slurmd that comes before the controller listens tries again after a whole second.
        for name in self.names:
            self.start_node(name)
        self._wait(lambda: list(self.states().values()) == ["idle"] * len(self.names), "nodes")

    def _configure(self) -> None:
        self._controller_port, *ports = _free_ports(len(self.names) + 1)
        nodes = [
            _NODE.format(
                name=name,
                port=port,
                cpus=self._cpus,
                features="Gres=cs:1 Feature=cs" if name == self._system_node else "Feature=worker",
            )
            for name, port in zip(self.names, ports, strict=True)
        ]
        files = {
            "slurm.conf": _CONFIGURATION.format(
                folder=self.folder,
                user=self._user,
                controller_port=self._controller_port,
                kill_wait_s=self._kill_wait_s,
                extra=self._extra,
                nodes="\n".join(nodes),
                num_nodes=len(self.names),
                partitions=self._partitions,
            ),
            "gres.conf": f"NodeName={self._system_node} Name=cs Count=1\n",
            "cgroup.conf": "",  # only so that the one in /etc is not looked for
        }
        for name, text in files.items():
            (self.folder / name).write_text(text)

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        environment: Mapping[str, str] = {
            **self.environment,
            "PATH": f"{self.environment.get('PATH', '')}:{SYSTEM_PATH}",
        }
        with (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _controller_listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._controller_port)) == 0

    def _has_jobs(self) -> bool:
        try:
            return bool(self.jobs())
        except (subprocess.SubprocessError, OSError):
            return False

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        limit_s = time.monotonic() + START_LIMIT_S
        while not condition():
            dead = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if dead or time.monotonic() > limit_s:
                files = sorted([*self.folder.glob("*.out"), *self.folder.glob("*.log")])
                tails = "\n".join(f"== {file.name}\n{file.read_text()[-1500:]}" for file in files)
                raise RuntimeError(f"{what} did not come up (ended: {dead})\n{tails}")
            time.sleep(POLL_S)


def _end(daemon: subprocess.Popen[bytes], limit_s: float) -> None:
    try:
        daemon.wait(max(0.01, limit_s))
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _free_ports(count: int) -> list[int]:
    # Not those that the kernel chooses: any connection may get one of them before a daemon listens there.
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    lowest = max(int(ephemeral[0]), 20_000)
    found: list[int] = []
    for port in random.sample(range(10_000, lowest), lowest - 10_000):
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            break
    return found
