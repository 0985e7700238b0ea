"""Runs one fuzz target with atheris: `python -m tests.fuzz.fuzzer TARGET CORPUS [libFuzzer options]`.

`make fuzz` starts it for every target (`tests/fuzz/__main__.py`).
"""

from __future__ import annotations

import logging
import sys

import atheris

# Only our own code and the parsers in Python below it: coverage of JAX or torch would drown theirs.
INSTRUMENTED = [
    "cgc",
    "cs_runtime",
    "cs_stream",
    "cs_system",
    "cs_toolkit",
    "csrun",
    "cstorch",
    "estimator",
    "json",
    "pickletools",
    "yaml",
]


def main() -> None:
    """Run the command line; libFuzzer ends the process."""
    logging.disable()
    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz.target import find_target

        target = find_target(name)
        target.seeds()  # imports what parsers import late
    atheris.Setup(sys.argv, target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
