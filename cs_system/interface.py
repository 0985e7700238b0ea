"""A compiled step on the wire, and what is checked against its interface."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cs_system.proto import cs_system_pb2 as pb
from cs_toolkit.step import CompiledStep, Executable, StepInterface, TensorSpec


def step_to_wire(step: CompiledStep) -> pb.ArtifactOffer:
    """What a client tells the system of a step."""
    return pb.ArtifactOffer(
        key=step.key,
        fabric=step.fabric,
        execution=step.execution,
        interface=_interface_to_wire(step.interface),
        executables=[
            pb.Executable(
                name=executable.name,
                interface=_interface_to_wire(executable.interface),
                sha256=executable.sha256,
                size_bytes=executable.size_bytes,
            )
            for executable in step.executables
        ],
        schedule=step.schedule,
    )


def step_from_wire(offer: pb.ArtifactOffer) -> CompiledStep:
    """The inverse of `step_to_wire`; nothing is checked."""
    return CompiledStep(
        key=str(offer.key),
        fabric=str(offer.fabric),
        execution=str(offer.execution),
        interface=_interface_from_wire(offer.interface),
        executables=tuple(
            Executable(
                str(executable.name),
                _interface_from_wire(executable.interface),
                str(executable.sha256),
                int(executable.size_bytes),
            )
            for executable in offer.executables
        ),
        schedule=str(offer.schedule),
    )


def samples_per_step(interface: StepInterface) -> int:
    """The batch size: the leading dimension of the first input; 1 when there is none."""
    shapes = [spec.shape for spec in interface.inputs]
    return shapes[0][0] if shapes and shapes[0] else 1


def state_faults(specs: Sequence[TensorSpec], got: Mapping[str, tuple[str, tuple[int, ...]]]) -> list[str]:
    """What is wrong with a state of the given (dtype, shape) by name; all of it at once."""
    expected = {spec.name: (spec.dtype, spec.shape) for spec in specs}
    faults = [f"'{name}' is missing" for name in expected if name not in got]
    faults += [f"'{name}' is not state of the program" for name in got if name not in expected]
    for name, (dtype, shape) in expected.items():
        if name not in got:
            continue
        got_dtype, got_shape = got[name]
        if (got_dtype, tuple(got_shape)) != (dtype, shape):
            faults.append(f"'{name}' is {got_dtype}{list(got_shape)}, expected {dtype}{list(shape)}")
    return faults


def _interface_to_wire(interface: StepInterface) -> pb.Interface:
    return pb.Interface(
        inputs=_specs_to_wire(interface.inputs),
        state=_specs_to_wire(interface.state),
        outputs=_specs_to_wire(interface.outputs),
        updated=interface.updated,
    )


def _interface_from_wire(interface: pb.Interface) -> StepInterface:
    return StepInterface(
        inputs=_specs_from_wire(interface.inputs),
        state=_specs_from_wire(interface.state),
        outputs=_specs_from_wire(interface.outputs),
        updated=tuple(str(name) for name in interface.updated),
    )


def _specs_to_wire(specs: Iterable[TensorSpec]) -> list[pb.TensorSpec]:
    return [pb.TensorSpec(name=spec.name, dtype=spec.dtype, shape=spec.shape) for spec in specs]


def _specs_from_wire(specs: Iterable[pb.TensorSpec]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(str(spec.name), str(spec.dtype), tuple(spec.shape)) for spec in specs)
