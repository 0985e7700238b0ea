"""Output of tasks on a terminal."""

from __future__ import annotations

import pytest

from csrun.jobs.output import MAX_LINE_BYTES, TAIL_LINES, TaskOutput, printable, task_prefix


@pytest.fixture
def output() -> TaskOutput:
    return TaskOutput("chief | ")


def test_a_line_is_shown_when_it_is_whole(output: TaskOutput) -> None:
    assert output.feed(b"hel", 0.0) == ""
    assert output.feed(b"lo\nwor", 0.1) == "chief | hello\n"
    assert output.finish(0.2) == "chief | wor\n"
    assert output.finish(0.3) == ""


def test_a_line_that_takes_long_is_shown_as_far_as_it_is(output: TaskOutput) -> None:
    output.feed(b"compiling ...", 0.0)
    assert output.waiting
    assert output.tick(0.9) == ""
    assert output.tick(1.0) == "chief | compiling ...\n"
    assert not output.waiting
    assert output.tick(9.0) == ""
    assert output.feed(b" done\n", 10.0) == "chief | compiling ... done\n"


def test_of_a_progress_display_one_state_a_second_is_shown_and_the_last(output: TaskOutput) -> None:
    shown = "".join(output.feed(f"\r{percent}%".encode(), percent / 10) for percent in range(30))
    assert shown.splitlines() == ["chief | 10%", "chief | 20%"]
    assert output.feed(b"\r100%\n", 3.0) == "chief | 100%\n"
    assert output.tick(9.0) == ""
    assert output.tail == ["100%"]


def test_startup_messages_of_tensorflow_go_to_the_log_but_errors_are_shown(
    output: TaskOutput,
) -> None:
    noise = (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        "I0000 00:00:1795536179.756084   26966 port.cc:153] oneDNN custom operations are on.\n"
        "W0000 00:00:1795536179.756084   26966 gpu_device.cc:2341] Cannot dlopen some GPU libraries.\n"
        "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the "
        "appropriate compiler flags.\n"
        "2026-11-24 10:15:30.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow\n"
    )
    error = "E0000 00:00:1795536179.756084   26966 cuda_dnn.cc:8310] Unable to register cuDNN factory\n"
    own = "W0000 is a product\nthe loss is 2.5\n"
    shown = output.feed((noise + error + own).encode(), 0.0)
    assert shown == "".join(f"chief | {line}\n" for line in (error + own).splitlines())
    assert output.tail == (error + own).splitlines()


def test_the_layout_and_the_start_of_workers_are_only_in_the_logs() -> None:
    start = "04:09:57 INFO: training on the CS system at 127.0.0.1:9000 (--cs_ip)"
    layout = '04:09:57 INFO: TF_CONFIG environment variable: {"cluster": {"chief": ["127.0.0.1:23111"]}}'
    lines = f"{layout}\n{start}\ntraining on time\n".encode()
    chief, worker = TaskOutput("chief | "), TaskOutput("worker 0 | ", leads=False)
    assert chief.feed(lines, 0.0) == f"chief | {start}\nchief | training on time\n"
    assert worker.feed(lines, 0.0) == "worker 0 | training on time\n"


def test_windows_line_ends_are_line_ends(output: TaskOutput) -> None:
    assert output.feed(b"a\r", 0.0) == ""
    assert output.feed(b"\nb\r\n", 0.0) == "chief | a\nchief | b\n"


def test_empty_lines_stay(output: TaskOutput) -> None:
    assert output.feed(b"\n\n", 0.0) == "chief | \nchief | \n"


def test_a_line_without_end_comes_in_pieces_that_cut_no_character(output: TaskOutput) -> None:
    text = "x" + "é" * MAX_LINE_BYTES
    shown = output.feed(text.encode(), 0.0) + output.finish(0.0)
    lines = shown.splitlines()
    assert len(lines) == 3
    assert "".join(line.removeprefix("chief | ") for line in lines) == text


def test_binary_output_cannot_change_the_terminal() -> None:
    assert printable(b"\x00\x1b[2J\x1b]0;title\x07 \xff\x9b2J\xc2\x9b ok\t.") == (
        "\\x00\\x1b[2J\\x1b]0;title\\x07 \\xff\\x9b2J\\x9b ok\t."
    )


def test_colors_stay_and_end_with_the_line() -> None:
    assert printable(b"\x1b[1;31mred") == "\x1b[1;31mred\x1b[0m"


def test_the_tail_is_the_last_lines_cut_to_a_readable_length(output: TaskOutput) -> None:
    output.feed(b"".join(b"line %d\n" % number for number in range(100)), 0.0)
    assert output.tail == [f"line {number}" for number in range(100 - TAIL_LINES, 100)]
    output.feed(b"y" * 10_000 + b"\n", 0.0)
    assert len(output.tail[-1]) < 2_100


def test_prefixes() -> None:
    assert task_prefix("worker 0", 1, colored=False) == "worker 0 | "
    colored = task_prefix("chief", 0, colored=True)
    assert colored.startswith("\x1b[")
    assert colored.endswith("\x1b[0m ")
    assert colored != task_prefix("chief", 1, colored=True)
