import ml_dtypes
import numpy as np
import pytest

from cs_system.authentication import Call
from cs_system.errors import DeviceMemoryError, TensorDamagedError, WireFormatError
from cs_system.messages import CHUNK_BYTES, MAX_TENSORS, TensorAssembler, pack_tensors
from cs_system.proto import cs_system_pb2 as pb

TENSORS = {
    "vector": np.arange(10, dtype=np.int64) - 5,
    "empty": np.zeros((0, 3), np.float32),
    "scalar": np.full((), 2.5, np.float32),
    "column-major": np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4)),
    "big-endian": np.arange(4, dtype=">i4"),
    "bool": np.array([True, False]),
    "bfloat16": np.arange(5).astype(ml_dtypes.bfloat16),
    "half": np.arange(3, dtype=np.float16),
}


def tags():
    """The digests of a call, from its start."""
    return Call("secret", "system", "client", 3).requested_tensors()


@pytest.mark.parametrize("chunk_bytes", [1, 7, 16, 64, CHUNK_BYTES])
def test_tensors_survive_the_wire_whatever_the_chunk_size(chunk_bytes):
    assembler = TensorAssembler(tags())
    for group in pack_tensors(TENSORS, tags(), chunk_bytes):
        assert sum(len(chunk.data) for chunk in group) <= chunk_bytes
        message = pb.StateChunk(tensors=group)
        assembler.add(pb.StateChunk.FromString(message.SerializeToString()).tensors)
    got = assembler.finish()
    assert list(got) == list(TENSORS)
    for name, expected in TENSORS.items():
        assert got[name].dtype == expected.dtype.newbyteorder("=")
        np.testing.assert_array_equal(got[name], expected)


def test_bytes_on_the_wire_are_little_endian():
    [[chunk]] = pack_tensors({"x": np.array([1], ">i4")}, tags())
    assert (chunk.dtype, chunk.data) == ("int32", b"\x01\x00\x00\x00")


def test_a_big_tensor_is_cut_at_the_chunk_size():
    groups = list(pack_tensors({"x": np.zeros(2 * CHUNK_BYTES + 1, np.uint8)}, tags()))
    assert [len(chunk.data) for group in groups for chunk in group] == [CHUNK_BYTES, CHUNK_BYTES, 1]


def test_many_small_tensors_do_not_make_one_huge_message():
    groups = list(pack_tensors({f"t{n}": np.zeros((), np.float32) for n in range(MAX_TENSORS + 1)}, tags()))
    assert [len(group) for group in groups] == [MAX_TENSORS, 1]


def chunk(name="x", offset=0, data=b"\0\0\0\0", dtype="float32", shape=(1,)):
    return pb.TensorChunk(name=name, offset=offset, data=data, dtype=dtype, shape=shape)


def tagged(chunks):
    """The chunks as a client sends them that knows no better."""
    copies, sent = [pb.TensorChunk.FromString(each.SerializeToString()) for each in chunks], tags()
    for each in copies:
        sent.add(each, each.data)
    return copies


@pytest.mark.parametrize(
    ("chunks", "fault"),
    [
        ([chunk(offset=4)], "tensor 'x' begins at byte 4 instead of 0"),
        ([chunk(), chunk()], "tensor 'x' came twice"),
        ([chunk(data=b"12345")], "tensor 'x': got 5 bytes, its shape and dtype have 4"),
        ([chunk(shape=(-1,))], "tensor 'x': shape (-1,) has a negative dimension"),
        ([chunk(dtype="object")], "dtype 'object' cannot be sent"),
        (
            [chunk(shape=(2,)), chunk(offset=3)],
            "expected byte 4 of tensor 'x', got byte 3 of 'x'",
        ),
        (
            [chunk(shape=(2,)), chunk(name="y", offset=4)],
            "expected byte 4 of tensor 'x', got byte 4 of 'y'",
        ),
        ([chunk(shape=(2,))], "tensor 'x' ended after 4 of 8 bytes"),
    ],
)
def test_chunks_that_make_no_tensor_are_refused(chunks, fault):
    def assemble():
        assembler = TensorAssembler(tags())
        assembler.add(tagged(chunks))
        assembler.finish()

    with pytest.raises(WireFormatError) as refused:
        assemble()
    assert fault in str(refused.value)


def test_a_refused_tensor_costs_no_memory():
    def accept(name, dtype, shape):
        raise MemoryError(f"{name} {dtype} {shape}")

    with pytest.raises(MemoryError, match=r"x float32 \(1099511627776,\)"):
        TensorAssembler(tags(), accept).add(tagged([chunk(shape=(1 << 40,))]))


def test_text_is_not_a_tensor():
    with pytest.raises(WireFormatError, match="cannot be sent; expected one of bool, int8"):
        list(pack_tensors({"x": np.array(["a"])}, tags()))


CHANGES = {
    "data": lambda chunks: setattr(chunks[1], "data", chunks[1].data[:-1] + b"!"),
    "name": lambda chunks: setattr(chunks[0], "name", "z"),
    "dtype": lambda chunks: setattr(chunks[0], "dtype", "uint32"),
    "shape": lambda chunks: chunks[0].shape.insert(0, 1),
    "offset": lambda chunks: setattr(chunks[1], "offset", 0),
    "tag": lambda chunks: setattr(chunks[0], "tag", b""),
    "order": lambda chunks: chunks.reverse(),
    "repeated": lambda chunks: chunks.insert(1, chunks[0]),
    "left out": lambda chunks: chunks.pop(0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_chunk_is_refused_and_its_tensor_named(change):
    arrays = {"x": np.arange(4, dtype=np.int32), "y": np.arange(4, dtype=np.int32)}
    chunks = [chunk for group in pack_tensors(arrays, tags(), 8) for chunk in group]
    change(chunks)
    assembler = TensorAssembler(tags())
    with pytest.raises(TensorDamagedError, match=r"tensor '[xyz]' was changed in transit") as damaged:
        assembler.add(chunks)
    assert damaged.value.fields["tensor"] in "xyz"


def test_chunks_of_another_call_or_direction_are_refused():
    call = Call("secret", "system", "client", 3)
    sent = [chunk for group in pack_tensors(TENSORS, call.requested_tensors()) for chunk in group]
    for other in (
        call.answered_tensors(),
        Call("secret", "system", "client", 4).requested_tensors(),
        Call("secret", "system", "client 2", 3).requested_tensors(),
        Call("secret", "system 2", "client", 3).requested_tensors(),
        Call("secret 2", "system", "client", 3).requested_tensors(),
    ):
        with pytest.raises(TensorDamagedError):
            TensorAssembler(other).add(sent)


@pytest.mark.parametrize("shape", [(1 << 50,), (1 << 62, 2), (1 << 62, 1 << 62)])
def test_a_tensor_that_does_not_fit_the_memory(shape):
    with pytest.raises(DeviceMemoryError, match="tensor 'x' does not fit the memory"):
        TensorAssembler(tags()).add(tagged([chunk(shape=shape)]))
