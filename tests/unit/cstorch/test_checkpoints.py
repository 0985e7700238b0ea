"""Checkpoints: those that other programs wrote, ours, and broken ones."""

from __future__ import annotations

import json
import pickle
import resource
import struct
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import cstorch.checkpoints as cp
from cstorch.checkpoints import encoding
from cstorch.errors import CheckpointError
from cstorch.optim import SGD
from cstorch.optim.lr_scheduler import ConstantLR
from cstorch.tracing.device import DeviceTensor
from cstorch.tracing.state import move_to_device

ORACLE = Path(__file__).parents[2] / "golden" / "cstorch"


def _assert_is(found: Any, described: Any, path: str = "") -> None:
    """Compares a loaded value with a description of it."""
    kind = described["type"]
    if kind in ("dict", "OrderedDict"):
        assert isinstance(found, OrderedDict) == (kind == "OrderedDict"), path
        assert list(found) == [key for key, _ in described["items"]], path
        for key, item in described["items"]:
            _assert_is(found[key], item, f"{path}.{key}")
    elif kind in ("list", "tuple"):
        assert type(found).__name__ == kind, path
        assert len(found) == len(described["items"]), path
        for i, item in enumerate(described["items"]):
            _assert_is(found[i], item, f"{path}.{i}")
    elif kind in ("torch.Tensor", "numpy.ndarray"):
        assert str(found.dtype).removeprefix("torch.") == described["dtype"], path
        assert list(found.shape) == described["shape"], path
        values = found.to(torch.float64).numpy() if kind == "torch.Tensor" else found
        np.testing.assert_allclose(values.reshape(-1), np.ravel(described["values"]), 1e-8, err_msg=path)
    elif kind != "NoneType":
        expected = float("inf") if described["value"] == "inf" else described["value"]
        assert found == expected, path
        assert kind == "numpy.float64" or type(found).__name__ == kind, path
    else:
        assert found is None, path


def test_a_file_of_another_writer_has_the_saved_values() -> None:
    expected = json.loads((ORACLE / "expected.json").read_text())["saved"]
    found = cp.load(ORACLE / "checkpoint_a.mdl")
    _assert_is(found, expected)
    assert found["misc"]["shared1"] is found["misc"]["shared2"]


def test_written_again_it_is_the_same(tmp_path: Path) -> None:
    expected = json.loads((ORACLE / "expected.json").read_text())["saved"]
    cp.save(cp.load(ORACLE / "checkpoint_a.mdl"), tmp_path / "b.mdl")
    _assert_is(cp.load(tmp_path / "b.mdl"), expected)
    with h5py.File(tmp_path / "b.mdl") as file, h5py.File(ORACLE / "checkpoint_a.mdl") as other:
        assert file.attrs["__version__"] == other.attrs["__version__"]
        assert json.loads(file.attrs["__spec__"])[0] == json.loads(other.attrs["__spec__"])[0]
        ours, theirs = (json.loads(json.loads(f.attrs["__spec__"])[1]) for f in (file, other))
        assert ours == theirs
        key = "misc.bf16.__metadata__"
        assert json.loads(file.attrs[key]) == json.loads(other.attrs[key])
        assert file["misc.bf16"].attrs["__NUMPY__"]  # without it other readers take no elements


def test_torch_format_and_back(tmp_path: Path) -> None:
    torch.manual_seed(1)
    weights = {"model": nn.Linear(3, 2).state_dict(), "step": 3}
    cp.save(weights, tmp_path / "a.mdl")
    torch.save(cp.load(tmp_path / "a.mdl", map_location="cpu"), tmp_path / "a.pt")
    as_torch_is_called = {"map_location": lambda storage, _: storage, "weights_only": True, "mmap": True}
    for name, arguments in (("a.mdl", {}), ("a.pt", {}), ("a.mdl", as_torch_is_called)):
        found = cp.load(tmp_path / name, **arguments)
        assert found["step"] == 3
        for key, tensor in weights["model"].items():
            assert torch.equal(found["model"][key], tensor)


ELEMENT_TYPES = [
    torch.bool,
    torch.int8,
    torch.int64,
    torch.uint16,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
]


@pytest.mark.parametrize("dtype", ELEMENT_TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 2), (3, 5)], ids=str)
def test_element_types_and_shapes_are_kept(tmp_path: Path, dtype: torch.dtype, shape: tuple[int]) -> None:
    state = {"odd": torch.ones(3, dtype=torch.uint8), "x": torch.full(shape, 1.0).to(dtype)}
    cp.save(state, tmp_path / "a.mdl")
    found = cp.load(tmp_path / "a.mdl")["x"]
    assert (found.dtype, found.shape) == (dtype, shape)
    assert found.tolist() == state["x"].tolist()


def test_loading_maps_and_writing_into_a_tensor_changes_no_file(tmp_path: Path) -> None:
    size = 64 << 20
    cp.save({"x": torch.zeros(size, dtype=torch.uint8)}, tmp_path / "a.mdl")
    before = _resident_bytes()
    found = cp.load(tmp_path / "a.mdl")["x"]
    assert _resident_bytes() - before < size / 4
    found[:4] = 1
    assert cp.load(tmp_path / "a.mdl")["x"][:4].sum() == 0
    cp.save({"x": found}, tmp_path / "a.mdl")  # over the file that is mapped
    assert cp.load(tmp_path / "a.mdl")["x"].sum() == 4
    assert [path.name for path in tmp_path.iterdir()] == ["a.mdl"]


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_tied_weights_are_written_once_and_device_tensors_by_their_values(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    model[1].weight = model[0].weight
    expected = model[0].weight.detach().clone()
    for move in (lambda: None, lambda: move_to_device(model)):
        move()
        cp.save({"model": model.state_dict(), "view": model[0].weight[:1]}, tmp_path / "a.mdl")
        assert (tmp_path / "a.mdl").stat().st_size < 2 * expected.nbytes
        found = cp.load(tmp_path / "a.mdl")
        assert found["model"]["0.weight"] is found["model"]["1.weight"]
        assert torch.equal(found["model"]["0.weight"], expected)
        assert torch.equal(found["view"], expected[:1])
    on_device = cp.load(tmp_path / "a.mdl", map_location="xla")["model"]
    assert isinstance(on_device["0.weight"], DeviceTensor)
    assert on_device["0.weight"] is on_device["1.weight"]
    model.load_state_dict(on_device)


def test_many_entries_and_arrays(tmp_path: Path) -> None:
    state = {f"layer{i}.weight": torch.tensor(float(i)) for i in range(2000)}
    turned = np.arange(6.0).reshape(2, 3).T
    arrays = {"bf16": np.ones(3, ml_dtypes.bfloat16), "i32": np.arange(4, dtype=">i4"), "turned": turned}
    cp.save({"model": state, "arrays": arrays}, tmp_path / "a.mdl")
    found = cp.load(tmp_path / "a.mdl")
    assert [float(x) for x in found["model"].values()] == list(range(2000))
    assert found["arrays"]["bf16"].dtype == ml_dtypes.bfloat16
    assert found["arrays"]["i32"].tolist() == [0, 1, 2, 3]
    assert found["arrays"]["turned"].tolist() == turned.tolist()


def test_the_tags_of_a_schedule_are_kept(tmp_path: Path) -> None:
    def schedule(tags: set[str]) -> ConstantLR:
        groups = [
            {"params": [nn.Parameter(torch.ones(1))], "tags": name} for name in ("head", "tail", "other")
        ]
        return ConstantLR(SGD(groups, lr=0.1), 0.5, param_group_tags=tags)

    cp.save({"schedule": schedule({"tail", "head"}).state_dict()}, tmp_path / "a.mdl")
    state = cp.load(tmp_path / "a.mdl")["schedule"]
    assert state["param_group_tags"] == {"head", "tail"}
    loaded = schedule({"head", "tail"})
    loaded.load_state_dict(state)
    assert loaded.param_group_tags == {"head", "tail"}
    assert [value is None for value in loaded.get_last_value()] == [False, False, True]


OBJECTS = {
    "tags": {"head", "tail"},
    "empty": set(),
    "mixed": frozenset({1, -70000, 2.5, None, ("a", b"b"), "\u00e9" * 300}),
    "size": torch.Size([2, 3]),
    "shape": torch.ones(0, 4).shape,
    "type": torch.bfloat16,
    "array type": np.dtype(">i4"),
    "device": torch.device("cpu"),
    "complex": 1 + 2j,
    "bytes": bytes(range(256)) * 2,
    "long": {2**80},
}


def test_objects_that_json_lacks_keep_their_types(tmp_path: Path) -> None:
    state = {**OBJECTS, "list": [{1}, deque([1, torch.ones(1)], 3)], "numpy": [np.int64(3), np.float32(0.5)]}
    cp.save(state, tmp_path / "a.mdl")
    found = cp.load(tmp_path / "a.mdl")
    for name, value in OBJECTS.items():
        assert found[name] == value
        assert type(found[name]) is type(value)
    assert found["list"][0] == {1}
    assert (found["list"][1].maxlen, found["list"][1][0]) == (3, 1)
    assert found["numpy"] == [3, 0.5]
    with h5py.File(tmp_path / "a.mdl") as file:
        assert json.loads(file.attrs["__spec__"])[0]["tags"] == ["*", "*"]
        assert file["mixed"].shape is None
        assert file["mixed"].attrs["__TYPE__"] == "ObjectSerializer"
        assert pickle.loads(file["mixed"].attrs["__BYTES__"].tobytes()) == OBJECTS["mixed"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", OBJECTS)
def test_objects_of_every_protocol_are_decoded(name: str, protocol: int) -> None:
    value = OBJECTS[name]
    assert encoding.decode_object(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("value", [Path("a"), nn.ReLU(), len, json.loads, {Path("a")}])
def test_objects_that_are_more_than_data_are_not_built(value: Any) -> None:
    with pytest.raises(encoding.NoDataError):
        encoding.decode_object(pickle.dumps(value))
    for damaged in (b"", b"zz", b"\x80", pickle.dumps({1})[:-2]):
        with pytest.raises(encoding.NoDataError):
            encoding.decode_object(damaged)


def _old_file(path: Path) -> None:
    """A checkpoint of version 0.4, as far as the format is known."""
    with h5py.File(path, "w") as file:
        file.attrs["__version__"] = 0.4
        file.attrs["__spec__"] = b"cos\nsystem\n(S'false'\ntR.".hex()  # a pickle that runs a command

        def put(key: str, kind: str, value: Any = None, **attrs: Any) -> None:
            data = file.create_dataset(key, data=h5py.Empty("f4") if value is None else value)
            data.attrs["__H5_TYPE__"] = kind
            for name, item in attrs.items():
                data.attrs[name] = item

        put("model.fc1.weight", "TorchTensorH5Type", np.arange(6.0, dtype=np.float32).reshape(2, 3))
        put("model.fc1.bias", "TorchTensorH5Type", np.array([0x3F80], np.uint16), is_bfloat16=True)
        put("optimizer.state.0.exp_avg", "TorchTensorH5Type", np.zeros(2))
        put("optimizer.param_groups.0.lr", "ScalarH5Type", 0.5)
        put("optimizer.param_groups.0.betas.0", "ScalarH5Type", 0.9)
        put("note%2Ewith%20dot", "StringH5Type", string_value="text")
        put("nothing", "NoneH5Type")
        put("tags", "ObjectH5Type", object_value=pickle.dumps({"head"}).hex())
        put("object", "ObjectH5Type", object_value=b"cos\nsystem\n(S'false'\ntR.".hex())


def test_version_0_4_is_rebuilt_from_its_keys_and_runs_nothing(tmp_path: Path) -> None:
    _old_file(tmp_path / "old.mdl")
    with pytest.warns(UserWarning, match=r"1 pickled Python objects.*object"):
        found = cp.load(tmp_path / "old.mdl")
    assert found["model"]["fc1.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["model"]["fc1.bias"].dtype == torch.bfloat16
    assert found["model"]["fc1.bias"].tolist() == [1]
    assert found["optimizer"]["state"][0]["exp_avg"].shape == (2,)
    assert found["optimizer"]["param_groups"] == [{"lr": 0.5, "betas": [0.9]}]
    assert found["note.with dot"] == "text"
    assert found["nothing"] is found["object"] is None
    assert found["tags"] == {"head"}


def _saved(path: Path, **attrs: Any) -> Path:
    cp.save({"x": torch.ones(1000)}, path)
    with h5py.File(path, "a") as file:
        del file.attrs["__checksums__"]  # what else the tests change in it is not noticed as damage
        for name, value in attrs.items():
            if value is None:
                del file.attrs[name]
            else:
                file.attrs[name] = value
    return path


def test_broken_and_foreign_files_are_distinguished(tmp_path: Path) -> None:
    path = tmp_path / "a.mdl"
    with pytest.raises(CheckpointError, match=r"No such file.*check the path"):
        cp.load(path)
    whole = _saved(path).read_bytes()
    for kept in (len(whole) // 2, len(whole) - 1, 20):
        path.write_bytes(whole[:kept])
        with pytest.raises(CheckpointError, match="damaged or truncated"):
            cp.load(path)
    for content in (b"", b"hello", b"PK\x03\x04 but no zip"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"neither an HDF5 checkpoint nor a file of torch\.save"):
            cp.load(path)
    with pytest.raises(CheckpointError, match="stopped before the end"):
        cp.load(_saved(path, __SUCCESS__=None))
    for version in (0.3, 0.6):
        with pytest.raises(
            CheckpointError, match=rf"version {version}, expected .* 0\.4 or 0\.5.*torch\.save"
        ):
            cp.load(_saved(path, __version__=version))
    with pytest.raises(CheckpointError, match="another kind of HDF5 file"):
        cp.load(_saved(path, __version__=None))


class Command:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('ran')",)


def test_pickles_are_not_executed(tmp_path: Path) -> None:
    torch.save({"x": Command()}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="run code from the file"):
        cp.load(tmp_path / "a.pt")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (torch.ones(2), "state is a Tensor, expected a dict"),
        ({"a": {"b": object()}}, r"entry a\.b is a object"),
        ({"a": frozenset({object})}, r"entry a is a frozenset that cannot be stored .*object"),
        ({(1, 2): 3}, r"dict key \(1, 2\) is a tuple"),
        ({"": torch.ones(1)}, "entry '' cannot be stored"),
        ({"a": torch.ones(1), "a/b": torch.ones(1)}, "entry 'a/b' cannot be stored"),
        ({"a": torch.ones(2).to_sparse()}, "sparse or quantized tensor, expected a dense one"),
        ({"a": {"b": 1}, "a.b": 2}, r"two entries are called 'a\.b'"),
    ],
)
def test_values_that_cannot_be_saved_are_named(tmp_path: Path, state: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        cp.save(state, tmp_path / "a.mdl")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "a.mdl"
    cp.save({"x": torch.zeros(2)}, path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(CheckpointError, match=r"cannot be written: File too large; .*with space"):
            cp.save({"x": torch.ones(1 << 20)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in tmp_path.iterdir()] == ["a.mdl"]
    assert cp.load(path)["x"].sum() == 0
    with pytest.raises(CheckpointError, match="cannot be written: No such file"):
        cp.save({}, tmp_path / "missing" / "a.mdl")


def test_compressed_chunks_and_damaged_ones(tmp_path: Path) -> None:
    path = _saved(tmp_path / "a.mdl")
    with h5py.File(path, "a") as file:
        del file["x"]
        file.create_dataset("x", data=np.arange(5, dtype="<f4") % 2, chunks=(2,), **hdf5plugin.LZ4())
    assert cp.load(path)["x"].tolist() == [0, 1, 0, 1, 0]
    with h5py.File(path, "a") as file:
        file["x"].id.write_direct_chunk((0,), (8).to_bytes(8, "big") + bytes(8))
    with pytest.raises(CheckpointError, match="damaged: x cannot be read"):
        cp.load(path)


def test_safetensors_and_cut_off_ones(tmp_path: Path) -> None:
    path, weights = tmp_path / "a.safetensors", {"a": torch.arange(3.0), "b": torch.ones(2, 2).bfloat16()}
    save_file(weights, path)
    loaded = cp.load(path)
    assert all(torch.equal(loaded[name], value) for name, value in weights.items())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="not a complete file of safetensors"):
        cp.load(path)


def test_builtin_types_in_pickles_of_dill() -> None:
    call = b"\x8c\ndill._dill\x8c\n_load_type\x93\x8c\x07complex\x85R"
    numbers = b"G" + struct.pack(">d", 1) + b"G" + struct.pack(">d", 2)
    assert encoding.decode_object(b"\x80\x04" + call + numbers + b"\x86R.") == 1 + 2j


def test_trees_as_recent_and_older_releases_of_pytorch_describe_them() -> None:
    leaf = {"type": None, "context": None, "children_spec": []}
    keys = ["a"]
    factory = {"default_factory_module": "builtins", "default_factory_name": "list", "dict_context": keys}
    for context in (factory, json.dumps(factory)):
        spec = {"type": "collections.defaultdict", "context": context, "children_spec": [leaf]}
        assert encoding.decode_tree(json.dumps([None, json.dumps([1, spec])]), str.upper) == {"a": "A"}
