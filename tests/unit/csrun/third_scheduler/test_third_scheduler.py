"""A scheduler that a site has installed next to the toolkit runs jobs through every command.

`spool_scheduler.py` is installed as pip would: its module and the entry point of its distribution are in the
site-packages of an environment that has the toolkit too. No file of the toolkit knows of it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import clean_environment

ROOT = Path(__file__).resolve().parents[4]
COMMANDS = {
    "csrun": "csrun.commands.csrun",
    "csrun_cpu": "csrun.commands.cpu",
    "csrun_wse": "csrun.commands.wse",
    "cs_input_analyzer": "input_analyzer.commands",
}
HOLD = 'echo "held by $CSRUN_ROLE"; while [ ! -e go ]; do sleep 0.02; done; echo "let go"'
SHORT = ("--tasks-per-node=1", "sh", "-c", "echo $CSRUN_ROLE")

Done = subprocess.CompletedProcess[str]


@dataclass
class Site:
    """An environment with the toolkit and the spool, a folder to work in, and the spool's folder."""

    bin_dir: Path
    work: Path
    spool: Path

    @property
    def environment(self) -> dict[str, str]:
        clean = clean_environment("XDG_", "SPOOL_")
        own = {"XDG_STATE_HOME": f"{self.work}/state", "XDG_CONFIG_HOME": f"{self.work}/config"}
        return {**clean, **own, "SPOOL_DIR": str(self.spool)}

    def run(self, program: str, *words: str, **variables: str) -> Done:
        """Runs a command of the toolkit to its end."""
        return subprocess.run(
            [self.bin_dir / program, *words],
            cwd=self.work,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def submit(self, *words: str) -> str:
        """Submits a job and leaves it; its number."""
        done = self.run("csrun_wse", "--submit", "--no-follow", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.removeprefix("Submitted batch job ").strip()

    def wait_for(self, text: str, program: str, *words: str) -> Done:
        """Runs a command again and again until it says this."""
        end_s = time.monotonic() + 60
        while text not in (done := self.run(program, *words)).stdout:
            assert time.monotonic() < end_s, (text, done.stdout, done.stderr)
        return done


@pytest.fixture(scope="module")
def bin_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment in which toolkit and scheduler are installed."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    others = [path for path in sys.path if path.endswith("-packages")]
    (packages / "others.pth").write_text("\n".join([*others, str(ROOT)]))
    shutil.copytree(ROOT / "csrun", packages / "csrun", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).with_name("spool_scheduler.py"), packages)
    distribution = packages / "spool_scheduler-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: spool-scheduler\nVersion: 1.0\n")
    entry = "[csrun.schedulers]\nspool = spool_scheduler:SpoolScheduler\n"
    (distribution / "entry_points.txt").write_text(entry)
    for name, module in COMMANDS.items():
        program = folder / "bin" / name
        program.write_text(f"#!{folder}/bin/python\nfrom {module} import main\nmain()\n")
        program.chmod(0o755)
    return folder / "bin"


@pytest.fixture
def site(bin_dir: Path, tmp_path: Path) -> Site:
    """One where nobody looks into the spool's folder."""
    found = Site(bin_dir, tmp_path / "work", tmp_path / "spool")
    found.work.mkdir()
    found.spool.mkdir()
    return found


@pytest.fixture
def served(site: Site) -> Iterator[Site]:
    """One with a daemon that starts jobs."""
    daemon = subprocess.Popen(
        [site.bin_dir / "python", "-m", "spool_scheduler"], env=site.environment, cwd=site.work
    )
    try:
        end_s = time.monotonic() + 60
        while not (site.spool / "daemon").exists():
            assert time.monotonic() < end_s
            time.sleep(0.02)
        yield site
    finally:
        (site.work / "go").touch()
        daemon.terminate()
        daemon.wait(30)


def test_a_job_runs_and_waits_for_its_turn(site: Site) -> None:
    """Nothing but the folder speaks for the spool, and that is enough."""
    done = site.run("csrun_wse", "--log-dir=logs", "sh", "-c", "echo $CSRUN_ROLE; exit $CSRUN_RANK")
    assert done.returncode == 1
    assert set(done.stdout.splitlines()) == {"chief | chief", "worker 0 | worker"}
    record = json.loads((site.work / "logs" / "job.json").read_text())
    assert (record["launcher"], record["exit_code"]) == ("spool", 1)
    assert record["job_id"].startswith("spool-")
    assert "failed, exit code 1" in site.run("csrun", "status", record["job_id"]).stdout


def test_a_dry_run_starts_nothing(site: Site) -> None:
    done = site.run("csrun_wse", "--dry-run", *SHORT)
    assert done.stdout.startswith("in turn with the other jobs of the spool\njob spool-")
    script = site.run("csrun_wse", "--submit", "--dry-run", "--priority=7", *SHORT).stdout
    assert script.startswith("#!/bin/sh\n#SPOOL priority=7\n")
    assert f"exec {site.bin_dir}/csrun_wse --launcher=spool --job-id=spool-" in script
    assert not list(site.spool.glob("*.job"))
    assert not (site.work / "csrun_logs").exists()


def test_a_submitted_job_is_followed_to_its_end(served: Site) -> None:
    done = served.run("csrun_wse", "--submit", "--tasks-per-node=2", "sh", "-c", "echo $CSRUN_ROLE; exit 7")
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("Submitted batch job 1\n")
    assert "chief | chief" in done.stdout
    assert "failed, exit code 7" in done.stderr


def test_jobs_in_the_queue_are_listed_shown_and_cancelled(served: Site) -> None:
    first = served.submit("sh", "-c", HOLD)
    served.wait_for("state     running", "csrun", "status", first)
    second, third = served.submit(*SHORT), served.submit("--priority=3", *SHORT)
    assert "(Spool job 2)" in served.run("csrun", "status", second).stdout
    assert "waiting: place 2 in the spool" in served.run("csrun", "status", second).stdout
    assert "waiting: place 1 in the spool" in served.run("csrun", "status", third).stdout
    assert served.run("csrun", "cancel", second).returncode == 0
    assert json.loads(served.run("csrun", "status", "--json", second).stdout)["state"] == "cancelled"
    listed = served.run("csrun", "status").stdout.splitlines()
    assert [line.split()[1:3] for line in listed[1:]] == [
        [third, "waiting"],
        [second, "cancelled"],
        [first, "running"],
    ]
    served.wait_for("held by worker\n", "csrun", "logs", first, "worker-0")
    (served.work / "go").touch()
    followed = served.run("csrun", "logs", "--follow", third)
    assert (followed.returncode, followed.stdout) == (0, "chief\n")
    assert "let go" in served.run("csrun", "logs", first).stdout


def test_a_running_job_is_cancelled(served: Site) -> None:
    number = served.submit("sh", "-c", HOLD)
    served.wait_for("held by chief", "csrun", "logs", number)
    done = served.run("csrun", "cancel", number)
    assert (done.returncode, "cancelled, exit code 143" in done.stderr) == (0, True), done.stderr


def test_one_program_runs_when_it_is_its_turn(site: Site) -> None:
    shown = site.run("csrun_cpu", "--dry-run", "echo", "a b").stdout
    assert shown.startswith("one program when it is its turn, instead of csrun_cpu")
    assert shown.endswith(f"command: flock {site.spool}/turn echo 'a b'\n")
    done = site.run("csrun_cpu", "sh", "-c", "echo in $SPOOL_JOB; exit 5")
    assert (done.returncode, done.stdout) == (5, "in csrun_cpu\n")
    inside = site.run("csrun_cpu", "sh", "-c", "echo in $SPOOL_JOB", SPOOL_JOB="3")
    assert inside.stdout == "in 3\n"
    here = site.run("csrun_cpu", "--alloc-node=False", "sh", "-c", "echo in $SPOOL_JOB")
    assert here.stdout == "in\n"


def test_an_analysis_is_handed_to_the_scheduler(site: Site) -> None:
    """It measures on a node of the scheduler's: only there the command line is looked into."""
    lock = site.spool / "turn"
    words = ["flock", lock, "sh", "-c", "echo held; read answer"]
    holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    assert holder.stdout.readline() == "held\n"
    analyzer = [site.bin_dir / "cs_input_analyzer", "--cpus-per-task=4096", "data.py:train"]
    analysis = subprocess.Popen(
        analyzer, cwd=site.work, env=site.environment, stderr=subprocess.PIPE, text=True
    )
    with pytest.raises(subprocess.TimeoutExpired):
        analysis.wait(1)
    holder.communicate("go\n")
    _, said = analysis.communicate(timeout=60)
    assert analysis.returncode == 2
    assert "--cpus-per-task: got 4096, expected at most" in said


def test_processes_in_place_of_tasks_find_the_variables_of_tasks(site: Site) -> None:
    """Whoever starts them, an analysis or the report of a run, knows no scheduler by name."""
    code = (
        "import os; from csrun.schedulers.registry import task_variables\n"
        "print(task_variables(os.environ, 1, 3), task_variables({}, 1, 3))"
    )
    words = [site.bin_dir / "python", "-c", code]
    environment = {**site.environment, "SPOOL_JOB": "3"}
    shown = subprocess.run(words, env=environment, cwd=site.work, capture_output=True, text=True, check=True)
    assert shown.stdout == "{'SPOOL_TASK': '1 of 3'} {}\n"


def test_the_doctor_asks_the_scheduler(served: Site) -> None:
    found = json.loads(served.run("csrun", "doctor", "--json").stdout)
    assert found["would_work"]
    checks = {check["name"]: check["text"] for check in found["checks"]}
    assert "jobs run on the launcher spool" in checks["site"]
    assert checks["spool"] == "0 jobs wait"
    (served.spool / "daemon").unlink()
    without = served.run("csrun", "doctor", "--launcher=spool")
    assert without.returncode == 1
    assert "-> start it: python -m spool_scheduler" in without.stdout


def test_it_is_one_of_the_schedulers_everywhere(site: Site) -> None:
    for program in ("csrun_wse", "csrun_cpu", "cs_input_analyzer"):
        shown = " ".join(site.run(program, "--help").stdout.split())
        assert "spool: this machine, one job at a time" in shown
        assert "--priority N" in shown
    (site.work / "site.yaml").write_text("launcher: spool\n")
    named = {"CSRUN_SITE_CONFIG": f"{site.work}/site.yaml"}
    assert "jobs run with the launcher: spool" in site.run("csrun", "config", "show", **named).stdout
    assert site.run("csrun", "config", "check", "site.yaml").returncode == 0
    assert "launcher spool" in site.run("csrun_wse", "--dry-run", *SHORT, CSRUN_LAUNCHER="spool").stdout
    local = site.run("csrun_wse", "--launcher=local", *SHORT)
    assert (local.returncode, local.stdout) == (0, "chief | chief\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--launcher=spol"], "--launcher: got 'spol', expected one of: local, slurm, spool"),
        (["--priority=high"], "--priority: got 'high', expected a whole number"),
        (["--submit", "--launcher=local"], "--submit with --launcher=local"),
        (["--submit", "--requeue"], "--requeue: the spool starts no job again"),
        (["--requeue"], "--requeue without --submit"),
        (["--no-follow"], "--no-follow without --submit"),
        (["--use-sbatch", "--launcher=spool"], "--use-sbatch with --launcher=spool"),
        (["--total-nodes=2"], "--total-nodes: the spool has one node"),
    ],
)
def test_options_that_the_scheduler_lacks_are_refused(site: Site, words: list[str], message: str) -> None:
    refused = site.run("csrun_wse", *words, "true")
    assert refused.returncode == 2
    assert message in refused.stderr


def test_a_scheduler_that_cannot_be_loaded_is_said_and_others_run(bin_dir: Path, site: Site) -> None:
    (packages,) = bin_dir.parent.glob("lib/*/site-packages")
    broken = packages / "broken-1.0.dist-info"
    broken.mkdir()
    try:
        (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
        (broken / "entry_points.txt").write_text("[csrun.schedulers]\nbroken = no_such_module:Scheduler\n")
        assert site.run("csrun_wse", "--launcher=local", *SHORT).returncode == 0
        assert site.run("csrun_wse", "--help").returncode == 0
        for flags in (["--launcher=broken"], []):  # without a flag it may be the one that is wanted
            refused = site.run("csrun_wse", *flags, *SHORT)
            assert refused.returncode == 1
            assert "'broken' cannot be loaded: no_such_module:Scheduler of broken raises" in refused.stderr
    finally:
        shutil.rmtree(broken)


def test_an_entry_point_of_our_name_does_not_replace_ours() -> None:
    from csrun.schedulers.registry import BUILT_IN, scheduler

    assert {name: scheduler(name).name for name in BUILT_IN} == {name: name for name in BUILT_IN}


def test_help_is_quick_and_loads_no_duty_of_a_scheduler() -> None:
    code = (
        "import sys; from csrun.commands.wse import build_command; from csrun.site import Site\n"
        "build_command(Site()).get_help(__import__('click').Context(build_command(Site())))\n"
        "print(*sorted(name for name in sys.modules if name.startswith('csrun.schedulers.')))"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [
        "csrun.schedulers.base",
        *("csrun.schedulers.local", "csrun.schedulers.local.scheduler"),
        "csrun.schedulers.registry",
        *("csrun.schedulers.slurm", "csrun.schedulers.slurm.options", "csrun.schedulers.slurm.scheduler"),
    ]
