"""The scheduler for Flux, installed next to the toolkit, and instances of Flux on this machine."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flux.instance import Instance, Site, until

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(HERE))  # for `csrun_flux` in this process

COMMANDS = {
    "csrun": "csrun.commands.csrun",
    "csrun_cpu": "csrun.commands.cpu",
    "csrun_wse": "csrun.commands.wse",
    "cs_system": "cs_runtime.system_command",
}


@pytest.fixture(scope="session")
def bin_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment in which the toolkit and the scheduler are installed, as pip would."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    others = [path for path in sys.path if path.endswith("-packages")]
    (packages / "others.pth").write_text("\n".join([*others, str(ROOT)]))
    # Not as links to the checkout: batch scripts name the programs of the environment of the toolkit.
    for package in (ROOT / "csrun", ROOT / "cs_toolkit", HERE / "csrun_flux"):
        shutil.copytree(package, packages / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    distribution = packages / "csrun_flux-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: csrun-flux\nVersion: 1.0\n")
    entry = "[csrun.schedulers]\nflux = csrun_flux.scheduler:FluxScheduler\n"
    (distribution / "entry_points.txt").write_text(entry)
    for name, module in COMMANDS.items():
        program = folder / "bin" / name
        program.write_text(f"#!{folder}/bin/python\nfrom {module} import main\nmain()\n")
        program.chmod(0o755)
    return folder / "bin"


@pytest.fixture
def site(bin_dir: Path, tmp_path: Path) -> Site:
    """A site without an instance."""
    return Site(bin_dir, tmp_path)


@pytest.fixture(scope="session")
def shared_instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """An instance of three nodes for tests that leave it as it was."""
    if shutil.which("flux") is None:
        pytest.skip("flux (flux-core) is not installed")
    instance = Instance(tmp_path_factory.mktemp("flux"), 3)
    yield instance
    instance.stop()


@pytest.fixture
def cluster(site: Site, shared_instance: Instance) -> Iterator[Site]:
    """A site with an instance of three nodes."""
    site.uri = shared_instance.uri
    yield site
    for job in site.started:
        if job.process.poll() is None:
            job.process.terminate()
            job.wait()
    site.run("flux", "cancel", "--all")
    until(lambda: not site.jobs())


@pytest.fixture
def own_instance(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with an instance of three nodes, one of which the test may destroy."""
    if shutil.which("flux") is None:
        pytest.skip("flux (flux-core) is not installed")
    instance = Instance(tmp_path_factory.mktemp("flux"), 3)
    site.uri = instance.uri
    yield site
    for job in site.started:
        if job.process.poll() is None:
            job.process.kill()
            job.wait()
    instance.stop()
