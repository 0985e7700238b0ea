"""Replaces this process by a task, for a launcher or agent that has threads (`processes.start_task`).

Arguments: pid of the parent whose death kills the task (0 for none), CPUs with commas, file, command line.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1


def main(parent: str, cpus: str, file: str, *command: str) -> None:
    """Prepare this process, and execute the file."""
    if int(parent):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != int(parent):  # it died before prctl
            sys.exit(1)
    if cpus:
        with suppress(OSError):  # a CPU has been revoked: better unpinned than not at all
            os.sched_setaffinity(0, set(map(int, cpus.split(","))))
    # Not os.environ: in the C locale Python adds LC_CTYPE to it (PEP 538).
    block = Path("/proc/self/environ").read_bytes()
    entries = [entry.partition(b"=") for entry in block.split(b"\0") if entry]
    # Python ignores SIGPIPE and SIGXFSZ; the task gets the default actions, as from subprocess.
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execve(file, command, {name: value for name, _, value in entries})
    except OSError as error:
        sys.exit(f"cannot execute {file!r}: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
