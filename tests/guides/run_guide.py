"""Runs the commands of a guide as a user types them: `python tests/guides/run_guide.py docs/how-to/slurm.md`.

All lines go to one shell, in a new folder, with its own home, network and processes, so that
every port of the page is free and nothing is left. A line that starts a server ends without waiting for it,
as in a terminal of its own; the next line waits until the server says that it is ready. Servers of a block
end where a later block starts some.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[1] / name) for name in ("slurm", "containers"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "unit" / "docs"))
sys.path.append(str(Path(__file__).resolve().parent))

import pages
from cluster import SlurmCluster
from image import make_image
from packages import make_packages
from surroundings import ADDRESSES, CHECKOUT, EXAMPLE, EXIT_CODES, GUIDES, NOT_RUN, STANDS_FOR, Guide

ROOT = Path(__file__).resolve().parents[2]
READY_LIMIT_S = 60.0
SERVER = re.compile(r"\bcs_system (memoryx )?(serve|member)\b")
SYSTEM = re.compile(r"\bcs_system serve\b")
TAIL_LINES = 60
SITE = "gres_resource: cs:1\ngres_node: cs-node1\ndef_cpus_per_task: 1\n"
INSIDE = "--inside"


class FailedError(Exception):
    """A command of the page does not behave as the page says."""


class Shell:
    """One bash; all output goes to a file.

    Args:
        folder: in which it starts.
        output: the file.
        environment: its variables.
    """

    def __init__(self, folder: Path, output: Path, environment: dict[str, str]) -> None:
        self.output = output
        self._ready = 0
        self.has_system = False
        reading, writing = os.pipe()
        with output.open("ab") as file:
            self._bash = subprocess.Popen(
                ["bash", "--norc"],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                pass_fds=(writing,),
            )
        os.close(writing)
        self._codes = os.fdopen(reading)
        self._marker = f"echo $? >&{writing}"

    def run(self, line: str) -> int:
        """Runs a line to its end; its exit code."""
        self.wait_for_servers()
        return self._send(f"{{ {line}\n}} </dev/null")

    def start(self, line: str) -> None:
        """Starts a server and does not wait; a second CS system takes the place of the first."""
        if self.has_system and SYSTEM.search(line):
            self.wait_for_servers()
            self.end_servers()
        self.has_system |= bool(SYSTEM.search(line))
        self._ready += "member" not in line
        self._send(line if line.endswith("&") else f"{line} &")

    def end_servers(self) -> None:
        """Ends all servers."""
        self._send('[ -z "$(jobs -p)" ] || { kill $(jobs -p); wait; }')
        self._ready = self.texts()
        self.has_system = False

    def wait_for_servers(self) -> None:
        """Waits until all that were started accept calls."""
        end_s = time.monotonic() + READY_LIMIT_S
        while self.texts() < self._ready:
            if time.monotonic() > end_s:
                raise FailedError("a server is not ready")
            time.sleep(0.05)

    def texts(self) -> int:
        """Count the servers that have reported that they are ready."""
        return len(re.findall(r" ready: --", self.output.read_text(errors="replace")))

    def _send(self, text: str) -> int:
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{text}\n{self._marker}\n".encode())
        self._bash.stdin.flush()
        return int(self._codes.readline() or -1)


def lines_of(guide: Guide) -> Iterator[list[str]]:
    """The lines of each block of a guide, without those of comments."""
    elsewhere = {heading for other in GUIDES if other.page == guide.page for heading in other.headings}
    for block in pages.blocks(ROOT / guide.page):
        if block.heading in guide.headings or not (guide.headings or block.heading in elsewhere):
            yield [line for _, line in block.lines if not line.startswith("#")]


def typed(line: str) -> str:
    """Return the line with a reader's values instead of its placeholders."""
    for word, value in STANDS_FOR.items():
        line = line.replace(word, value)
    return line


def command_of(line: str) -> str:
    """The line without its comment."""
    return re.sub(r"\s+# .*", "", line)


def run_guide(guide: Guide, folder: Path) -> None:
    """Runs all lines; raises FailedError at the first that fails."""
    home = folder / "home"
    home.mkdir()
    with ExitStack() as stack:
        environment = variables(guide, home)
        if guide.nodes:
            cluster = stack.enter_context(SlurmCluster(guide.nodes, isolate=True))
            environment |= {"SLURM_CONF": cluster.environment["SLURM_CONF"]}
        shell = Shell(place(guide, folder, home), folder / "output", environment)
        prepare(guide, shell, home)
        for block in lines_of(guide):
            run_block(guide, block, shell)
        shell.wait_for_servers()
        shell.end_servers()


def run_block(guide: Guide, lines: list[str], shell: Shell) -> None:
    if any(SERVER.search(line) for line in lines):
        shell.end_servers()
    for line in lines:
        command = command_of(line)
        if command in NOT_RUN.get(guide.page, {}):
            continue
        if not shell.has_system and "--cs_ip=" in line and not SERVER.search(line):
            shell.start("cs_system serve --host=0.0.0.0 --insecure")
        started_s = time.monotonic()
        print(f"$ {command}", flush=True)
        if SERVER.search(line):
            shell.start(typed(command))
            continue
        code = shell.run(typed(command))
        print(f"  {time.monotonic() - started_s:.1f} s", flush=True)
        if code != EXIT_CODES.get((guide.page, command), 0):
            raise FailedError(f"exit code {code} of: {line}")


def variables(guide: Guide, home: Path) -> dict[str, str]:
    """Return the environment of a user without settings."""
    kept = ("LANG", "TERM", "TZ")
    clean = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    commands = "" if guide.empty else f"{ROOT / 'bin'}:{ROOT / '.venv/bin'}:"
    return {
        **clean,
        "HOME": str(home),
        "TMPDIR": str(home),
        "PATH": f"{commands}/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "EDITOR": str(home / "editor"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(home / "packages"),
    }


def place(guide: Guide, folder: Path, home: Path) -> Path:
    """Makes the folder in which the commands run."""
    work = folder / "work"
    work.mkdir()
    if guide.place == CHECKOUT:
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, names.split("\0")):
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, work / name)
        (work / ".venv").symlink_to(ROOT / ".venv")
    return work


def prepare(guide: Guide, shell: Shell, home: Path) -> None:
    """Create the files that the page assumes."""
    editor = home / "editor"
    editor.write_text(f'#!/bin/sh\ncat >> "$1" <<END\n{SITE}END\n')
    editor.chmod(0o755)
    if guide.empty:
        make_packages(home / "packages")
    if guide.image:
        make_image(home / "software" / "image")
    before = []
    if guide.place == EXAMPLE:
        before.append("csrun init fc_mnist && cd models/fc_mnist/tf")
        before.append("sed -i 's/max_steps: 1000/max_steps: 200/' configs/*.yaml")
        if guide.nodes:
            before.append("mkdir -p ~/.config/csrun && $EDITOR ~/.config/csrun/site.yaml")
    if guide.program is not None:
        program = pages.python_blocks(ROOT / guide.page)[guide.program]
        before.append(f"printf %s {shlex.quote(program)} > run.py")
    before += [guide.before] if guide.before else []
    for line in before:
        if code := shell.run(line):
            raise FailedError(f"exit code {code} of what comes before the page: {line}")


def set_up_loopback() -> None:
    """Brings the only interface of a new network up, with all addresses of the documents."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 0x1))  # SIOCSIFFLAGS, IFF_UP
        for number, address in enumerate(ADDRESSES):
            name, packed = f"lo:{number}".encode(), socket.inet_aton(address)
            fcntl.ioctl(any_socket, 0x8916, struct.pack("16shH4s16x", name, socket.AF_INET, 0, packed))


def apart(guide: Guide) -> list[str]:
    """Return the command that runs a guide in new namespaces, with which all its processes end."""
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    words = ["unshare", *root, "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
    return [*words, sys.executable, __file__, str(guide), INSIDE]


def main(arguments: list[str]) -> int:
    """Run the guides with these names, or all without names; return the exit code."""
    unknown = [name for name in arguments if name != INSIDE and name not in map(str, GUIDES)]
    if unknown:
        known = ", ".join(map(str, GUIDES))
        sys.stderr.write(f"run_guide.py: error: no guide named {', '.join(unknown)}; expected: {known}\n")
        return 2
    if INSIDE not in arguments:
        chosen = [guide for guide in GUIDES if str(guide) in arguments or not arguments]
        return max(subprocess.run(apart(guide), check=False).returncode for guide in chosen)
    (guide,) = (guide for guide in GUIDES if str(guide) == arguments[0])
    set_up_loopback()
    folder = Path(tempfile.mkdtemp(prefix="guide-"))
    folder.chmod(0o755)
    try:
        run_guide(guide, folder)
    except FailedError as failure:
        tail = (folder / "output").read_text(errors="replace").splitlines()[-TAIL_LINES:]
        print(f"{guide}: {failure}\n", *tail, sep="\n")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
