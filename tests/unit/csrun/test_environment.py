from __future__ import annotations

from pathlib import Path

from csrun.environment import Toolkit, program_environment, unset_notice

CHECKOUT = Toolkit(Path("/checkout/.venv/bin"), Path("/checkout"))


def test_the_toolkits_interpreter_is_first_and_foreign_modules_are_gone() -> None:
    env = {"PATH": "/usr/bin", "PYTHONPATH": "/mine", "LD_LIBRARY_PATH": "/libs", "HOME": "/home/me"}
    change = program_environment(env, CHECKOUT)
    assert change.apply(env) == {
        "PATH": "/checkout/.venv/bin:/usr/bin",
        "PYTHONPATH": "/checkout",
        "HOME": "/home/me",
    }
    notice = unset_notice(env, change)
    assert notice is not None
    assert "PYTHONPATH, LD_LIBRARY_PATH" in notice


def test_an_installed_toolkit_needs_no_pythonpath() -> None:
    env = {"PATH": "/usr/bin", "PYTHONPATH": "/mine"}
    change = program_environment(env, Toolkit(Path("/venv/bin"), None))
    assert "PYTHONPATH" not in change.apply(env)


def test_inside_a_launcher_the_next_one_is_silent_and_starts_a_job_of_its_own() -> None:
    env = {"PATH": "/usr/bin", "CSRUN_RANK": "3", "CSRUN_JOB_TOKEN": "secret"}
    outer = program_environment(env, CHECKOUT).apply(env)
    change = program_environment(outer, CHECKOUT)
    assert unset_notice(outer, change) is None
    assert change.apply(outer) == outer
    assert not any(name.startswith("CSRUN_") for name in outer)


def test_a_tf_config_of_the_user_does_not_reach_the_program() -> None:
    env = {"PATH": "/bin", "TF_CONFIG": '{"cluster": {}}'}
    change = program_environment(env, CHECKOUT)
    assert "TF_CONFIG" not in change.apply(env)
    assert "TF_CONFIG" in str(unset_notice(env, change))
