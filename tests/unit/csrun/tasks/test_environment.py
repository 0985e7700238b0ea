from __future__ import annotations

from pathlib import Path

from csrun.site import Site
from csrun.tasks.environment import Toolkit, program_environment, unset_notice
from csrun.tasks.place import JOB_VARIABLES

CHECKOUT = Toolkit(Path("/checkout/.venv/bin"), Path("/checkout"), Path("/checkout/wrappers"))


def test_the_toolkits_interpreter_is_first_and_foreign_modules_are_gone() -> None:
    env = {"PATH": "/usr/bin", "PYTHONPATH": "/mine", "LD_LIBRARY_PATH": "/libs", "HOME": "/home/me"}
    change = program_environment(env, CHECKOUT)
    assert change.apply(env) == {
        "PATH": "/checkout/wrappers:/checkout/.venv/bin:/usr/bin",
        "CSRUN_PYTHON": "/checkout/.venv/bin/python",
        "CSRUN_PYTHONPATH": "/mine",
        "PYTHONPATH": "/checkout",
        "HOME": "/home/me",
    }
    notice = unset_notice(env, change)
    assert notice is not None
    assert "not passed on to the program: LD_LIBRARY_PATH (" in notice


def test_programs_run_in_the_environment_that_the_site_names() -> None:
    change = program_environment({"PATH": "/usr/bin"}, CHECKOUT, Site(python="/site/env/bin/python"))
    assert change.values["PATH"] == "/checkout/wrappers:/site/env/bin:/usr/bin"
    assert change.values["CSRUN_PYTHON"] == "/site/env/bin/python"


def test_an_installed_toolkit_needs_no_pythonpath() -> None:
    env = {"PATH": "/usr/bin", "PYTHONPATH": "/mine"}
    change = program_environment(env, Toolkit(Path("/venv/bin"), None))
    assert "PYTHONPATH" not in change.apply(env)


def test_a_launcher_inside_a_launcher_is_silent_and_starts_its_own_job() -> None:
    env = {"PATH": "/usr/bin", "CSRUN_RANK": "3", "CSRUN_JOB_TOKEN": "secret"}
    outer = program_environment(env, CHECKOUT).apply(env)
    change = program_environment(outer, CHECKOUT)
    assert unset_notice(outer, change) is None
    assert change.apply(outer) == outer
    assert not set(outer) & set(JOB_VARIABLES)


def test_a_program_inside_a_task_does_not_inherit_the_input_options_of_its_job() -> None:
    env = {"CSRUN_RANK": "3", "CSRUN_INPUT_ORDER": "first-ready", "CSRUN_ALLOW_INPUT_CHANGE": "1"}
    change = program_environment(env, CHECKOUT)
    assert not set(change.apply(env)) & set(env)
    assert unset_notice(env, change) is None


def test_an_inner_launcher_passes_on_what_the_user_added_to_pythonpath() -> None:
    env = {"PYTHONPATH": "src:/mine"}
    outer = program_environment(env, CHECKOUT).apply(env)
    outer["PYTHONPATH"] = "/checkout/cs_compat/modules:/added:/checkout"
    inner = program_environment(outer, CHECKOUT)
    assert inner.values["CSRUN_PYTHONPATH"] == "/added:src:/mine"
    assert unset_notice(outer, inner) is None
    assert "CSRUN_PYTHONPATH" not in program_environment(outer, CHECKOUT, Site(container="apptainer")).apply(
        outer
    )


def test_a_tf_config_of_the_user_does_not_reach_the_program() -> None:
    env = {"PATH": "/bin", "TF_CONFIG": '{"cluster": {}}'}
    change = program_environment(env, CHECKOUT)
    assert "TF_CONFIG" not in change.apply(env)
    assert "TF_CONFIG" in str(unset_notice(env, change))


def test_in_a_container_interpreter_and_modules_are_the_images() -> None:
    env = {
        "PATH": "/usr/bin",
        "PYTHONPATH": "/mine",
        "LD_PRELOAD": "/host.so",
        "TMPDIR": "/scratch",
        "CSRUN_PYTHON": "/outer/python",
        "TF_CONFIG": "{}",
        "USER": "me",
        "HOME": "/home/me",
    }
    change = program_environment(env, CHECKOUT, Site(container="apptainer"))
    assert change.apply(env) == {
        "PATH": "/usr/bin",
        "USER": "me",
        "HOME": "/home/me",
        "PYTHONNOUSERSITE": "1",
    }
    assert "PYTHONPATH, LD_PRELOAD, TMPDIR" in str(unset_notice(env, change))
    assert "CSRUN_PYTHON" not in str(unset_notice(env, change))


def test_charliecloud_gets_the_user_that_it_insists_on() -> None:
    assert (
        program_environment({"LOGNAME": "me"}, CHECKOUT, Site(container="charliecloud")).values["USER"]
        == "me"
    )
    assert program_environment({}, CHECKOUT, Site(container="charliecloud")).values["USER"]
