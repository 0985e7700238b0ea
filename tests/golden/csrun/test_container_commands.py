"""The words that start a program in a container.

`UPDATE_GOLDEN=1 pytest tests/golden/csrun` writes the file again; look at the difference.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path, PurePath
from shlex import join

from csrun.site import CONTAINERS, Site
from csrun.tasks.command import Image, bind_directories, wrap_command

GOLDEN = Path(__file__).parent / "container_commands.txt"

PROGRAM = ("python", "run.py", "--mode=train", "a b", "$HOME", "it's")
PLAIN = Site(container_image="/images/cbcore.sif")
FULL = Site(
    container_image="/images/cb core.sif",
    container_options=("--no-home", "--env", "A=b c"),
    mount_dirs=("/data", "/home", "/home/me/project", "/lab/ml data"),
)


def test_the_commands_of_all_runtimes() -> None:
    lines = []
    for container in CONTAINERS:
        for title, site, has_environment in (("plain", PLAIN, False), ("everything set", FULL, True)):
            cwd = PurePath("/home/me/project")
            logs = cwd / "csrun_logs" / "job"
            binds = bind_directories([cwd, *site.mount_dirs, logs, cwd / "x" / "..", ""])
            image = Image(site.container_image, has_environment)
            words = wrap_command(PROGRAM, replace(site, container=container), image, cwd, binds)
            lines += [f"# {container}, {title}", join(words), ""]
    text = "\n".join(lines)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")
