"""Parses a file with a fuzz target: `python -m tests.fuzz.replay TARGET --file FILE` repeats a finding.

Without a file it parses the corpus of targets and its mutations, as the tests do where a library may crash.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from tests.fuzz.target import Target, find_target, mutations


def check_corpus(target: Target) -> None:
    """Parse the corpus of a target, and mutations of it.

    Raises:
        AssertionError: an input raises an error that callers do not handle, or the first seed is refused.
    """
    corpus = target.corpus()
    assert target.check(corpus[0]), f"{target.name}: its first seed is refused"
    for data in (*corpus, *mutations(target.name, corpus, target.mutations)):
        try:
            target.check(data)
        except Exception as error:
            raise AssertionError(f"{target.name}: finding {error!r} for {data[:2000]!r}") from error


def main() -> None:
    """Run the command line."""
    logging.disable()
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.replay", description=__doc__)
    parser.add_argument("targets", nargs="+", help="names of targets")
    parser.add_argument(
        "--file", type=Path, action="append", default=[], help="parse it instead of the corpus"
    )
    args = parser.parse_args()
    for name in args.targets:
        target = find_target(name)
        if not args.file:
            check_corpus(target)
        for path in args.file:
            print(f"{path}: {'accepted' if target.check(path.read_bytes()) else 'refused'}")


if __name__ == "__main__":
    main()
