import subprocess
import sys
from pathlib import Path

import pytest

import cs_system.proto

GENERATED = ("cs_system_pb2.py", "cs_system_pb2_grpc.py")


def test_generated_code_is_that_of_the_proto_file(tmp_path):
    pytest.importorskip("grpc_tools")
    folder = Path(cs_system.proto.__file__).parent
    root = folder.parents[1]
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", f"-I{root}"),
            *(f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}"),
            "cs_system/proto/cs_system.proto",
        ],
        check=True,
    )
    for name in GENERATED:
        assert (tmp_path / "cs_system" / "proto" / name).read_text() == (folder / name).read_text()
