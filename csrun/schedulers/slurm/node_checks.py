"""Checks of the nodes themselves: a small job runs a probe on each, which connects back."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from csrun.doctor.findings import Finding
from csrun.schedulers.slurm.arguments import STEP_WORDS
from csrun.schedulers.slurm.errors import shortened_complaint
from csrun.schedulers.slurm.hostlist import compress_hostlist
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.tasks.environment import Toolkit

START_LIMIT_S = 20
ANSWER_LIMIT_S = 20.0
SKEW_LIMIT_S = 2.0
"""Logs of several nodes are read side by side; munge refuses from 300 s on."""
SUMMARY = "Exited with exit code"
"""In srun's own line about a task that has failed."""
_LINE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe has seen.

    Attributes:
        shared: the doctor's file is visible under the same path.
        missing: paths that a job needs and that are not there.
        skew_s: the node's clock minus ours, the way of the message included.
    """

    node: str
    shared: bool
    missing: tuple[str, ...]
    skew_s: float


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """What came of the probe's job: the answers, and what srun said if it failed."""

    answers: tuple[Answer, ...]
    complaint: str


def srun_words(count: int, options: SlurmOptions) -> tuple[str, ...]:
    """What in front of a command runs it on `count` nodes; a cluster that is busy is not waited for."""
    return (
        "srun",
        *STEP_WORDS,
        "--job-name=csrun-doctor",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        f"--immediate={START_LIMIT_S}",
        *options.words,
    )


def probe_nodes(
    count: int,
    options: SlurmOptions,
    environment: Mapping[str, str],
    toolkit: Toolkit,
    cwd: Path,
    needed: Sequence[str],
    ports: tuple[int, int] | None,
) -> ProbeRun:
    """Runs the probe on `count` nodes; a cluster that is busy is not waited for.

    Args:
        count: nodes.
        options: partition, account and so on of the site's jobs.
        environment: of the caller, without the variables of an enclosing job.
        toolkit: whose interpreter runs the probe.
        cwd: directory that has to be visible everywhere.
        needed: further paths that every node must have.
        ports: Slurm's SrunPortRange; None: any port.
    """
    secret = token_hex(8)
    token_file = cwd / f".csrun-doctor-{secret}"
    token_file.touch()
    try:
        with _listen(ports) as listener:
            script = Path(__file__).with_name("probe.py")
            words = [
                *srun_words(count, options),
                *[str(toolkit.python), "-I", "-S", str(script)],
                *[str(token_file), str(listener.getsockname()[1]), secret, *needed],
            ]
            return _gather(words, listener, environment, secret, count)
    finally:
        with suppress(OSError):
            token_file.unlink()


def is_busy(complaint: str) -> bool:
    """Whether srun has given up because no node was free: that says nothing about a run."""
    return "nodes are busy" in complaint or "Immediate execution" in complaint


def node_findings(run: ProbeRun, count: int) -> Iterator[Finding]:
    """What the answers mean; pure."""
    if not run.answers:
        said = shortened_complaint(run.complaint) or "no node has answered"
        if is_busy(run.complaint):
            text = f"not checked: {count} nodes were not free within {START_LIMIT_S} s"
            yield Finding("on the nodes", "note", text, "run it again later, or with fewer --nodes")
            return
        advice = "try by hand: srun --nodes=1 hostname; nodes must reach this machine's ports"
        yield Finding("on the nodes", "fail", f"the probe did not run: {said}", advice)
        return
    nodes = compress_hostlist(sorted(answer.node for answer in run.answers))
    if len(run.answers) < count:
        text = f"only {nodes} of {count} nodes connected back to this machine"
        advice = "let the nodes reach this machine's ports (SrunPortRange of slurm.conf names them)"
        yield Finding("connections", "fail", text, advice)
    else:
        yield Finding("connections", "ok", f"{nodes} connected back to this machine")
    blind = sorted(answer.node for answer in run.answers if not answer.shared)
    if blind:
        text = f"this directory is not the same on {compress_hostlist(blind)}"
        yield Finding(
            "shared files", "fail", text, "work in a directory that all nodes share (df -h . tells)"
        )
    else:
        yield Finding("shared files", "ok", "all of them see this directory")
    yield from _missing_findings(run.answers)
    worst = max(run.answers, key=lambda answer: abs(answer.skew_s))
    if abs(worst.skew_s) > SKEW_LIMIT_S:
        text = f"the clock of {worst.node} is {worst.skew_s:+.1f} s off this machine's"
        yield Finding(
            "clocks", "fail" if abs(worst.skew_s) > 60 else "note", text, "ask for NTP on the nodes"
        )
    else:
        yield Finding("clocks", "ok", f"at most {abs(worst.skew_s):.1f} s apart")


def _missing_findings(answers: Sequence[Answer]) -> Iterator[Finding]:
    missing = sorted({path for answer in answers for path in answer.missing})
    for path in missing:
        nodes = compress_hostlist(sorted(answer.node for answer in answers if path in answer.missing))
        yield Finding(
            "on the nodes", "fail", f"{path} is not there on {nodes}", "put it where all nodes see it"
        )
    if not missing:
        yield Finding("on the nodes", "ok", "toolkit, image and mounted directories are there")


def _listen(ports: tuple[int, int] | None) -> socket.socket:
    first, last = ports or (0, 0)
    for port in range(first, last + 1):
        listener = socket.socket()
        try:
            listener.bind(("", port))
        except OSError:
            listener.close()
            continue
        listener.listen(128)
        return listener
    raise OSError(f"no free port in {first}-{last}")


def _gather(
    words: Sequence[str], listener: socket.socket, environment: Mapping[str, str], secret: str, count: int
) -> ProbeRun:
    listener.settimeout(0.1)
    answers: list[Answer] = []
    with subprocess.Popen(
        words, env=environment, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as srun:
        try:
            deadline_s = time.monotonic() + START_LIMIT_S + ANSWER_LIMIT_S
            while len(answers) < count and time.monotonic() < deadline_s:
                ended = srun.poll() is not None
                answer = _accept(listener, secret)
                if answer:
                    answers.append(answer)
                elif ended:
                    break
        finally:
            with suppress(subprocess.TimeoutExpired):
                srun.wait(5)
            if srun.poll() is None:
                srun.terminate()
        complaint = srun.stderr.read() if srun.stderr else ""
    return ProbeRun(tuple(answers), complaint)


def _accept(listener: socket.socket, secret: str) -> Answer | None:
    """The next probe's answer; None if nobody came now, or somebody else."""
    try:
        link, _ = listener.accept()
    except TimeoutError:
        return None
    arrived_s = time.time()
    with link:
        link.settimeout(5)
        data = b""
        try:
            while not data.endswith(b"\n") and len(data) < _LINE_BYTES:
                piece = link.recv(_LINE_BYTES)
                if not piece:
                    break
                data += piece
            seen = json.loads(data)
            if seen["secret"] != secret:
                return None
            return Answer(seen["node"], seen["shared"], tuple(seen["missing"]), seen["time_s"] - arrived_s)
        except (OSError, ValueError, KeyError, TypeError):
            return None
