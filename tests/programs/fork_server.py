"""A process that has imported a framework and the toolkit, and runs programs in forks of itself.

Tests of jobs with many tasks would import TensorFlow or PyTorch, 2 s of a CPU, in each of them; without a
framework 0.3 s in a worker, 0.7 s in a chief.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from cs_toolkit.garbage import use_infrequent_collection
from tests.processes import wait_until
from tests.programs.forked import load, load_compiler, run_exit_functions, run_program

ROOT = Path(__file__).parents[2]
CLIENT = Path(__file__).with_name("fork_client.py")

FAILED_START = 126  # as from a shell for a command that cannot be executed

_FRONT_ENDS = {"tensorflow": ("estimator",), "torch": ("cstorch",), "numpy": ()}
# The names in the paths of modules that programs of a framework do not import.
_FOREIGN = {
    "tensorflow": ("aten", "torch"),
    "torch": ("tensorflow", "tf"),
    "numpy": ("aten", "torch", "tensorflow", "tf"),
}


@contextmanager
def fork_server(framework: str, directory: Path) -> Iterator[tuple[str, ...]]:
    """Yield the words before `python PROGRAM ARGUMENT...` with which a launcher starts a task.

    Args:
        framework: "tensorflow", "torch", or "numpy" for programs without a framework.
        directory: For the socket; its path has to be short.
    """
    path = directory / framework
    command = [sys.executable, "-m", __name__, framework, str(path)]
    # It ends with this process, by the end of its input.
    server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
    try:
        wait_until(lambda: path.exists() or server.poll() is not None)
        assert server.poll() is None
        yield sys.executable, "-I", "-S", str(CLIENT), str(path)
    finally:
        server.kill()
        server.communicate()


class ForkServers:
    """Servers that start when a task of their framework is first needed; use it in a `with` statement."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._launchers: dict[str, tuple[str, ...]] = {}

    def __enter__(self) -> ForkServers:
        self._directory = self._stack.enter_context(TemporaryDirectory(prefix="fork-"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def launcher(self, framework: str) -> tuple[str, ...]:
        """Return the words before `python PROGRAM ARGUMENT...`."""
        if framework not in self._launchers:
            server = fork_server(framework, Path(self._directory))
            self._launchers[framework] = self._stack.enter_context(server)
        return self._launchers[framework]


def serve(path: str) -> None:
    """Fork a process for each connection, until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.new")
        listener.listen()
        Path(f"{path}.new").rename(path)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                try:
                    pid = os.fork()
                except OSError as error:  # this task fails, and others may still start
                    refuse(connection, error)
                    continue
                if not pid:
                    listener.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    try:
                        become_task(connection)
                    except BaseException as error:
                        refuse(connection, error)
                    os._exit(FAILED_START)


def refuse(connection: socket.socket, error: BaseException) -> None:
    """Report that the program of a client is not started, and give the client the exit code."""
    print(f"fork_server: a task cannot be started: {error!r}", file=sys.stderr, flush=True)
    with suppress(OSError):
        connection.sendall(f"{FAILED_START}\n".encode())


def become_task(connection: socket.socket) -> None:
    """Run the program of a client in this process, and end it."""
    _, descriptors, *_ = socket.recv_fds(connection, 1, 3)
    stream = connection.makefile()
    request = json.loads(stream.readline())
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    os.sched_setaffinity(0, request["cpus"])
    sys.argv = request["words"]
    sys.path[0] = str(Path(sys.argv[0]).parent)

    def end_with_client() -> None:
        stream.readline()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end_with_client, daemon=True).start()
    code = run_program(sys.argv[0])
    run_exit_functions()
    with suppress(OSError):
        connection.sendall(f"{code}\n".encode())
    os._exit(code)


def main(framework: str, path: str) -> None:
    """Run the command line."""
    front_ends = _FRONT_ENDS[framework]
    for front_end in front_ends:
        import_module(front_end)
    if framework == "tensorflow":
        from estimator import import_tensorflow

        import_tensorflow()
        from tests.clients.tensorflow_graphs import optimize_graphs

        optimize_graphs(False)
    elif framework == "torch":
        import cerebras_pytorch

        assert cerebras_pytorch
    use_infrequent_collection()
    load("cs_runtime", *front_ends, "input_rules", without=_FOREIGN[framework])
    load_compiler(_FOREIGN[framework])
    gc.freeze()  # a search for garbage would copy every page
    serve(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
