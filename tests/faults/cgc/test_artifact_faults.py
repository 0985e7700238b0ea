"""Artifacts that are damaged, interrupted, or written by two at once."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cgc.artifact import (
    artifact_lock,
    artifact_path,
    file_entries,
    find_older,
    open_artifact,
    publish,
    tool_version,
    tool_versions,
)
from cgc.errors import ArtifactLockError, ArtifactWriteError, CorruptArtifactError
from cgc.manifest import (
    FILES,
    FORMAT_VERSION,
    ExecutableEntry,
    FabricName,
    Interface,
    Manifest,
    PipelinedEstimates,
)
from cgc.publishing import directory_lock, publish_directory
from cs_toolkit.step import StepInterface, TensorSpec

ROOT = Path(__file__).parents[3]
KEY = "ab" * 32
SPEC = TensorSpec("state.model.w", "float32", (2,))
EXECUTABLES = ("forward", "backward")
CONTENTS = (*FILES["pipelined"], *(f"{name}.jaxexport" for name in EXECUTABLES))


def contents(size=100):
    return {name: name.encode() * size for name in CONTENTS}


def write(compile_dir, key=KEY, size=100):
    files = contents(size)
    interface = Interface.from_step(StepInterface((), (SPEC,), (), ("state.model.w",)))
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        tool_version=tool_version(),
        key=key,
        mode="train",
        precision="float32",
        batch_size=8,
        interface=interface,
        executables=[ExecutableEntry(name=name, interface=interface) for name in EXECUTABLES],
        fabric=FabricName(name="cs2", processing_elements=307840),
        estimates=PipelinedEstimates(
            deltat_cycles=669, samples_per_s=1270553.1, active_pes=1234, total_utilization=0.004
        ),
        versions=tool_versions(),
        files=file_entries(files),
    )
    with artifact_lock(compile_dir, key, timeout_s=0) as lock:
        return publish(lock, manifest, files)


@pytest.fixture
def artifact(tmp_path):
    return write(tmp_path)


def start(script, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"},
    )


def finish(process):
    try:
        return process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "remove", "directory"])
def test_every_damage_to_every_file_is_found_and_named(artifact, name, damage):
    file = artifact.path / name
    data = bytearray(file.read_bytes())
    file.unlink()
    if damage == "flip":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif damage == "cut":
        file.write_bytes(data[:-1])
    elif damage == "grow":
        file.write_bytes(data + b"\n")
    elif damage == "directory":
        file.mkdir()
    with pytest.raises(CorruptArtifactError, match=name):
        open_artifact(artifact.path)
    with pytest.raises(CorruptArtifactError, match=name):
        artifact.read(name)  # also when it was opened before


@pytest.mark.parametrize("name", ["manifest.json", "forward.jaxexport", "compile_report.json"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("pipe", "not a regular file"),
        ("device", "not a regular file"),
        ("sparse", r"size is 1099511627776 bytes, expected at most \d+"),
    ],
)
def test_files_without_an_end_are_refused_before_they_are_read(artifact, name, damage, message):
    file = artifact.path / name
    if damage == "sparse":
        os.truncate(file, 1 << 40)
    else:
        file.unlink()
        os.mkfifo(file) if damage == "pipe" else file.symlink_to("/dev/zero")
    with pytest.raises(CorruptArtifactError, match=f"{name}: cannot be read: {message}"):
        open_artifact(artifact.path)
    assert (find_older(artifact.path.parent, lambda toolchain: KEY) is None) == (name == "manifest.json")


def test_a_lock_that_is_a_symbolic_link_changes_no_other_file(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / f".cs_{KEY}.lock").symlink_to(precious)
    with pytest.raises(ArtifactWriteError, match="symbolic links"):
        write(tmp_path)
    assert precious.read_text() == "kept"


ENTRY = {"name": "forward", "interface": {"inputs": [], "state": [], "outputs": [], "updated": []}}


def manifest_edit(artifact, **changes):
    path = artifact.path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 0}, f"format_version is 0, expected {FORMAT_VERSION}"),
        ({"key": "cd" * 32}, "says that this is cs_cdcdcd"),
        ({"key": "short"}, "key: .*got 'short'"),
        ({"batch_size": "8"}, "batch_size: "),
        ({"unknown": 1}, "unknown: "),
        ({"files": {}}, "files lacks cirh.mlir"),
        ({"files": {"../../passwd": {"sha256": KEY, "size_bytes": 1}}}, r"files\."),
        ({"mode": "sing"}, "mode: "),
        ({"precision": "float8"}, "precision: "),
        ({"executables": []}, "executables: "),
        ({"executables": [ENTRY, ENTRY]}, "executables: .*'forward' occurs twice, expected unique names"),
        ({"executables": [ENTRY | {"name": "../forward"}]}, r"executables\.0\.name: "),
        ({"executables": [ENTRY | {"name": "sideways"}]}, r"files lacks sideways\.jaxexport"),
    ],
)
def test_a_wrong_manifest_is_refused_with_the_field(artifact, changes, message):
    manifest_edit(artifact, **changes)
    with pytest.raises(CorruptArtifactError, match=message):
        open_artifact(artifact.path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00\xff"])
def test_a_manifest_that_is_no_object_is_refused(artifact, text):
    (artifact.path / "manifest.json").write_text(text)
    with pytest.raises(CorruptArtifactError, match=r"manifest\.json"):
        open_artifact(artifact.path)


def test_folders_that_are_no_artifact_are_refused(tmp_path):
    with pytest.raises(CorruptArtifactError, match=r"manifest\.json: cannot be read: No such file"):
        open_artifact(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(CorruptArtifactError, match="cannot be read: Not a directory"):
        open_artifact(tmp_path / "file")


KILLED = """
import os, signal, sys
from pathlib import Path
import cgc.publishing as publishing
from test_artifact_faults import write

folder, name, deadly = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
original, calls = getattr(os, name), 0

def counting(*arguments, **options):
    global calls
    calls += 1
    if calls == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **options)

setattr(os, name, counting)
write(folder)
"""


SYNCS_BEFORE_RENAME = len(CONTENTS) + 2
"""Of every file, the manifest and the temporary directory."""


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("fsync", 1),
        ("fsync", 5),
        ("fsync", SYNCS_BEFORE_RENAME),
        ("rename", 1),
        ("fsync", SYNCS_BEFORE_RENAME + 1),
    ],
)
def test_a_writer_killed_anywhere_leaves_nothing_under_the_name_and_the_next_one_cleans_up(
    tmp_path, call, number
):
    process = start(KILLED, tmp_path, call, number)
    _, errors = finish(process)
    assert process.returncode == -signal.SIGKILL, errors
    left = sorted(path.name for path in tmp_path.iterdir())
    if number <= SYNCS_BEFORE_RENAME:
        assert all(name.startswith(f".cs_{KEY}") for name in left)
        assert any(".tmp-" in name for name in left)
    else:  # the last one, of the parent directory, comes after the rename
        open_artifact(artifact_path(tmp_path, KEY))
    artifact = write(tmp_path)
    assert list(tmp_path.iterdir()) == [artifact.path]
    assert open_artifact(artifact.path).key == KEY


def test_leftovers_of_other_artifacts_go_too_unless_someone_is_writing_them(tmp_path):
    dead, live = "cd" * 32, "ef" * 32
    for key in (dead, live):
        (tmp_path / f".cs_{key}.tmp-1" / "sub").mkdir(parents=True)
    (tmp_path / ".notes.tmp-1").mkdir()
    with artifact_lock(tmp_path, live, timeout_s=0):
        write(tmp_path)
        assert not (tmp_path / f".cs_{dead}.tmp-1").exists()
        assert (tmp_path / f".cs_{live}.tmp-1").exists()
    assert (tmp_path / ".notes.tmp-1").exists()


@pytest.mark.parametrize("call", ["fsync", "rename"])
@pytest.mark.parametrize(
    ("number", "message"), [(errno.ENOSPC, "No space left.*free some space"), (errno.EDQUOT, "quota")]
)
def test_a_full_disk_is_a_clear_error_and_keeps_the_previous_file(
    artifact, monkeypatch, call, number, message
):
    def full(*_arguments, **_options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(ArtifactWriteError, match=rf"cannot write the compile artifact .*cs_ab.*{message}"):
        write(artifact.path.parent, size=7)
    monkeypatch.undo()
    assert list(artifact.path.parent.iterdir()) == [artifact.path]
    assert open_artifact(artifact.path) == artifact


LIMITED = """
import resource, sys
from pathlib import Path
from cgc.errors import ArtifactWriteError
from test_artifact_faults import write

resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write(Path(sys.argv[1]), size=1000)
except ArtifactWriteError as error:
    print(error)
"""


def test_a_real_failing_write_leaves_nothing(tmp_path):
    output, errors = finish(start(LIMITED, tmp_path))
    assert "cannot write the compile artifact" in output, errors
    assert "File too large" in output
    assert list(tmp_path.iterdir()) == []


def test_a_small_full_file_system(tmp_path):
    """The real thing, where an ordinary user may mount a small file system."""
    command = f"mount -t tmpfs -o size=64k none {tmp_path} && exec {sys.executable} -c '{LIMITED_BY_DISK}'"
    probe = subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], capture_output=True
    )
    if probe.returncode:
        pytest.skip("no user namespaces here: " + probe.stderr.decode().strip())
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"{command} {tmp_path}"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"},
    )
    assert "No space left on device; nothing was written; free some space" in done.stdout, done.stderr
    assert done.stdout.endswith("left: []\n")


LIMITED_BY_DISK = """
import sys
from pathlib import Path
from cgc.errors import ArtifactWriteError
from test_artifact_faults import write

folder = Path(sys.argv[1])
try:
    write(folder, size=10000)
except ArtifactWriteError as error:
    print(error)
print("left:", list(folder.iterdir()))
"""


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactWriteError, match=r"a (part of the path is a )?file"):
        write(tmp_path / "file")
    with pytest.raises(ArtifactWriteError, match="a part of the path is a file"):
        write(tmp_path / "file" / "below")


def test_a_folder_that_cannot_be_created():
    with pytest.raises(ArtifactWriteError, match=r"cannot write the compile artifact /proc/nowhere/cs_ab"):
        write(Path("/proc/nowhere"))


def test_a_file_in_the_place_of_the_artifact_is_replaced(tmp_path):
    artifact_path(tmp_path, KEY).write_text("not a directory")
    assert open_artifact(write(tmp_path).path).key == KEY


HOLDER = """
import sys
from pathlib import Path
from cgc.artifact import artifact_lock

with artifact_lock(Path(sys.argv[1]), sys.argv[2], timeout_s=0):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of KEY until its standard input ends."""
    process = start(HOLDER, tmp_path, KEY)
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        finish(process)


def test_a_waiting_process_names_the_holder_and_gets_the_lock_when_it_is_free(tmp_path, holder):
    told = []

    def waiting(who):
        told.append(who)
        holder.stdin.close()  # lets the holder end

    with artifact_lock(tmp_path, KEY, timeout_s=60, on_wait=waiting) as lock:
        assert told == [f"process {holder.pid} on {os.uname().nodename}"]
        publish_directory(lock, {"a": b"1"})
    holder.stdin = None
    assert [path.name for path in tmp_path.iterdir()] == [f"cs_{KEY}"]


def test_patience_ends(tmp_path, holder):
    with (
        pytest.raises(ArtifactLockError, match=rf"process {holder.pid} on .* more than 0\.1 s"),
        artifact_lock(tmp_path, KEY, timeout_s=0.1),
    ):
        pass


def test_a_killed_holder_blocks_nobody(tmp_path, holder):
    holder.kill()
    holder.wait()
    assert open_artifact(write(tmp_path).path).key == KEY


def test_other_keys_are_not_blocked(tmp_path, holder):
    assert open_artifact(write(tmp_path, "cd" * 32).path).key == "cd" * 32
    assert holder.poll() is None


def test_one_at_a_time_among_many(tmp_path):
    inside, most = 0, 0
    guard = threading.Lock()

    def work():
        nonlocal inside, most
        for _ in range(5):
            with directory_lock(tmp_path / "cs_x", timeout_s=60) as lock:
                with guard:
                    inside += 1
                    most = max(most, inside)
                publish_directory(lock, {"a": b"1"})
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert [path.name for path in tmp_path.iterdir()] == ["cs_x"]


def test_without_locks_the_rename_decides(tmp_path, monkeypatch):
    """A file system that has no flock: both go ahead, the directory is whole all the same."""

    def unsupported(*_arguments):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("cgc.publishing.fcntl.flock", unsupported)
    with (
        directory_lock(tmp_path / "cs_x", timeout_s=0) as first,
        directory_lock(tmp_path / "cs_x", timeout_s=0) as second,
    ):
        assert not first.exclusive
        publish_directory(first, {"a": b"1"})
        publish_directory(second, {"a": b"2"})
    assert (tmp_path / "cs_x" / "a").read_bytes() == b"2"
    assert [path.name for path in tmp_path.iterdir()] == ["cs_x"]
