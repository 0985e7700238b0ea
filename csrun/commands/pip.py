"""csrun pip: manage packages of the environment that programs run in."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile

import click

from csrun.console import say
from csrun.errors import CsrunError
from csrun.site.loading import load_site
from csrun.tasks.environment import program_python, this_toolkit

PROGRAM = "csrun"

# Prints NAME==VERSION, one per line, of each installed dependency of the toolkit, but not of those that only
# its tests and benchmarks need. `tensorflow` would overwrite files of tensorflow-cpu, hence `tensorflow<0`.
_PINS = r"""
import importlib.metadata as m, re
def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()
versions = {plain(d.name): d for d in m.distributions()}
waiting, seen = [("cs-toolkit", ("tf", "torch", "s3", "cuda"))], set()
while waiting:
    name, extras = waiting.pop()
    if (name, extras) in seen or name not in versions:
        continue
    seen.add((name, extras))
    for need in versions[name].requires or ():
        optional = re.search(r"extra *== *\W([\w.-]+)", need)
        if optional and optional[1] not in extras:
            continue
        package, chosen = re.match(r"([\w.-]+) *(?:\[(.*?)\])?", need).groups()
        waiting.append((plain(package), tuple(re.split(r"[, ]+", chosen or ""))))
names = {name for name, _ in seen}
for name in sorted(names - {"cs-toolkit"}):
    print(name + "==" + versions[name].version)
if "tensorflow-cpu" in names and "tensorflow" not in versions:
    print("tensorflow<0")
"""

# Never installed: these packages would hide or overwrite modules of the same names in the toolkit.
_ORIGINAL = ("cerebras_appliance", "cerebras_pytorch", "cerebras_tensorflow")


@click.command("pip", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENT]...")
def pip(arguments: tuple[str, ...]) -> int:
    """Runs pip in the environment that programs run in.

    `install` keeps the versions of the toolkit's packages: a package that needs other versions is refused.

    \b
    Examples:
      csrun pip install tensorflow_datasets
      csrun pip list
    """
    site = load_site(os.environ).site
    if site.container != "none":
        raise CsrunError(
            f"programs run in the {site.container} image {site.container_image}; expected packages to be "
            "added to the image, or, for pure Python, to a folder that the program puts in sys.path"
        )
    python = str(program_python(site, this_toolkit()))
    if arguments[:1] != ("install",):
        return _run(python, *arguments)
    for argument in arguments[1:]:
        name = re.split(r"[^\w.-]", argument, maxsplit=1)[0].replace("-", "_").lower()
        if name in _ORIGINAL:
            raise CsrunError(
                f"the toolkit has the modules of {name} itself: programs import them without an install, "
                f"and nothing was installed; expected a command without {argument}"
            )
    with tempfile.NamedTemporaryFile("w", prefix="csrun-pip-", suffix=".txt") as constraints:
        constraints.write(_pins(python) + "".join(f"{name}<0\n" for name in _ORIGINAL))
        constraints.flush()
        code = _run(python, "install", f"--constraint={constraints.name}", *arguments[1:])
    if code:
        say(
            PROGRAM,
            "nothing was installed. Packages of the toolkit keep their versions; for a package that needs "
            "others create a separate environment, and name its interpreter as 'python' in the site settings "
            "(docs/how-to/containers.md). A package that requires 'tensorflow' works with tensorflow-cpu, "
            "one that requires 'cerebras_pytorch' with the toolkit: csrun pip install --no-deps PACKAGE",
        )
    return code


def _run(python: str, *arguments: str) -> int:
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as error:
        raise _no_interpreter(python, error) from error


def _pins(python: str) -> str:
    try:
        done = subprocess.run([python, "-c", _PINS], capture_output=True, text=True, check=False)
    except OSError as error:
        raise _no_interpreter(python, error) from error
    if done.returncode:
        raise CsrunError(f"the packages of {python} cannot be listed: {done.stderr.strip()}")
    return done.stdout


def _no_interpreter(python: str, error: OSError) -> CsrunError:
    return CsrunError(
        f"cannot run {python}: {error.strerror}; expected the interpreter of programs: correct 'python' of "
        "the site settings ('csrun config show' shows where it comes from)"
    )
