"""Random faults in whole jobs: the same command continues, and the result is that of a run without faults."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import h5py
import pytest

from tests.certificates import SiteCertificates
from tests.slurm.cluster import SlurmCluster, missing_programs
from tests.wall_clock import WallClock

from .attempts import FILLER, LEFT_LIMIT_S, Attempt, small_disk
from .cases import LAST_STEP, Case, Fault, parse_case, selected_cases
from .site import Site

USUAL = ("1:1474", "1:9631")
ATTEMPTS = 4


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteCertificates]:
    """The authority of all cases; their programs use its certificate for systems with TLS."""
    site = SiteCertificates(tmp_path_factory.mktemp("certificates"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CS_CERTS", str(site.user.directory))
        yield site


@pytest.fixture(scope="module")
def get_site(
    certificates: SiteCertificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Case], Site]]:
    """Return the system of a case, which serves all cases of the same settings."""
    sites: dict[tuple[bool, ...], Site] = {}
    with ExitStack() as stack:

        def get(case: Case) -> Site:
            key = (case.tls, case.shares_memory, case.standing)
            if key not in sites:
                folder = tmp_path_factory.mktemp("site")
                sites[key] = stack.enter_context(
                    Site(folder, certificates if case.tls else None, case.shares_memory, case.standing)
                )
            return sites[key]

        yield get


@pytest.fixture(scope="module")
def get_cluster() -> Iterator[Callable[[], SlurmCluster]]:
    """Start the cluster when the first case needs it."""
    started: list[SlurmCluster] = []
    with ExitStack() as stack:

        def get() -> SlurmCluster:
            if missing := missing_programs():
                pytest.skip(f"Slurm is not installed ({', '.join(missing)})")
            if not started:
                started.append(stack.enter_context(SlurmCluster(4, isolate=True)))
            return started[0]

        yield get


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which most cases find their program compiled."""
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def get_expected(
    get_site: Callable[[Case], Site], artifacts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Case], dict[str, str]]:
    """Return the result of a case without faults."""
    results: dict[tuple[str, str, int], dict[str, str]] = {}

    def get(case: Case) -> dict[str, str]:
        key = (case.front_end, case.execution, case.wafers)
        if key not in results:
            folder = tmp_path_factory.mktemp("expected")
            plain = replace(case, slurm=False, workers=(1, 1), faults=())
            attempt = Attempt(plain, get_site(plain), None, folder, 1, {"COMPILE_DIR": str(artifacts)})
            try:
                assert attempt.end() == 0, attempt.output
                results[key] = read_result(folder / "model_dir")
            finally:
                attempt.clean_up()
        return results[key]

    return get


def read_result(model_dir: Path) -> dict[str, str]:
    """Return the digests of the last checkpoint's contents and of the order of the input, by name."""
    found = {}
    for file in model_dir.glob(f"model.ckpt-{LAST_STEP}.[di]*"):
        found[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    with suppress(FileNotFoundError), h5py.File(model_dir / f"checkpoint_{LAST_STEP}.mdl") as saved:

        def read(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset):
                found[name] = hashlib.sha256(item[()].tobytes()).hexdigest()

        saved.visititems(read)
    assert found, sorted(model_dir.rglob("*"))
    last = json.loads((model_dir / "input_order.jsonl").read_text().splitlines()[-1])
    assert (last["step"], last["digest_from"]) == (LAST_STEP, 0)
    return {**found, "order": last["digest"]}


def check_end(case: Case, attempt: Attempt, code: int, done: Sequence[Fault]) -> None:
    """Check the exit code of an attempt, and that its last lines say how to continue."""
    output = attempt.output
    allowed = {0}.union(*(fault.exit_codes() for fault in done))
    assert code in allowed, f"exit code {code}, expected one of {allowed}: {output[-6000:]}"
    assert "Traceback (most recent call last)" not in output, output[-6000:]
    if code not in (0, -signal.SIGKILL) and re.search(r"^chief \| .*global step \d+: loss", output, re.M):
        # A PyTorch program with a loop of its own chooses the checkpoint from which it starts.
        hint = {
            "tensorflow": "to continue: csrun_wse ",
            "torch": ".*(start from .*checkpoint_.* to resume|no checkpoint)",
        }
        for line in (r"training was at global step \d+", hint[case.front_end]):
            assert re.search(rf"^csrun_wse: {line}", output, re.M), output[-6000:]


def left_files(folder: Path) -> list[Path]:
    """Return the files of a completed run that nobody needs."""
    names = re.compile(r"\.(?!training\.lock).*|crash-.*|.*\.tmp|.*temp.*")
    found = [path for path in folder.rglob("*") if names.fullmatch(path.name)]
    return [*found, *(path for path in (folder / "tmp").rglob("*") if path.is_file())]


@contextmanager
def site_of(
    case: Case,
    get_site: Callable[[Case], Site],
    certificates: SiteCertificates,
    directory: Path,
    clock: WallClock | None,
) -> Iterator[Site]:
    """Return the system of a case: a separate one if its disk or its clock is the victim."""
    has_disk = ("fill", "memoryx") in case.victims
    if not has_disk and clock is None:
        yield get_site(case)
        return
    with ExitStack() as stack:
        if has_disk:
            stack.enter_context(small_disk(directory / "memoryx"))
        environment = {} if clock is None else clock.environment()
        used = certificates if case.tls else None
        yield stack.enter_context(Site(directory, used, case.shares_memory, case.standing, environment))


def strike(attempt: Attempt, pending: list[Fault], clocks: dict[str, WallClock]) -> list[Fault]:
    """Strike an attempt with the next faults until it ends; return those that had a victim."""
    done = []
    while pending and attempt.wait_for(pending[0]):
        fault = pending.pop(0)
        found = attempt.strike(fault, clocks)
        done += [fault] if found else []
        print(f"{fault}: {'done' if found else 'the job has ended before'}")
    return done


def selected() -> list[object]:
    """Return the parameters of the usual suite, and those of the environment."""
    usual = [pytest.param(parse_case(text), id=text) for text in USUAL]
    return usual + [pytest.param(case, id=case.name, marks=pytest.mark.soak) for case in selected_cases()]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", selected())
def test_random_faults(
    case: Case,
    get_site: Callable[[Case], Site],
    get_cluster: Callable[[], SlurmCluster],
    get_expected: Callable[[Case], dict[str, str]],
    certificates: SiteCertificates,
    artifacts: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    print(case)
    kinds = {kind for kind, _ in case.victims}
    if "clock" in kinds and WallClock.COMPILER is None:
        pytest.skip("a clock that jumps needs a C compiler")
    if "fill" in kinds and os.geteuid() != 0:
        pytest.skip("only root mounts a small disk")
    cluster = get_cluster() if case.slurm else None
    expected = get_expected(case)
    began_s = time.monotonic()
    folder = tmp_path / "run"
    clocks = {}
    for kind, victim in case.victims:
        if kind == "clock":
            (tmp_path / victim).mkdir()
            clocks[victim] = WallClock(tmp_path / victim)
    environment = {"COMPILE_DIR": str(folder / "compiled" if case.compiles else artifacts)}
    if "job" in clocks:
        environment |= clocks["job"].environment()
    pending, done, codes = list(case.faults), list[Fault](), list[int]()
    with ExitStack() as stack:
        site = stack.enter_context(
            site_of(case, get_site, certificates, tmp_path / "site", clocks.get("system"))
        )
        stack.callback(lambda: print(site.log()))  # which pytest shows if the test fails
        if ("fill", "job") in case.victims:
            stack.enter_context(small_disk(folder))
        (folder / "tmp").mkdir(parents=True)
        while not codes or codes[-1] != 0:
            assert len(codes) < ATTEMPTS, f"not complete after the exit codes {codes}"
            attempt = Attempt(case, site, cluster, folder, case.workers[bool(codes)], environment)
            stack.callback(attempt.clean_up)
            struck = strike(attempt, pending, clocks)
            codes.append(attempt.end())
            print(f"attempt {len(codes)}: exit code {codes[-1]} at {time.monotonic() - began_s:.1f} s")
            damaged = {name: network.end_damage() for name, network in site.networks.items()}
            done += [fault for fault in struck if fault.kind != "damage" or damaged[fault.victim]]
            for disk in (folder, site.disk):
                (disk / FILLER).unlink(missing_ok=True)
            check_end(case, attempt, codes[-1], struck)
            attempt.wait_until_gone()
            site.wait_until_idle(LEFT_LIMIT_S)
        assert read_result(folder / "model_dir") == expected
        assert not left_files(folder)
    result = {
        "codes": codes,
        "struck": [f"{fault.kind} {fault.victim}" for fault in done],
        "missed": len(case.faults) - len(done),
        "seconds": time.monotonic() - began_s,
    }
    record_property("soak", result)
