"""The resources of the node and their use by processes: CPUs, memory, disks, page cache, shared memory.

Read from /proc and from the control group of this process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cs_toolkit.errors import UsageError
from csrun.schedulers.registry import granted_cpus

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that this process shares with others: total, and still available."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Resource usage of some processes: resident bytes, and CPU seconds since their start."""

    memory_bytes: int
    cpu_s: float


def usable_cpus(environment: Mapping[str, str]) -> tuple[int, ...]:
    """Return the numbers of the CPUs that we may use."""
    # A scheduler may share a node among jobs without binding them to CPUs: a training run in our job then
    # has no more CPUs than the job has on the node.
    cpus = sorted(os.sched_getaffinity(0))
    return tuple(cpus[: granted_cpus(environment)])


def read_memory() -> Memory:
    """Return the node's memory, or that of the control group if it is smaller."""
    fields = {}
    for line in (_PROC / "meminfo").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) * 1024
    total, available = fields["MemTotal"], fields["MemAvailable"]
    for limit, used in _group_limits():
        total, available = min(total, limit), min(available, max(0, limit - used))
    return Memory(total, available)


def _group_limits() -> Iterable[tuple[int, int]]:
    """Yield (limit, used) of the control groups of this process that have a limit; versions 1 and 2."""
    with suppress(OSError):
        for line in (_PROC / "self/cgroup").read_text(encoding="ascii").splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds not in ("", "memory"):
                continue
            root = _CGROUP / kinds
            names = ("memory.max", "memory.current") if not kinds else _VERSION_1
            folder = root / path.lstrip("/")
            while folder.is_relative_to(root):
                with suppress(OSError, ValueError):  # "max" is no number
                    yield int((folder / names[0]).read_text()), int((folder / names[1]).read_text())
                if folder == root:
                    break
                folder = folder.parent


_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def processes_in_sessions(leaders: Collection[int]) -> set[int]:
    """Return all living processes of the sessions that these processes lead, themselves included."""
    # Unlike a descendant, a process stays in its session when its parent exits.
    found = set()
    for entry in os.scandir(_PROC):
        with suppress(OSError, ValueError):
            pid = int(entry.name)
            # state, parent, group, session: from field 3 of proc(5) on
            state, _, _, session = (_PROC / entry.name / "stat").read_bytes().rpartition(b")")[2].split()[:4]
            if int(session) in leaders and state not in (b"Z", b"X"):
                found.add(pid)
    return found


def find_resource_trackers(pids: Collection[int]) -> set[int]:
    """Return those of these processes that clean up /dev/shm when others have exited."""
    # That of Python's `multiprocessing` does so immediately, that of torch's sharing strategy "file_system"
    # 2 s later.
    found = set()
    for pid in pids:
        with suppress(OSError):
            words = (_PROC / str(pid) / "cmdline").read_bytes()
            program = words.partition(b"\0")[0]
            if b"multiprocessing.resource_tracker" in words or program.endswith(b"torch_shm_manager"):
                found.add(pid)
    return found


def usage_of(pids: Iterable[int]) -> Usage:
    """Return the usage of some processes together, without those that have exited."""
    memory_bytes, ticks = 0, 0
    for one in pids:
        with suppress(OSError, ValueError, IndexError):
            fields = (_PROC / str(one) / "stat").read_bytes().rpartition(b")")[2].split()
            # state is field 3 of proc(5), and 0 here: utime 14, stime 15, children's 16 and 17, rss 24
            ticks += sum(int(fields[index]) for index in (11, 12, 13, 14))
            memory_bytes += int(fields[21]) * _PAGE_BYTES
    return Usage(memory_bytes, ticks * _TICK_S)


def disk_bytes_of(pids: Iterable[int]) -> int | None:
    """Return the bytes that processes, and their exited children, have caused to be read from disks.

    None if the kernel does not report it.
    """
    # `read_bytes` of proc(5) excludes reads from the page cache and from many network file systems.
    total = 0
    for pid in pids:
        try:
            lines = (_PROC / str(pid) / "io").read_text(encoding="ascii").splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has exited, and counts as its parent's
        except OSError:
            return None
        total += next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), 0)
    return total


def measure_unshared_part(pids: Iterable[int]) -> float:
    """Return the fraction of the resident memory of processes that remains if shared pages count once.

    1 if the kernel does not report it. Takes about 0.1 ms per MiB.
    """
    # The "proportional" size in `smaps_rollup` of proc(5) divides each page by its number of users.
    resident = proportional = 0
    for pid in pids:
        with suppress(OSError, ValueError, KeyError):
            lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]
            fields = {name: int(rest.split()[0]) for name, _, rest in (one.partition(":") for one in lines)}
            resident, proportional = resident + fields["Rss"], proportional + fields["Pss"]
    return proportional / resident if resident else 1.0


def busy_cpu_s(cpus: Iterable[int]) -> float:
    """Return the CPU seconds that the given CPUs have worked since the machine started."""
    wanted = {f"cpu{cpu}" for cpu in cpus}
    busy = 0
    for line in (_PROC / "stat").read_text(encoding="ascii").splitlines():
        name, *fields = line.split()
        if name in wanted:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
            busy += user + nice + system + irq + softirq + steal
    return busy * _TICK_S


_SAY_EVERY = 1000


class ColdFiles:
    """Drops files below some folders from the page cache; `files` and `size_bytes` count the last drop."""

    def __init__(self, flag: str, folders: Sequence[Path]) -> None:
        self._flag = flag
        self.folders = tuple(folders)
        self.files = self.size_bytes = 0

    def drop(self, say: Callable[[str], None]) -> None:
        """Drop all files from the page cache; takes about 10 us per file, and longer over a network.

        Args:
            say: Receives progress.

        Raises:
            UsageError: a file cannot be read.
        """
        self.files = self.size_bytes = 0
        for path in walk_files(self.folders):
            if self.files % _SAY_EVERY == 0:
                say("dropping files from the page cache")
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # it was removed in the meantime
            except OSError as error:
                raise UsageError(
                    f"{self._flag}: {path!r} cannot be read: {error.strerror}; expected folders with "
                    "readable files: name only those of the input"
                ) from error
            try:
                self.files += 1
                self.size_bytes += os.fstat(descriptor).st_size
                with suppress(OSError):  # dirty pages can only be dropped once they are on the disk
                    os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def check_has_files(flag: str, folders: Sequence[Path]) -> None:
    """Check that there are files below each folder.

    Raises:
        UsageError: there are none.
    """
    for folder in folders:
        if next(walk_files([folder]), None) is None:
            raise UsageError(
                f"{flag}: there is no file below {str(folder)!r}; expected the files of the input"
            )


def walk_files(folders: Sequence[Path]) -> Iterator[str]:
    """Yield regular files, each folder once; links are followed, as a program does that opens them."""
    seen: set[tuple[int, int]] = set()
    waiting = [str(folder) for folder in folders]
    while waiting:
        folder = waiting.pop()
        with suppress(OSError):  # folders that we may not read are no part of the input
            status = Path(folder).stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir():
                        waiting.append(entry.path)
                    elif entry.is_file():
                        yield entry.path


_SHARED = Path("/dev/shm")
# torch_PID_RANDOM_COUNT: `NewProcessWideShmHandle` in torch's aten/src/ATen/MapAllocator.cpp.
_OF_TORCH = re.compile(r"torch_(\d+)_")


def remove_torch_segments(pids: Collection[int]) -> None:
    """Remove torch's segments in /dev/shm of processes that were just killed."""
    # A process may be killed between creating a segment and removing its name; with torch's sharing strategy
    # "file_system", names stay as long as a segment is used.
    if not pids:
        return
    with suppress(OSError):  # without this folder there is no segment
        for segment in _SHARED.iterdir():
            match = _OF_TORCH.match(segment.name)
            if match and int(match[1]) in pids:
                with suppress(OSError):
                    segment.unlink()
