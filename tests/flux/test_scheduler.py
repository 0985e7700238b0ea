"""What the scheduler for Flux computes without Flux: command lines, texts, states, settings, places."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from csrun_flux import checks, client, options, place, plan, queue, starter

from cs_toolkit.errors import UsageError
from csrun.errors import RoleError
from csrun.jobs.layout import JobLayout
from csrun.schedulers.base import LaunchContext, LaunchRequest
from csrun.site import Site as Settings
from csrun.tasks.environment import Toolkit
from csrun.tasks.place import load_reader, reader_arguments

TASK = {
    "FLUX_JOB_ID": "\u0192hHVV8T",
    "FLUX_JOB_ID_PATH": "/\u01922vhitVu/\u0192hHVV8T",
    "FLUX_TASK_RANK": "4",
    "FLUX_JOB_SIZE": "6",
    "CSRUN_FLUX_NODE": "node3",
    "CSRUN_FLUX_CORES": "2",
}


def test_the_place_of_a_task() -> None:
    found = place.read_place({**TASK, "FLUX_JOB_ID_PATH": "/\u0192hHVV8T"})
    assert found is not None
    assert (found.rank, found.num_tasks, found.node, found.cpus_on_node) == (4, 6, "node3", 2)
    assert (found.job, found.job_id, found.step_id) == ("flux-fhHVV8T", "fhHVV8T", "")


def test_a_task_in_the_instance_of_a_batch_job() -> None:
    found = place.read_place(TASK)
    assert found is not None
    assert (found.job, found.job_id, found.step_id) == ("flux-f2vhitVu.fhHVV8T", "f2vhitVu", "fhHVV8T")


def test_outside_of_a_task_there_is_no_place_and_a_broken_one_is_named() -> None:
    assert place.read_place({"FLUX_URI": "local:///run/flux/local"}) is None
    with pytest.raises(RoleError, match="FLUX_JOB_SIZE is not set"):
        place.read_place({name: text for name, text in TASK.items() if name != "FLUX_JOB_SIZE"})
    with pytest.raises(RoleError, match="FLUX_TASK_RANK is 6 and FLUX_JOB_SIZE says 6 tasks"):
        place.read_place({**TASK, "FLUX_TASK_RANK": "6"})


def test_an_agent_finds_the_reader_by_its_arguments() -> None:
    folder, name = reader_arguments(place.read_place)
    assert name == "csrun_flux.place:read_place"
    assert load_reader(folder, name)(TASK) == place.read_place(TASK)


def test_every_task_is_assigned_to_its_node() -> None:
    def taskmap(layout: JobLayout) -> str:
        return str(options.task_arguments(layout)[1])

    assert taskmap(JobLayout(3, 2)) == "--taskmap=manual:[[0,1,2,1],[1,1,2,1],[2,1,2,1]]"
    assert taskmap(JobLayout(2, 3, None, 1)) == "--taskmap=manual:[[0,1,1,1],[1,1,3,1]]"
    cyclic = taskmap(JobLayout(3, 2, None, 1, cyclic=True))
    assert cyclic == "--taskmap=manual:[[0,1,1,1],[1,1,1,1],[2,1,1,1],[1,1,1,1],[2,1,1,1]]"


SECTION = {"queue": "wafer", "time_limit": "4h", "requires": "cs", "options": ("--exclude=a",)}
SETTINGS = Settings(sections={"flux": SECTION})


def test_flags_take_precedence_over_the_section_of_the_site() -> None:
    found = options.FluxOptions.of_site(SETTINGS, {"--queue": "debug", "--flux": "tasks=1\nverbose"})
    assert found.arguments == (
        *("--queue=debug", "--time-limit=4h", "--requires=cs", "--exclude=a", "--tasks=1", "--verbose"),
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30", 1800), ("4h", 14_400), ("1.5d", 129_600), ("", float("inf")), ("soon", None)],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert client.duration_seconds(text) == seconds


def request(**changes: Any) -> LaunchRequest:
    command = ("python", "run.py", "--mode=train", "a b")
    whole = LaunchRequest(command, command, JobLayout(3, 2, 1), None, (), 30.0, 60.0)
    return replace(whole, **changes)


CONTEXT = LaunchContext(
    job_id="flux-20261120-101530-1a2b",
    cwd=Path("/work dir"),
    environment={"PATH": "/usr/bin"},
    toolkit=Toolkit(Path("/env/bin"), None),
    site=SETTINGS,
    cpus=(0, 1),
)


def survey(**changes: Any) -> Any:
    nodes = client.Resources(("node1", "node2", "node3"), 6)
    return replace(
        plan.FluxSurvey(SETTINGS, 2, options=options.FluxOptions.of_site(SETTINGS), nodes=nodes), **changes
    )


def test_a_job_is_one_flux_run_with_an_agent_for_every_task() -> None:
    made = plan.make_plan(request(), CONTEXT, survey())
    words = " ".join(made.start)
    assert words.startswith(
        "flux run --verbose --job-name=run-1a2b --input=/dev/null --cwd=/ --nodes=3 --exclusive --ntasks=6 "
        "--taskmap=manual:[[0,1,2,1],[1,1,2,1],[2,1,2,1]] --setopt=exit-timeout=none --queue=wafer "
        "--time-limit=4h --requires=cs --exclude=a env CSRUN_FLUX_NODE={{node.name}} "
    )
    assert words.endswith(" csrun_flux.place:read_place")
    assert made.cpus_of_tasks == (1,) * 6
    assert (made.outer_job_id, made.system) == ("", None)


def test_inside_a_batch_job_its_limits_are_not_given_again() -> None:
    made = plan.make_plan(request(), CONTEXT, survey(outer_job_id="f2vhitVu"))
    assert made.outer_job_id == "f2vhitVu"
    assert not [word for word in made.start if word.startswith(("--queue", "--time-limit", "--requires"))]


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (JobLayout(4, 1), "--total-nodes=4: this Flux instance has 3 nodes"),
        (JobLayout(1, 2, 2), "needs 4 cores on a node, and the nodes have 2"),
    ],
)
def test_a_job_that_can_never_run_is_refused(layout: JobLayout, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        plan.make_plan(request(layout=layout), CONTEXT, survey())


def test_a_batch_script() -> None:
    assert plan.script(request(), CONTEXT, survey()).splitlines()[2:] == [
        "#flux: --job-name=run-1a2b",
        "#flux: '--output=/work dir/csrun_logs/flux-20261120-101530-1a2b/flux.out'",
        "#flux: --nodes=3",
        "#flux: --exclusive",
        "#flux: --queue=wafer",
        "#flux: --time-limit=4h",
        "#flux: --requires=cs",
        "#flux: --exclude=a",
        "#flux: --signal=USR1@120s",
        "",
        "cd -- '/work dir' || exit",
        "exec /env/bin/csrun_wse --launcher=flux --job-id=flux-20261120-101530-1a2b "
        "'--log-dir=/work dir/csrun_logs/flux-20261120-101530-1a2b' --total-nodes=3 --tasks-per-node=2 "
        "--cpus-per-task=1 --grace-period=30 --wind-down=60 --max-restarts=0 "
        "-- python run.py --mode=train 'a b'",
    ]


@pytest.mark.parametrize("changes", [{"requeue": True}, {"warn_before_s": 14_400.0}])
def test_what_a_batch_job_cannot_have_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"--requeue|--warn-before"):
        plan.script(request(**changes), CONTEXT, survey())


LISTED = {
    "name": "sleep",
    "nnodes": 3,
    "priority": 16,
    "t_submit": 10.0,
    "state": "SCHED",
    "username": "me",
    "urgency": 16,
    "jobid": "\u019227eMgh5",
    "dependencies": [],
    "annotations": {},
    "exception": {"occurred": False},
}
(WAITING,) = client.parse_jobs(json.dumps({"jobs": [LISTED]}))
RUNNING = replace(WAITING, job_id="fA", state="RUN", nodes="node[1-3]")


def test_jobs_and_resources_are_parsed() -> None:
    assert (WAITING.job_id, WAITING.waiting, WAITING.num_nodes) == ("f27eMgh5", True, 3)
    assert client.parse_jobs(json.dumps(LISTED)) == [WAITING]
    assert client.parse_jobs("{}") == client.parse_jobs("") == []
    found = client.parse_resources("up|3|6|node[1-3]\nup|1|8|big\ndown|0|0|\n")
    assert found["up"] == client.Resources(("node1", "node2", "node3", "big"), 14)
    assert found["down"].nodes == ()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({}, "job f27eMgh5 waits, place 2: it waits for free nodes; 3 nodes are in use by 1 jobs"),
        ({"urgency": 0}, "its owner has put it on hold"),
        (
            {"state": "DEPEND", "dependencies": ("after-success=fX",)},
            "it waits for the job that it depends on (after-success=fX)",
        ),
        ({"start_s": 1.0}, "; expected start 19"),
    ],
)
def test_why_a_job_waits(change: dict[str, Any], sentence: str) -> None:
    job = replace(WAITING, **change)
    before = replace(WAITING, job_id="fB", submitted_s=5.0)
    found = queue.wait_sentence(job.job_id, [before, job, RUNNING])
    assert sentence in found
    assert "expected start" not in queue.news(found)
    assert queue.wait_sentence("fA", [RUNNING]) == ""


@pytest.mark.parametrize(
    ("state", "result", "exception", "expected", "cause"),
    [
        ("SCHED", "", "", "waiting", ""),
        ("RUN", "", "", "running", ""),
        ("CLEANUP", "", "", "running", ""),
        ("INACTIVE", "COMPLETED", "", "done", ""),
        ("INACTIVE", "FAILED", "", "failed", ""),
        ("INACTIVE", "CANCELED", "cancel", "cancelled", ""),
        ("INACTIVE", "TIMEOUT", "timeout: expired", "failed", "Flux says TIMEOUT (timeout: expired)"),
        ("INACTIVE", "FAILED", "node-failure: node3", "failed", "Flux says FAILED (node-failure: node3)"),
    ],
)
def test_states(state: str, result: str, exception: str, expected: str, cause: str) -> None:
    view = queue.view_of(replace(WAITING, state=state, result=result, exception=exception), [WAITING])
    assert (view.state, view.cause) == (expected, cause)


def lines(*texts: str, ending: bool = False) -> tuple[Any, list[bytes]]:
    made = starter.FluxRunStarter(client.FluxClient({}))
    return made, made.feed("".join(f"{text}\n" for text in texts).encode(), ending)


def test_the_lines_of_flux_run() -> None:
    made, shown = lines("jobid: \u01923mqB68f", "flux-job: task(s) exited with exit code 3", "flux: hello")
    assert (made.job_id, made.task_failed, shown) == ("f3mqB68f", True, [b"hello"])
    made, shown = lines("2.8s: job.exception fX type=timeout severity=0 resource allocation expired")
    assert (made.cancel_reason, made.withdrawn, len(shown)) == ("time limit", False, 1)
    made, shown = lines("2.7s: job.exception fX type=exec severity=0 node failure on node3 (rank 2)")
    assert (made.cancel_reason, made.withdrawn) == ("node failure", False)
    made, shown = lines("2.5s: job.exception fX type=cancel severity=0 ", ending=True)
    assert (made.cancel_reason, made.withdrawn, shown) == ("cancellation", True, [])


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("flux-run: ERROR: 'nope' is not a valid queue", 2, "unknown queue"),
        ("0.03s: job.exception fX type=alloc severity=0 unsatisfiable request: need 9", 2, "request less"),
        ("flux-run: ERROR: Unable to connect to Flux", 1, "Flux does not answer"),
        ("flux-run: ERROR: something new", 1, "flux run failed: something new"),
    ],
)
def test_a_refusal_is_explained(line: str, code: int, text: str) -> None:
    error = lines("jobid: fX", line)[0].refusal()
    assert error.exit_code == code
    assert text in str(error)


def test_checks_of_the_doctor() -> None:
    up = {"up": client.Resources(("a", "b"), 8), "down": client.Resources(("c",), 4)}
    levels = [one.level for one in checks.node_findings(Settings(), up)]
    assert levels == ["note", "ok", "note"]
    large = Settings(def_nodes=2, def_tasks_per_node=3, def_cpus_per_task=2)
    assert "needs 6 cores" in [*checks.node_findings(large, up)][1].text
    assert [one.level for one in checks.queue_findings(SETTINGS, ("debug",))] == ["fail"]
    assert [one.level for one in checks.queue_findings(SETTINGS, ("wafer",))] == ["ok"]


def test_the_site_file_has_a_section_for_flux(site: Any) -> None:
    """Its errors have their lines, as those of all keys; the variable takes precedence."""
    file = site.work / "site.yaml"
    file.write_text("partition: wafer\nflux:\n  queue: debug\n  options: [--verbose]\n")
    shown = json.loads(site.run("csrun", "--site-config", str(file), "config", "show", "--json").stdout)
    assert shown["settings"]["flux.queue"]["value"] == "debug"
    assert shown["settings"]["flux.queue"]["origin"] == f"{file}:3"
    assert shown["settings"]["flux.options"]["value"] == ["--verbose"]
    assert shown["settings"]["partition"]["value"] == "wafer"
    done = site.run("csrun", "--site-config", str(file), "config", "show", CSRUN_FLUX_QUEUE="other")
    assert "environment CSRUN_FLUX_QUEUE" in done.stdout
    file.write_text("flux:\n  queu: debug\n  time_limit: soon\n")
    done = site.run("csrun", "config", "check", str(file))
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"{file}:2: unknown key 'flux.queu'; did you mean 'queue'?",
        f"{file}:3: 'flux.time_limit' is 'soon': expected minutes, or a number with s, m, h or d, for "
        f"example 4h",
    ]
    schema = json.loads(site.run("csrun", "config", "schema").stdout)
    queue_key = schema["$defs"]["flux_section"]["properties"]["queue"]
    assert queue_key["description"] == "Flux queue of all jobs. Environment: CSRUN_FLUX_QUEUE."


def test_every_command_knows_the_scheduler(site: Any) -> None:
    """Without Flux on this machine its flags and a dry run work, and a run is refused with a reason."""
    shown = site.run("csrun_wse", "--help").stdout
    assert "flux: nodes of a Flux instance" in shown
    assert "--queue" in shown
    done = site.run("csrun_wse", "--launcher=flux", "true", PATH=f"{site.bin_dir}:/usr/bin:/bin")
    assert done.returncode == 1
    assert "flux is not installed on this machine" in done.stderr
    words = ("--launcher=flux", "--dry-run", "--total-nodes=2", "true")
    done = site.run("csrun_wse", *words, PATH=f"{site.bin_dir}:/usr/bin:/bin")
    assert done.returncode == 0
    assert "nothing is checked against the instance" in done.stderr
    assert "\nflux: flux run --verbose --job-name=" in done.stdout
