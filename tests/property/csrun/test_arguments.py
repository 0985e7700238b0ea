"""The user's arguments arrive as they were given, whatever is in them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from csrun.commands.cpu import describe
from csrun.schedulers.base import ProgramPlan
from csrun.tasks.environment import EnvironmentChange

BIN = Path(__file__).resolve().parents[3] / "bin"
SHOW = "import json, os, sys; print(json.dumps([os.fsencode(word).hex() for word in sys.argv[1:]]))"

# Arguments as the kernel knows them: any bytes but NUL; and those that a launcher might take for its own.
words = st.one_of(
    st.binary(max_size=20).map(lambda data: data.replace(b"\0", b"")),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20).map(str.encode),
    st.sampled_from([b"", b" ", b"--", b"--help", b"-h", b"--total-nodes=3", b"--dry-run", b"$HOME", b"a;b"]),
    st.sampled_from([b"'", b'"', b"\\", b"`id`", b"$(id)", b"*", b"a\nb", b"\t", b"&&", b"|", b"#", b"~"]),
)
hard = [
    b"two words",
    b'"quoted"',
    b"it's",
    b"; rm -rf x",
    b"$HOME",
    b"",
    b"--cyclic",
    b"--",
    b"\xff\xfe",
    b"\n",
]


@pytest.mark.parametrize("program", ["csrun_cpu", "csrun_wse"])
@settings(max_examples=15)
@given(arguments=st.lists(words, max_size=8))
@example(arguments=hard)
def test_arguments_arrive_unchanged(program: str, arguments: list[bytes]) -> None:
    flags = [] if program == "csrun_cpu" else ["--tasks-per-node=1", "--log-dir=logs"]
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            [BIN / program, *flags, sys.executable, "-I", "-S", "-c", SHOW, *arguments],
            cwd=folder,
            capture_output=True,
            timeout=60,
            check=True,
        )
    arrived = json.loads(result.stdout.decode().removeprefix("chief | "))
    assert [bytes.fromhex(word) for word in arrived] == arguments


@given(arguments=st.lists(words, max_size=8))
@example(arguments=hard)
def test_the_command_of_a_dry_run_can_be_pasted_into_a_shell(arguments: list[bytes]) -> None:
    command = ("python", *map(os.fsdecode, arguments))
    shown = describe(ProgramPlan(command, {}, "here"), EnvironmentChange({}), Path("/"))
    assert tuple(shlex.split(shown.partition("command: ")[2])) == command
