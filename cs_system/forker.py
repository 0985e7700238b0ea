"""The process from which a CS system's own ones are forked; see `cs_system.own_process`."""

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
from cs_system.own_process import NUMBER_BYTES
from cs_system.server.logs import set_up_logs
from cs_toolkit.garbage import search_seldom

log = logging.getLogger("cs_system")

_IMPORTED = ("cs_system.memoryx.serve", "cs_system.swarmx.member", "jax")
_MOST_BYTES, _MOST_DESCRIPTORS = 1 << 16, 8


def serve() -> None:
    """Forks what the other end of the socket at its standard input says, until that is closed."""
    search_seldom()
    set_up_logs()
    orders = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for module in _IMPORTED:
        import_module(module)
    gc.freeze()  # what the processes share stays shared
    with selectors.DefaultSelector() as selector:
        selector.register(orders, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not orders:
                    selector.unregister(key.fileobj)
                    _tell_end(key.fd, *key.data)
                    continue
                order, descriptors, *_ = socket.recv_fds(orders, _MOST_BYTES, _MOST_DESCRIPTORS)
                if not order:  # the CS system is gone, and all that it has started ends by itself
                    return
                pid, tell = _fork(json.loads(order), descriptors)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, tell))


def _fork(order: dict[str, Any], descriptors: list[int]) -> tuple[int, int]:
    """The new process, and where its end is told."""
    lifeline, tell, *own = descriptors
    pid = os.fork()
    if not pid:
        _be(order, lifeline, own)
    for descriptor in (lifeline, *own):
        os.close(descriptor)
    _tell(tell, pid)
    return pid, tell


def _tell_end(process: int, pid: int, tell: int) -> None:
    os.close(process)
    _tell(tell, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os.close(tell)


def _tell(tell: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know
        os.write(tell, number.to_bytes(NUMBER_BYTES, "little", signed=True))


def _be(order: dict[str, Any], lifeline: int, own: list[int]) -> NoReturn:
    """What the new process does."""
    try:
        _close_all_but({0, 1, 2, lifeline, *own})
        os.setsid()
        Path("/proc/self/comm").write_text(str(order["name"]))
        threading.Thread(target=_end_with_owner, args=(lifeline,), daemon=True).start()
        module, name = order["run"]
        end_process(getattr(import_module(module), name)(*order["arguments"], *own))
    except CsSystemError as error:
        log.error("%s", error)
        end_process(error.exit_code)
    except BaseException:
        log.exception("internal error of %s", order["name"])
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


def end_process(code: int) -> NoReturn:
    """Ends at once: threads that still wait, in XLA too, would abort a Python that takes itself apart."""
    logging.shutdown()
    os._exit(code)
