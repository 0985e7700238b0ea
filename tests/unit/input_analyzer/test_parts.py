"""Small parts: the target, batches, tracebacks, the words that name a function, the candidates."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cs_toolkit.errors import UsageError
from csrun.schedulers.registry import node_name
from input_analyzer.analyze import default_cpu_candidates
from input_analyzer.conclusions import read_report_target
from input_analyzer.errors import (
    VaryingShapesError,
    is_ours,
    strip_packages,
    users_stack,
    users_traceback,
)
from input_analyzer.function_program import check_arguments, framework_of, load, looks_like_function
from input_analyzer.measure.examine import (
    Shapes,
    epoch_samples,
    function_name,
    function_source,
    may_read_files,
)
from input_analyzer.measure.link import Link, short_name
from input_analyzer.measure.node import read_memory, usable_cpus, usage_of
from input_rules.batches import batch_bytes, count_samples
from input_rules.errors import WrongTypeError
from input_rules.formatting import display_path
from input_rules.pipeline import Pipeline, Stage


def report(folder: Path, name: str, rate: object, age: float) -> Path:
    path = folder / name / "compile_report.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"overall": {"samples_per_s": rate}}))
    os.utime(path, (age, age))
    return path


def test_the_target_is_that_of_the_newest_report_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_report_target([tmp_path]) is None
    report(tmp_path, "cs_old", 100.0, 1000)
    newest = report(tmp_path, "cs_new", 200.0, 2000)
    report(tmp_path, "cs_broken", "fast", 3000)
    found = read_report_target([tmp_path, tmp_path / "nowhere"])
    assert found is not None
    assert found.samples_per_s == 200
    assert str(newest) in found.origin
    monkeypatch.chdir(tmp_path)
    short = read_report_target([tmp_path])
    assert short is not None
    assert short.origin == "estimated for the wafer in cs_new/compile_report.json"


def test_samples_and_bytes_of_a_batch() -> None:
    batch = (np.zeros([4, 3], np.float32), np.zeros([4], np.int32))
    assert count_samples(batch) == 4
    assert batch_bytes(batch) == 64
    assert count_samples((np.zeros([]),)) == 1


def test_a_short_last_batch_is_let_pass_and_everything_else_refused() -> None:
    shapes = Shapes(lambda: ["features", "labels"])
    whole = (np.zeros([4, 3], np.float32), np.zeros([4], np.int32))
    shapes.check(whole)
    shapes.check((whole[0][:2], whole[1][:2]))
    for other in (
        (np.zeros([4, 5], np.float32), whole[1]),
        (np.zeros([8, 3], np.float32), whole[1]),
        (whole[0].astype(np.float64), whole[1]),
        (whole[0][:, :, None], whole[1]),
    ):
        with pytest.raises(VaryingShapesError, match=r"'features' is float32\[4, 3\] in the first batch"):
            shapes.check(other)
    with pytest.raises(VaryingShapesError, match=r"or crop them .* drops records has to replace them"):
        shapes.check((np.zeros([8, 3], np.float32), whole[1]))
    with pytest.raises(VaryingShapesError, match="make all records of one type"):
        shapes.check((whole[0].astype(np.float64), whole[1]))
    with pytest.raises(VaryingShapesError, match="is 2 arrays in the first batch and 1 arrays in batch 9"):
        shapes.check(whole[:1])


def test_a_traceback_has_the_users_frames_and_causes(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def parse(x):\n    try:\n        return {}[x]\n    except KeyError as error:\n"
        "        raise ValueError('no column') from error\n"
    )
    parse = load(f"{file}:parse")
    try:
        looks_like_function("a:b")
        parse("age")  # type: ignore[call-arg]
    except ValueError as error:
        text = users_traceback(error)
    assert "KeyError: 'age'" in text
    assert "raise ValueError('no column') from error" in text
    assert text.endswith("ValueError: no column")


def test_without_frames_of_the_user_there_is_no_traceback() -> None:
    try:
        is_ours(None)  # type: ignore[arg-type]
    except AttributeError as error:
        kept = users_traceback(error)
        error.__traceback__ = None if error.__traceback__ is None else error.__traceback__.tb_next
        bare = users_traceback(error)
    assert kept.startswith("Traceback (most recent call last):\n  File ")
    assert bare.startswith("AttributeError: ")
    text = 'Traceback (most recent call last):\n  File "/x/site-packages/a.py", line 1, in f\n    g()\nE: no'
    assert strip_packages(text) == "E: no"


def test_a_stack_of_faulthandler_is_shown_like_a_traceback() -> None:
    dump = (
        'Thread 0x1 (most recent call first):\n  File "/lib/python3/dist-packages/a.py", line 3 in wait\n\n'
        "Current thread 0x2 (most recent call first):\n"
        '  File "/home/u/data.py", line 9 in read\n  File "/home/u/run.py", line 4 in <module>\n'
    )
    assert users_stack(dump) == (
        '  File "/home/u/run.py", line 4, in <module>\n  File "/home/u/data.py", line 9, in read'
    )


@pytest.mark.parametrize("word", ["data:train_input", "pkg.data:train", "a/b.py:f", "pkg.data:Data.train"])
def test_words_that_name_a_function(word: str) -> None:
    assert looks_like_function(word)


@pytest.mark.parametrize(
    "word", ["python", "run.py", ":f", "a:", "a:b.", "http://x:80", "--cs_ip=a:b", "a:b c"]
)
def test_words_that_name_none(word: str) -> None:
    assert not looks_like_function(word)


def test_functions_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def train():\n    pass\n\nclass Data:\n    @staticmethod\n    def read():\n        return 3\n"
    )
    assert load(f"{tmp_path}/mine.py:Data.read")() == 3
    with pytest.raises(UsageError, match=r"no function 'Data\.write'"):
        load(f"{tmp_path}/mine.py:Data.write")
    with pytest.raises(UsageError, match=r"no function 'tain'.*it has train"):
        load(f"{tmp_path}/mine.py:tain")
    (tmp_path / "many.py").write_text("".join(f"def make_{n}(): ...\n" for n in range(11)))
    with pytest.raises(UsageError, match=r"it has make_0, .*, make_9, \.\.\.$"):
        load(f"{tmp_path}/many.py:make")
    (tmp_path / "own.py").write_text("from pathlib import *\nfrom json import loads\ndef data(): ...\n")
    with pytest.raises(UsageError, match=r"it has data$"):
        load(f"{tmp_path}/own.py:dta")
    with pytest.raises(UsageError, match="no such file"):
        load(f"{tmp_path}/none.py:train")
    package = tmp_path / "package"
    package.mkdir()
    (package / "data.py").write_text("from .more import things\n")
    with pytest.raises(UsageError, match=r"expected package\.data:FUNCTION, from the folder above"):
        load(f"{package}/data.py:train_input")
    with pytest.raises(UsageError, match="no module 'nowhere_at_all'"):
        load("nowhere_at_all:train")
    with pytest.raises(UsageError, match=r"m\.py:train: the function needs arguments \(.*'params'\)"):
        check_arguments("m.py:train", lambda params, mode=None: None)
    check_arguments("m.py:train", lambda mode=None, **more: None)


def test_results_that_are_no_dataset_are_refused() -> None:
    with pytest.raises(WrongTypeError, match=r"returned list, expected a tf\.data\.Dataset"):
        framework_of([1, 2])


def test_on_a_shared_node_of_slurm_the_cpus_of_the_job_count() -> None:
    here = {"SLURM_JOB_ID": "5", "SLURMD_NODENAME": "n7", "SLURM_CPUS_ON_NODE": "1"}
    assert len(usable_cpus(here)) == 1
    assert node_name(here) == "n7"
    everything = tuple(sorted(os.sched_getaffinity(0)))
    assert usable_cpus({**here, "SLURM_CPUS_ON_NODE": "4096"}) == everything
    salloc = {"SLURM_JOB_ID": "5", "SLURM_CPUS_ON_NODE": "1"}
    assert usable_cpus(salloc) == everything, "a shell of salloc on another machine"


def test_a_socket_may_be_in_any_folder(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20) / ("long" * 20)
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with short_name(str(folder / "link")) as name:
            listener.bind(name)
        listener.listen(1)
        link = Link.connect(str(folder / "link"))
        link.send(event="hello")
        assert Link(listener.accept()[0]).receive(5.0) == [{"event": "hello"}]


def test_candidates_go_up_to_the_whole_node() -> None:
    assert default_cpu_candidates(1) == (1,)
    assert default_cpu_candidates(2) == (1, 2)
    assert default_cpu_candidates(6) == (1, 2, 4)
    assert default_cpu_candidates(64) == (4, 8, 16, 32, 64)


def test_an_epoch_is_the_input_of_repeat() -> None:
    batched = {"batched": True}
    source = Stage("range", "range", 0, attributes={"records": 1000})
    batch = Stage(
        "batch", "batch", 1, ("range",), attributes={"batch_size": 32, "drop_remainder": True, **batched}
    )
    repeat = Stage("repeat", "repeat", 2, ("batch",), attributes=batched)
    assert epoch_samples(Pipeline("tensorflow", (source, batch, repeat), (), 32)) == 31 * 32
    smaller = replace(batch, attributes={"batch_size": 32, **batched})
    ready = Stage("prefetch", "prefetch", 2, ("batch",), attributes=batched)
    chain = (source, smaller, ready, replace(repeat, inputs=("prefetch",), position=3))
    assert epoch_samples(Pipeline("tensorflow", chain, (), 32)) == 1000, "not 32 whole batches"
    early = Stage("repeat", "repeat", 1, ("range",))
    late = Stage("batch", "batch", 2, ("repeat",), attributes={"batch_size": 32, **batched})
    assert epoch_samples(Pipeline("tensorflow", (source, early, late), (), 32)) == 1000
    unknown = Stage("range", "range", 0)
    assert epoch_samples(Pipeline("tensorflow", (unknown, early, late), (), 32)) is None


def test_inputs_that_may_read_files() -> None:
    source = Stage("range", "range", 0, attributes={"records": 1000})
    calls = {"opens": {"opens": True}, "python": {"python": True}, "reads": {"reads": "TFRecordDataset"}}
    plain = Stage("map", "map", 1, ("range",), attributes={"python": False})
    assert not may_read_files(Pipeline("tensorflow", (source, plain), (), 1))
    for attributes in calls.values():
        stage = replace(plain, attributes=attributes)
        assert may_read_files(Pipeline("tensorflow", (source, stage), (), 1))
    assert may_read_files(Pipeline("tensorflow", (Stage("TFRecordDataset", "TFRecordDataset", 0),), (), 1))
    assert may_read_files(Pipeline("torch", (source,), (), 1))
    assert may_read_files(Pipeline("tensorflow", (), (), 1)), "nobody knows"


def test_the_name_and_place_of_a_function() -> None:
    assert function_name(test_the_name_and_place_of_a_function) == "test_the_name_and_place_of_a_function"
    source = function_source(test_the_name_and_place_of_a_function)
    assert source is not None
    assert source.startswith(f"{display_path(__file__)}:")
    assert function_source(len) is None


def test_memory_of_this_node_and_process() -> None:
    now = read_memory()
    assert 0 < now.available_bytes <= now.total_bytes
    held = np.ones(16 << 20)
    assert usage_of([os.getpid()]).memory_bytes > held.nbytes
    assert usage_of([os.getpid()]).cpu_s > 0
    assert usage_of([2**22 + 1]).memory_bytes == 0
