"""Which variables of the environment an input function asks for."""

from __future__ import annotations

import os

import pytest

from cs_runtime.tasks import watch_environment

NAMES = ("TF_CONFIG", "CSRUN_TASK_INDEX")


def ask_by_name() -> None:
    os.environ["TF_CONFIG"]


def ask_with_a_default() -> None:
    os.getenv("CSRUN_TASK_INDEX", "0")


def ask_if_it_is_set() -> None:
    assert "TF_CONFIG" in os.environ


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (ask_by_name, "TF_CONFIG"),
        (ask_with_a_default, "CSRUN_TASK_INDEX"),
        (ask_if_it_is_set, "TF_CONFIG"),
    ],
)
def test_every_way_of_asking_is_noticed(ask: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{}")
    kind = type(os.environ)
    with watch_environment(NAMES) as asked:
        assert callable(ask)
        ask()
        os.environ.get("HOME")
    assert asked == {name}
    assert type(os.environ) is kind


def test_a_copy_for_another_process_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{}")
    with watch_environment(NAMES) as asked:
        assert os.environ.copy()["TF_CONFIG"] == "{}"
    assert not asked


def test_an_error_of_the_body_ends_the_watch() -> None:
    kind = type(os.environ)
    with pytest.raises(ZeroDivisionError), watch_environment(NAMES):
        _ = 1 // 0
    assert type(os.environ) is kind
