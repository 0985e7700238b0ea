"""Fuzzes the parsers of the toolkit with atheris: `make fuzz`, or `python -m tests.fuzz [TARGET...]`.

Inputs that reach new code are kept in a directory outside of the repository, where the next run continues.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from cs_system.errors import READ_LIMIT_SIGNAL
from tests.fuzz.target import DIRECTORY_VARIABLE, find_target, memory_directory, target_names

_PROGRESS = re.compile(r"#(\d+)\s+\w+ +cov: (\d+)")
_EXCEPTION = " === Uncaught"
_ADDED_S = 60  # for imports, and inputs of earlier runs
_TIMEOUT_S, _MEMORY_MB, _MAX_BYTES = 20, 4096, 32_768


@dataclass(frozen=True)
class Result:
    """The result of a target: number of inputs, covered edges, and the files of findings.

    Attributes:
        has_crashed: The last process has ended without an exception.
        crashes: Crashes of a library that are known to occur.
    """

    target: str
    executions: int
    coverage: int
    findings: tuple[Path, ...]
    output: str
    has_crashed: bool = False
    crashes: int = 0


def fuzz(target: str, seconds: int, directory: Path) -> Result:
    """Fuzz a target for some seconds, or until its first finding."""
    corpus, found = directory / "corpus" / target, directory / "findings" / target
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(find_target(target).corpus()):
        (corpus / f"seed-{number}").write_bytes(data)
    end_s, crashes, executions = time.monotonic() + seconds, 0, 0
    while True:
        result = _fuzz_once(target, max(1, round(end_s - time.monotonic())), corpus, found)
        executions += result.executions
        if not (result.has_crashed and find_target(target).may_crash):
            return replace(result, executions=executions, crashes=crashes)
        crashes += 1
        for path in result.findings:
            path.unlink()
        if time.monotonic() >= end_s:
            return replace(result, executions=executions, crashes=crashes, findings=())


def _fuzz_once(target: str, seconds: int, corpus: Path, found: Path) -> Result:
    before = set(found.iterdir())
    options = {
        "max_total_time": seconds,
        "timeout": _TIMEOUT_S,
        "rss_limit_mb": _MEMORY_MB,
        "max_len": _MAX_BYTES,
        "artifact_prefix": f"{found}/",
        "print_final_stats": 1,
        "detect_leaks": 0,
    }
    may_crash = find_target(target).may_crash
    try:
        with memory_directory() as files:
            done = subprocess.run(
                [
                    sys.executable,
                    *("-m", "tests.fuzz.fuzzer", target, str(corpus)),
                    *(f"-{name}={value}" for name, value in options.items()),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, DIRECTORY_VARIABLE: files},
                timeout=seconds + (2 if may_crash else 10) * _ADDED_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        if not may_crash:
            raise
        return Result(target, 0, 0, (), "", has_crashed=True)  # a crash in which libFuzzer itself hangs
    output = done.stdout.decode(errors="replace")
    progress = _PROGRESS.findall(output) or [("0", "0")]
    new = {path for path in found.iterdir() if not path.name.startswith("slow-unit")} - before
    if done.returncode and not new and done.returncode != -READ_LIMIT_SIGNAL:
        raise RuntimeError(f"{target}: the fuzzer has failed:\n{output[-4000:]}")
    has_crashed = done.returncode != 0 and _EXCEPTION not in output
    return Result(target, int(progress[-1][0]), int(progress[-1][1]), tuple(sorted(new)), output, has_crashed)


def main() -> int:
    """Run the command line; return its exit code, 1 if there is a finding."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", default=["*"], help="names of targets, or patterns")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default %(default)s)")
    parser.add_argument("--directory", type=Path, default=cache / "cs_fuzz", help="default: %(default)s")
    args = parser.parse_args()
    names = [name for name in target_names() if any(fnmatch(name, wanted) for wanted in args.targets)]
    if not names:
        parser.error(f"no target is named {', '.join(args.targets)}; there are {', '.join(target_names())}")
    print(f"{'target':<28} {'executions':>12} {'coverage':>9}  findings", flush=True)
    code = 0
    for name in names:
        result = fuzz(name, args.seconds, args.directory.resolve())
        crashes = f"; {result.crashes} known crashes of the library" if result.crashes else ""
        print(
            f"{name:<28} {result.executions:>12,} {result.coverage:>9,}  {len(result.findings)}{crashes}",
            flush=True,
        )
        for path in result.findings:
            code = 1
            start = result.output.rfind(_EXCEPTION)
            print(result.output[max(start, len(result.output) - 6000) :])
            print(f"repeat it with: {sys.executable} -m tests.fuzz.replay {name} --file {path}")
    return code


if __name__ == "__main__":
    sys.exit(main())
