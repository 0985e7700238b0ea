"""--json and --html: files whole or not at all, links stay links, pipes and devices are written to."""

import os
import resource
import threading
from pathlib import Path

import pytest

from cs_toolkit.errors import UsageError
from csrun.errors import CsrunError
from input_analyzer.report.files import TO_STDOUT, check_different, check_writable, write


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(target)
    check_writable("--json", link)
    write(link, "1\n")
    assert link.is_symlink()
    assert target.read_text() == "1\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "real.json"]


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable("--json", pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write(pipe, "text\n")
    reader.join(60)
    assert got == ["text\n"]
    assert pipe.is_fifo()


def test_dash_is_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    check_writable("--json", TO_STDOUT)
    write(TO_STDOUT, "text\n")
    assert capfd.readouterr().out == "text\n"
    write(TO_STDOUT, "more\n")  # it is still open
    assert capfd.readouterr().out == "more\n"


def test_two_reports_have_two_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("real").touch()
    Path("link").symlink_to("real")
    Path("hard").hardlink_to("real")
    for other in ("real", "./real", "link", "hard", str(tmp_path / "real")):
        with pytest.raises(UsageError, match="both are the same file; expected one for each"):
            check_different(Path("real"), Path(other))
    with pytest.raises(UsageError, match="expected one of them on stdout"):
        check_different(TO_STDOUT, TO_STDOUT)
    with pytest.raises(UsageError, match="both are the same file"):
        check_different(TO_STDOUT, Path("/dev/stdout"))
    check_different(Path("/dev/null"), Path("/dev/null"))
    check_different(Path("real"), Path("other"))
    check_different(Path("real"), TO_STDOUT)
    check_different(None, Path("real"))


def test_text_is_appended_to_an_open_descriptor(tmp_path: Path) -> None:
    with (tmp_path / "out.txt").open("w") as out:
        out.write("before\n")
        out.flush()
        write(Path(f"/dev/fd/{out.fileno()}"), "text\n")
    assert (tmp_path / "out.txt").read_text() == "before\ntext\n"


def test_a_full_device_is_an_error() -> None:
    with pytest.raises(CsrunError, match="No space left on device; expected space"):
        write(Path("/dev/full"), "text\n")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (
            "missing/input.json",
            r"--json: folder .*missing' does not exist; expected an existing one: create it",
        ),
        ("file/input.json", "--json: folder .*file' does not exist"),
        ("folder", "--json: 'folder' is a folder; expected a file: for example --json=folder/input.json"),
        (".", "--json: got no file name; expected one, for example --json=input.json"),
    ],
)
def test_unwritable_files_are_refused_before_the_analysis(
    path: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=says):
        check_writable("--json", Path(path))


def test_a_failure_leaves_nothing_half_written(tmp_path: Path) -> None:
    old = tmp_path / "input.json"
    old.write_text("old\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(CsrunError, match="File too large; expected space"):
            write(old, "x" * 200_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert old.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [old]


def test_bytes_of_the_command_that_are_no_text_are_written_escaped(tmp_path: Path) -> None:
    write(tmp_path / "page.html", "a\udcff\n")
    assert (tmp_path / "page.html").read_text() == "a\\udcff\n"
