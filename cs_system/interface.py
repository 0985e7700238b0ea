"""The interface of a step on the wire, and what is checked against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cs_system.proto import cs_system_pb2 as pb
from cs_toolkit.step import StepInterface, TensorSpec


def specs_to_wire(specs: Iterable[TensorSpec]) -> list[pb.TensorSpec]:
    """Messages in the order of `specs`."""
    return [pb.TensorSpec(name=spec.name, dtype=spec.dtype, shape=spec.shape) for spec in specs]


def specs_from_wire(specs: Iterable[pb.TensorSpec]) -> tuple[TensorSpec, ...]:
    """The reverse of `specs_to_wire`."""
    return tuple(TensorSpec(str(spec.name), str(spec.dtype), tuple(spec.shape)) for spec in specs)


def interface_from_offer(offer: pb.ArtifactOffer) -> StepInterface:
    """The interface that a client sent along with its artifact."""
    return StepInterface(
        inputs=specs_from_wire(offer.inputs),
        state=specs_from_wire(offer.state),
        outputs=specs_from_wire(offer.outputs),
        updated=tuple(str(name) for name in offer.updated),
    )


def samples_per_step(interface: StepInterface) -> int:
    """The batch size: the leading dimension of the first input; 1 when there is none."""
    shapes = [spec.shape for spec in interface.inputs]
    return shapes[0][0] if shapes and shapes[0] else 1


def state_faults(interface: StepInterface, got: Mapping[str, tuple[str, tuple[int, ...]]]) -> list[str]:
    """What is wrong with a state of the given (dtype, shape) by name; all of it at once."""
    expected = {spec.name: (spec.dtype, spec.shape) for spec in interface.state}
    faults = [f"'{name}' is missing" for name in expected if name not in got]
    faults += [f"'{name}' is not state of the program" for name in got if name not in expected]
    for name, (dtype, shape) in expected.items():
        if name not in got:
            continue
        got_dtype, got_shape = got[name]
        if (got_dtype, tuple(got_shape)) != (dtype, shape):
            faults.append(f"'{name}' is {got_dtype}{list(got_shape)}, expected {dtype}{list(shape)}")
    return faults
