"""Entry point of the wrappers in bin/: check that this Python can run the toolkit, then call the command."""

# The wrappers use the first Python that they find, so this module must load on old versions without packages.

import os
import signal
import sys

OLDEST_PYTHON = (3, 11)


def run(program: str, module: str) -> None:
    """Call `main` of `module` as the command `program`, from the checkout that is first in sys.path.

    Exits with 1 and one line if Python is too old or a package is missing.
    """
    sys.argv[0] = program
    if sys.version_info < OLDEST_PYTHON:
        _refuse(program, "Python {}.{} is too old, the toolkit needs 3.11 or newer".format(*sys.version_info))
    from importlib import import_module

    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:  # instead of a traceback; nothing has been started yet
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    try:
        command = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == module.partition(".")[0]:
            raise
        _refuse(program, f"the Python package {error.name} is missing for {sys.executable}")
    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command.main()


def _refuse(program: str, reason: str) -> None:
    sys.stderr.write(f"{program}: {reason}: run 'make setup' in {sys.path[0]}\n")
    sys.exit(1)
