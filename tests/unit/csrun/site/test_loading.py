"""A site's settings from the site file and the environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cs_toolkit import config_file
from csrun.schedulers import registry
from csrun.site import Site, SiteError, loading
from csrun.site.file import site_file_model
from csrun.site.loading import load_site, user_file
from csrun.site.project import give_consent, needs_consent, withdraw_consent
from csrun.site.values import variables


@pytest.fixture(autouse=True)
def no_file_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "SYSTEM_FILE", tmp_path / "etc" / "site.yaml")
    monkeypatch.setattr(loading, "config_file", lambda name: tmp_path / "toolkit" / name)


def site_file(tmp_path: Path, text: str, name: str = "site.yaml") -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_set_gives_the_smallest_job_on_this_machine() -> None:
    loaded = load_site({})
    assert loaded.site == Site(def_nodes=1, def_tasks_per_node=2, def_cpus_per_task=None)
    assert set(loaded.origins.values()) == {"default"}
    assert (loaded.files, loaded.notes) == ((), ())


def test_file_model_and_variables_know_the_same_settings_with_the_same_defaults() -> None:
    model = site_file_model()
    assert list(model.model_fields) == [*variables(), "locked"]
    assert model().model_dump(exclude={"locked"}) == load_site({}).values


FULL = """\
launcher: slurm
def_nodes: 5
def_tasks_per_node: 8
def_cpus_per_task: 16
max_restarts: 5
container: apptainer
python: /site/env/bin/python
container_image: /images/cs two.sif
container_options: [--no-home, --env, "A=b c"]
mount_dirs: [/data, /home, /data]
cs_ip: 192.0.2.7:9000
peer_timeout_s: 90
certs: ~/certs
gres_resource: --gres=gres:cs:cerebras:1
gres_node: sdf-1
licence: --licenses=cs:1
partition: wafer
account: ml
qos: normal
time_limit: 12:30
slurm_options: [--constraint=a|b]
"""
FULL_SITE = Site(
    launcher="slurm",
    def_nodes=5,
    def_tasks_per_node=8,
    def_cpus_per_task=16,
    max_restarts=5,
    container="apptainer",
    python="/site/env/bin/python",
    container_image="/images/cs two.sif",
    container_options=("--no-home", "--env", "A=b c"),
    mount_dirs=("/data", "/home"),
    cs_ip="192.0.2.7:9000",
    peer_timeout_s=90.0,
    certs=str(Path.home() / "certs"),
    sections={
        "slurm": {
            "gres_resource": "cs:cerebras:1",
            "gres_node": "sdf-1",
            "licence": "cs:1",
            "partition": "wafer",
            "account": "ml",
            "qos": "normal",
            "time_limit": "12:30",
            "slurm_options": ("--constraint=a|b",),
        }
    },
)


def test_every_key_of_a_file_arrives_with_its_line(tmp_path: Path) -> None:
    path = site_file(tmp_path, FULL)
    loaded = load_site({}, path)
    assert loaded.site == FULL_SITE
    keys = [line.split(":")[0] for line in FULL.splitlines()]
    lines = {key: f"{path}:{number}" for number, key in enumerate(keys, 1)}
    assert loaded.origins == {**lines, "systems": "default"}  # which excludes cs_ip


def test_every_variable_arrives_with_its_name() -> None:
    environment = {
        "CSRUN_LAUNCHER": "slurm",
        "DEF_NODES": " 5 ",
        "DEF_TASKS_PER_NODE": "8",
        "DEF_CPUS_PER_TASK": "16",
        "CSRUN_MAX_RESTARTS": "5",
        "CSRUN_CONTAINER": "apptainer",
        "CSRUN_PROGRAM_PYTHON": "/site/env/bin/python",
        "SINGULARITY_IMAGE": "/images/cs two.sif",
        "CSRUN_CONTAINER_OPTIONS": "--no-home --env 'A=b c'",
        "MOUNT_DIRS": ",/data,, /home,/data,",
        "CS_IP": "192.0.2.7:9000",
        "CS_PEER_TIMEOUT_S": "90",
        "CS_CERTS": "~/certs",
        "GRES_RESOURCE": "gres:cs:cerebras:1",
        "GRES_NODE": "sdf-1",
        "CSRUN_LICENCE": "cs:1",
        "CSRUN_PARTITION": "wafer",
        "CSRUN_ACCOUNT": "ml",
        "CSRUN_QOS": "normal",
        "CSRUN_TIME_LIMIT": "12:30",
        "CSRUN_SLURM_OPTIONS": "'--constraint=a|b'",
    }
    loaded = load_site(environment)
    assert loaded.site == FULL_SITE
    origins = [origin for origin in loaded.origins.values() if origin != "default"]
    assert origins == [f"environment {name}" for name in environment]


@pytest.mark.parametrize(
    ("text", "environment", "addresses"),
    [
        ("systems: [a, 'b:9001', a]", {}, "a,b:9001"),
        ("cs_ip: a", {}, "a"),
        ("systems: [a, b]", {"CS_IP": "c"}, "c"),
        ("cs_ip: a", {"CS_SYSTEMS": "b, c"}, "b,c"),
        # In a task, which has CS_IP from its launcher.
        ("systems: [a, b]", {"CS_IP": "a,b", "CS_SYSTEMS": "c"}, "a,b"),
        ("def_nodes: 1", {}, ""),
    ],
)
def test_the_systems_of_a_site(
    tmp_path: Path, text: str, environment: dict[str, str], addresses: str
) -> None:
    assert load_site(environment, site_file(tmp_path, f"{text}\n")).site.system_addresses == addresses


def test_systems_next_to_cs_ip_have_no_effect(tmp_path: Path) -> None:
    path = site_file(tmp_path, "cs_ip: a\nsystems: [b]\n")
    loaded = load_site({}, path)
    assert loaded.site.system_addresses == "a"
    assert loaded.notes == (f"{path}:2: systems has no effect, because cs_ip is set",)


@pytest.mark.parametrize(
    ("text", "environment", "problem"),
    [
        ("systems: [a, 'b:0']", {}, "expected HOST or HOST:PORT"),
        ('systems: ["a\\e]2;b\\a"]', {}, "expected HOST or HOST:PORT"),
        ("systems: ['']", {}, "expected addresses that are not empty"),
        ("systems: a", {}, "expected a list of texts"),
        ("def_nodes: 1", {"CS_SYSTEMS": "a,,b"}, "expected addresses that are not empty"),
    ],
)
def test_wrong_systems_of_a_site(
    tmp_path: Path, text: str, environment: dict[str, str], problem: str
) -> None:
    with pytest.raises(SiteError, match=problem):
        load_site(environment, site_file(tmp_path, f"{text}\n"))


def test_the_environment_beats_the_file_and_an_empty_variable_sets_nothing(tmp_path: Path) -> None:
    path = site_file(tmp_path, "def_nodes: 3\npartition: wafer\n")
    loaded = load_site({"DEF_NODES": "4", "CSRUN_PARTITION": " "}, path)
    assert (loaded.values["def_nodes"], loaded.values["partition"]) == (4, "wafer")
    assert loaded.origins["def_nodes"] == "environment DEF_NODES"
    assert loaded.origins["partition"] == f"{path}:2"


def test_both_names_of_a_number_are_read_and_the_long_one_wins() -> None:
    assert load_site({"DEF_TASKS": "4", "DEF_CPUS": "8"}).site == Site(
        def_tasks_per_node=4, def_cpus_per_task=8
    )
    assert load_site({"DEF_TASKS": "4", "DEF_TASKS_PER_NODE": "5"}).site.def_tasks_per_node == 5


@pytest.fixture
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A file in every layer; returns the environment that finds them."""
    site_file(tmp_path, "def_nodes: 2\nqos: toolkit\n", "toolkit/site.yaml")
    site_file(tmp_path, "def_nodes: 3\naccount: etc\npartition: etc\n", "etc/site.yaml")
    site_file(tmp_path, "def_nodes: 4\npartition: mine\n", "xdg/csrun/site.yaml")
    site_file(tmp_path, "def_nodes: 5\ngres_node: n1\n", "project/csrun.yaml")
    (tmp_path / "project" / "models").mkdir()
    monkeypatch.chdir(tmp_path / "project" / "models")
    return {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "XDG_STATE_HOME": str(tmp_path / "state")}


def test_later_layers_override_earlier_ones_key_by_key(tmp_path: Path, layers: dict[str, str]) -> None:
    loaded = load_site({**layers, "DEF_NODES": "6"})
    assert {key: value for key, value in loaded.values.items() if loaded.origins[key] != "default"} == {
        "def_nodes": 6,
        "gres_node": "n1",
        "partition": "mine",
        "account": "etc",
        "qos": "toolkit",
    }
    assert {key: source.layer for key, source in loaded.sources.items() if source.layer != "default"} == {
        "def_nodes": "environment",
        "gres_node": "project",
        "partition": "user",
        "account": "administrator",
        "qos": "toolkit",
    }
    assert [(each.value, each.text) for each in loaded.overridden["def_nodes"]] == [
        (5, f"{tmp_path}/project/csrun.yaml:1"),
        (4, f"{tmp_path}/xdg/csrun/site.yaml:1"),
        (3, f"{tmp_path}/etc/site.yaml:1"),
        (2, f"{tmp_path}/toolkit/site.yaml:1"),
    ]
    assert loaded.files == loaded.searched
    assert [one.layer for one in loaded.files] == ["toolkit", "administrator", "user", "project"]


def test_a_named_file_replaces_those_of_the_user_and_the_project(
    tmp_path: Path, layers: dict[str, str]
) -> None:
    named = site_file(tmp_path, "def_tasks_per_node: 7\n", "named.yaml")
    for loaded in (load_site({**layers, "CSRUN_SITE_CONFIG": str(named)}), load_site(layers, named)):
        assert [one.layer for one in loaded.files] == ["toolkit", "administrator", "named"]
        assert (loaded.site.def_nodes, loaded.site.def_tasks_per_node) == (3, 7)
    etc = tmp_path / "etc" / "site.yaml"
    assert [one.path for one in load_site(layers, etc).files][1:] == [etc]


def test_addresses_of_a_later_layer_replace_both_forms_of_an_earlier_one(
    tmp_path: Path, layers: dict[str, str]
) -> None:
    site_file(tmp_path, "cs_ip: a\n", "etc/site.yaml")
    site_file(tmp_path, "systems: [b, c]\n", "xdg/csrun/site.yaml")
    loaded = load_site(layers)
    assert loaded.site.system_addresses == "b,c"
    assert loaded.origins["cs_ip"] == "default"
    assert [each.value for each in loaded.overridden["cs_ip"]] == ["a"]
    assert load_site({**layers, "CS_IP": "d"}).site.system_addresses == "d"


def test_a_container_of_a_later_layer_leaves_no_notes_about_earlier_settings(
    tmp_path: Path, layers: dict[str, str]
) -> None:
    site_file(tmp_path, "container: apptainer\ncontainer_image: /i\nmount_dirs: [/d]\n", "etc/site.yaml")
    site_file(tmp_path, "container: none\npython: /p\n", "xdg/csrun/site.yaml")
    assert load_site(layers).notes == ()
    assert len(load_site({**layers, "MOUNT_DIRS": "/e"}).notes) == 1


@pytest.mark.parametrize(
    ("locked", "environment", "error"),
    [
        (
            "cs_ip: a\nlocked: [cs_ip]",
            {"CS_IP": "b"},
            "environment CS_IP: cs_ip is 'b', and {etc}:2 locks it",
        ),
        ("cs_ip: a\nlocked: [cs_ip]", {"CS_SYSTEMS": "b"}, "environment CS_SYSTEMS: systems is .* locks it"),
        ("cs_ip: a\nlocked: [cs_ip]", {"CS_IP": "a"}, ""),
        ("systems: [a, b]\nlocked: [systems]", {"CS_IP": "a,b"}, ""),
        ("locked: [max_restarts]", {"CSRUN_MAX_RESTARTS": "9"}, "max_restarts is 9, and {etc}:1 locks it"),
        (
            "locked: [partition]",
            {},
            "{user}:2: partition is 'mine', and {etc}:1 locks it .* expected no other",
        ),
        ("partition: mine\nlocked: [partition]", {}, ""),
        ("locked: [partitoin]", {}, "{etc}:1: 'locked' .* did you mean 'partition'"),
        ("locked: [x]", {}, "{etc}:1: 'locked' .* got 'x'"),
    ],
)
def test_a_locked_key_may_not_be_changed_by_later_layers(
    tmp_path: Path, layers: dict[str, str], locked: str, environment: dict[str, str], error: str
) -> None:
    etc = site_file(tmp_path, f"{locked}\n", "etc/site.yaml")
    if not error:
        load_site({**layers, **environment})
        return
    places = {"etc": etc, "user": tmp_path / "xdg" / "csrun" / "site.yaml"}
    with pytest.raises(SiteError, match=error.format_map(places)):
        load_site({**layers, **environment})


def test_a_projects_file_chooses_what_runs_only_with_consent(tmp_path: Path, layers: dict[str, str]) -> None:
    project = site_file(tmp_path, "def_nodes: 9\npython: /evil\ncs_ip: far\n", "project/csrun.yaml")
    refusal = f"{project}:2: a project's file sets python, cs_ip, .* 'csrun config trust {project}'"
    with pytest.raises(SiteError, match=refusal):
        load_site(layers)
    give_consent(project, layers)
    assert load_site(layers).site.python == "/evil"
    project.write_text(project.read_text() + "certs: /evil\n")  # consent is to the content
    with pytest.raises(SiteError, match="sets python, cs_ip, certs"):
        load_site(layers)
    give_consent(project, layers)
    withdraw_consent(project, layers)
    with pytest.raises(SiteError, match="expected your consent"):
        load_site(layers)


def test_keys_that_need_consent() -> None:
    assert [key for key in variables() if needs_consent(key)] == [
        *("container", "python", "container_image", "container_options", "mount_dirs"),
        *("cs_ip", "systems", "certs", "slurm_options"),
    ]
    assert needs_consent("locked")


def test_a_projects_file_of_another_user_needs_consent_and_one_in_tmp_is_not_read(
    tmp_path: Path, layers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project" / "csrun.yaml"
    monkeypatch.setattr("os.getuid", lambda: 4711)  # root's files are those of the administrator
    try:
        os.chown(project, 12345, -1)
    except PermissionError:
        pytest.skip("only root can give a file away")
    with pytest.raises(SiteError, match=f"{project}: the project's file belongs to user 12345; expected"):
        load_site(layers)
    give_consent(project, layers)
    assert load_site(layers).site.def_nodes == 5
    (tmp_path / "project").chmod(0o1777)
    assert load_site(layers).site.def_nodes == 4


def test_without_a_working_directory_there_is_no_project(tmp_path: Path, layers: dict[str, str]) -> None:
    (tmp_path / "project" / "models").rmdir()
    assert load_site(layers).site.def_nodes == 4


def test_the_users_file_is_below_home_without_an_absolute_xdg_directory(tmp_path: Path) -> None:
    own = tmp_path / ".config" / "csrun" / "site.yaml"
    for xdg in ({}, {"XDG_CONFIG_HOME": ""}, {"XDG_CONFIG_HOME": "relative"}):
        assert user_file({"HOME": str(tmp_path), **xdg}) == own
    assert user_file({}) is None


def test_a_named_file_that_does_not_exist_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"missing.yaml: no such file; give the path") as caught:
        load_site({"CSRUN_SITE_CONFIG": str(tmp_path / "missing.yaml"), "DEF_NODES": "x"})
    assert len(caught.value.errors) == 2
    assert caught.value.exit_code == 2


def test_all_errors_of_a_file_and_of_the_environment_come_together(tmp_path: Path) -> None:
    path = site_file(
        tmp_path,
        "launcher: slrum\n"
        "def_nodes: 0\n"
        "def_nodes: 0\n"
        'def_tasks_per_node: "3"\n'
        "mount_dirs: /data,/home\n"
        "container: singularity\n"
        "gres: cs:1\n"
        "time_limit: 1h\n",
    )
    with pytest.raises(SiteError) as caught:
        load_site({"DEF_CPUS": "-1", "CS_IP": "host:0"}, path)
    assert [fault.replace(str(path), "FILE").split(";")[0] for fault in caught.value.errors] == [
        "FILE:3: duplicate key 'def_nodes' (first on line 2)",
        f"FILE:1: 'launcher' is 'slrum': expected one of: {', '.join(registry.names())}",
        "FILE:2: 'def_nodes' is 0: Input should be greater than or equal to 1",
        "FILE:4: 'def_tasks_per_node' is '3': Input should be a valid integer",
        "FILE:5: 'mount_dirs' is '/data,/home': expected a list of texts, for example [first, second]",
        "FILE:7: unknown key 'gres'",
        "FILE:8: 'time_limit' is '1h': expected a time limit as MINUTES, MINUTES:SECONDS, "
        "HOURS:MINUTES:SECONDS, DAYS-HOURS, DAYS-HOURS:MINUTES:SECONDS or UNLIMITED",
        "the environment variable DEF_CPUS is '-1'",
        "the environment variable CS_IP is 'host:0'",
        "FILE:6: container is 'singularity' but container_image is not set",
    ]


@pytest.mark.parametrize("text", ["[1]", "just words", "a: [", "a: \x01", "1: 2", "? [a]\n: b"])
def test_values_that_are_no_mapping_are_errors_with_their_place(tmp_path: Path, text: str) -> None:
    path = site_file(tmp_path, text)
    with pytest.raises(SiteError) as caught:
        load_site({}, path)
    assert caught.value.errors[0].startswith(str(path))


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert load_site({}, site_file(tmp_path, "# nothing\n")).site == Site()


def test_the_image_may_come_from_the_environment(tmp_path: Path) -> None:
    path = site_file(tmp_path, "container: charliecloud\n")
    assert load_site({"SINGULARITY_IMAGE": "/i"}, path).site.container_image == "/i"


def test_a_container_that_would_hide_the_job_from_its_tasks_is_refused(tmp_path: Path) -> None:
    settings = "container: {}\ncontainer_image: /i\ncontainer_options: [--nv, --containall]\n"
    for container in ("singularity", "apptainer"):
        path = site_file(tmp_path, settings.format(container))
        with pytest.raises(SiteError, match=f"^{path}:3: container_options has --containall, which hides"):
            load_site({}, path)
    load_site({}, site_file(tmp_path, settings.format("none")))


def test_settings_of_a_container_without_one_are_noted() -> None:
    notes = load_site({"SINGULARITY_IMAGE": "/i", "MOUNT_DIRS": "/data"}).notes
    assert notes == (
        "environment SINGULARITY_IMAGE: container_image has no effect with 'container: none'",
        "environment MOUNT_DIRS: mount_dirs has no effect with 'container: none'",
    )


WRONG = {
    "CSRUN_LAUNCHER": ["Slurm", "pbs"],
    "DEF_NODES": ["0", "-1", "two", "1.5", "1_0", "٣", "99999999999"],
    "CSRUN_CONTAINER": ["docker"],
    "SINGULARITY_IMAGE": ["cs.sif", "./cs.sif"],
    "CSRUN_CONTAINER_OPTIONS": ["cleanenv", "--env 'A", "--a -- b"],
    "MOUNT_DIRS": ["data", "/data:/mnt", "/data,home"],
    "GRES_RESOURCE": ["cs 1", "cs:1;rm", ":1", "cs:1:2:3"],
    "GRES_NODE": ["a b", "a,b"],
    "CSRUN_LICENCE": ["cs 1", "cs:x"],
    "CS_CERTS": ["certs", "~bob/certs"],
    "CS_IP": ["a b", "host:", "host:x", "host:65536", ":9000"],
    "CSRUN_PARTITION": ["a b"],
    "CSRUN_TIME_LIMIT": ["1h", "1:2:3:4", "-1", "1:99", "1.5"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in WRONG.items() for text in texts])
def test_a_wrong_variable_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(SiteError, match=rf"^the environment variable {name} is .*; expected .*: set it"):
        load_site({name: text})


@pytest.mark.parametrize("text", ["90", "12:30", "4:00:00", "1-12", "1-12:30", "1-12:30:15", "UNLIMITED"])
def test_slurms_forms_of_a_time_limit(tmp_path: Path, text: str) -> None:
    assert load_site({}, site_file(tmp_path, f"time_limit: {text}\n")).values["time_limit"] == text


@pytest.mark.parametrize("text", ["cs", "cs:1", "gres:cs:1", "gres/cs:1", "--gres=cs:1", "--gres=gres:cs:1"])
def test_a_resource_however_a_site_has_written_it(text: str) -> None:
    assert load_site({"GRES_RESOURCE": text}).values["gres_resource"] == ("cs" if text == "cs" else "cs:1")


def test_the_example_is_right_as_it_is_and_with_every_key_uncommented(tmp_path: Path) -> None:
    example = config_file("site.example.yaml")
    assert load_site({}, example).site == Site()
    lines = example.read_text(encoding="utf-8").splitlines()
    keys = [line.removeprefix("# ") for line in lines if line.split(":")[0].removeprefix("# ") in variables()]
    assert [key.split(":")[0] for key in keys] == list(variables())
    values, defaults = load_site({}, site_file(tmp_path, "\n".join(keys))).values, load_site({}).values
    assert [key for key in values if values[key] == defaults[key]] == []
    for names in variables().values():
        assert f"[{', '.join(names)}]" in example.read_text(encoding="utf-8")
