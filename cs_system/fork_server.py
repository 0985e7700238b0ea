"""The process that imports JAX and forks those of a CS system; see `cs_system.own_process`."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import selectors
import socket
import threading
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from cs_system.errors import CsSystemError, SystemBugError
from cs_system.own_process import NUMBER_BYTES, end_process
from cs_system.server.logs import set_up_logs
from cs_toolkit.garbage import search_seldom

log = logging.getLogger("cs_system")

_IMPORTED = ("cs_system.memoryx.serve", "cs_system.swarmx.member")
_MOST_BYTES, _MOST_DESCRIPTORS = 1 << 16, 8


def serve() -> None:
    """Forks a process for each request on the socket at its standard input, until that is closed."""
    search_seldom()
    set_up_logs()
    requests = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for module in _IMPORTED:
        import_module(module)
    gc.freeze()  # what the processes share stays shared
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not requests:
                    selector.unregister(key.fileobj)
                    _tell_end(key.fd, *key.data)
                    continue
                request, descriptors, *_ = socket.recv_fds(requests, _MOST_BYTES, _MOST_DESCRIPTORS)
                if not request:  # the CS system is gone, and all that it has started ends by itself
                    return
                pid, status = _fork(json.loads(request), descriptors)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status))


def _fork(request: dict[str, Any], descriptors: list[int]) -> tuple[int, int]:
    """The new process, and where its end is told."""
    lifeline, status, *own = descriptors
    pid = os.fork()
    if not pid:
        _run(request, lifeline, own)
    for descriptor in (lifeline, *own):
        os.close(descriptor)
    _tell(status, pid)
    return pid, status


def _tell_end(process: int, pid: int, status: int) -> None:
    os.close(process)
    _tell(status, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os.close(status)


def _tell(status: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know
        os.write(status, number.to_bytes(NUMBER_BYTES, "little", signed=True))


def _run(request: dict[str, Any], lifeline: int, own: list[int]) -> NoReturn:
    """What the new process does."""
    try:
        _close_all_but({0, 1, 2, lifeline, *own})
        os.setsid()
        Path("/proc/self/comm").write_text(str(request["name"]))
        threading.Thread(target=_end_with_owner, args=(lifeline,), daemon=True).start()
        module, name = request["run"]
        end_process(getattr(import_module(module), name)(*request["arguments"], *own))
    except CsSystemError as error:
        log.error("%s", error)
        end_process(error.exit_code)
    except BaseException:
        log.exception("internal error of %s", request["name"])
        end_process(SystemBugError.exit_code)


def _close_all_but(kept: set[int]) -> None:
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in kept:
            with contextlib.suppress(OSError):  # the one of the list
                os.close(int(entry.name))


def _end_with_owner(lifeline: int) -> None:
    """Ends this process, whatever it waits for, when the one that wanted it is gone, or says so."""
    os.read(lifeline, 1)
    end_process(0)
