"""Findings about an input function, without running its pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorflow as tf

from input_analyzer.analysis import Finding
from input_analyzer.findings import find
from input_analyzer.findings.context import Context, Half, Places
from input_analyzer.findings.sharding import Split, split_of
from input_analyzer.pipeline import Pipeline
from input_analyzer.tf.fingerprint import fingerprint
from input_analyzer.tf.graph import Traced, trace
from input_analyzer.tf.half_sharded import changed_arguments, read_whole, without_shard
from input_analyzer.tf.insertion_places import repeat_place, shard_place
from input_analyzer.tf.listed_files import with_listed_files
from input_analyzer.tf.nodes import in_order
from input_analyzer.tf.record_files import with_estimates
from input_analyzer.tf.shared_order import before_shards
from input_analyzer.tf.worker_records import (
    RANDOM_EACH_TIME,
    Likeness,
    Role,
    calls_python,
    random_numbers_anew,
    records_differ,
)

NOT_COMPARED = "It was not looked at whether the workers read different records: {}."
SHARING_UNKNOWN = "Whether the workers read different records cannot be told: {}."
BY_CHANCE = (
    "the order of the records is drawn from random numbers when the function is called, and workers that do "
    "not draw the same ones would take parts of other orders"
)
_OWN_ORDERS = (
    "The workers take their parts of an order that is drawn from random numbers when the input function is "
    "called: unless all of them draw the same ones, from the same seed, some records are read by several of "
    "them and others by none."
)
_PYTHON_UNSEEN = "no graph shows what Python code reads, and records are compared by cs_input_analyzer alone"
_SEED = 1
Make = Callable[[int, int], Any]
"""Calls the input function as one of (number of workers, index of this one) would."""
Names = Callable[[Any], Sequence[str]]
"""What the tensors of an element with an `element_spec` are called."""


@dataclass(frozen=True)
class Inspection:
    """A traced input and what was found about it.

    Attributes:
        traced: As an only worker, or the first one, reads it.
        context: The run that it is for.
        findings: Of all rules.
        split: Files that workers share out among them; None where they share records, or nobody knows.
        of_several: As the first of several workers reads it, where they share out some of its datasets alone.
        notes: What a reader must know, one sentence each.
    """

    traced: Traced
    context: Context
    findings: tuple[Finding, ...]
    split: Split | None = None
    of_several: Traced | None = None
    notes: tuple[str, ...] = ()

    @property
    def pipeline(self) -> Pipeline:
        """The stages."""
        return self.traced.pipeline


def inspect(
    make: Make,
    *,
    workers: int = 1,
    training: bool = True,
    shared: bool = True,
    seed: int | None = None,
    memory_bytes: int | None = None,
    samples_per_element: int | None = None,
    eager: bool = False,
    role: Role | None = None,
    names: Names | None = None,
    patience_s: float | None = None,
) -> Inspection:
    """Traces an input function, and once more for another worker, and applies all rules.

    Args:
        make: Calls the function.
        workers: Tasks that read input.
        training: Whether it is read for training.
        shared: Whether several workers may read it; only then it is called for another worker.
        seed: Of the graph.
        memory_bytes: What the input of a worker may use.
        samples_per_element: Records of an element, where that is known.
        eager: The function is written for eager execution.
        role: Of a worker that reads. With it records are compared where the input calls Python, which may
            take any part of the data; without it nothing is said of such an input.
        names: What the tensors of an element are called elsewhere, by the `element_spec`; as long as there
            are as many, findings call them so.
        patience_s: A function of which a call takes longer is not called for another worker.

    Raises:
        WrongTypeError: the function returns no Dataset.
        Exception: whatever it raises, unchanged.
    """
    start = time.monotonic()
    traced = trace(lambda: make(workers, 0), seed, samples_per_element, eager=eager)
    compared: _Compared | None = None
    notes: list[str] = []
    took_s = time.monotonic() - start
    traced = _named(with_estimates(with_listed_files(traced)), names)
    if shared and patience_s is not None and took_s > patience_s:
        notes = [NOT_COMPARED.format(f"a call of the input function takes longer than {patience_s:g} s")]
    elif shared:
        # What a function does with its shard shows only where there are several.
        try:
            compared = _compare(make, max(workers, 2), seed, eager, role)
        except Exception as error:
            # Too few records or files for another worker, say: the run itself has one worker.
            said = f"called as one of {max(workers, 2)} workers it raises {type(error).__name__}"
            notes = [NOT_COMPARED.format(said)]
    places = _places(traced, max(workers, 2))
    context = Context(training=training, workers=workers, memory_bytes=memory_bytes, places=places)
    split: Split | None = None
    if compared is not None:
        context = replace(
            context,
            sharded=compared.differ,
            halves=compared.halves,
            by_chance=compared.by_chance,
            files_by_worker=compared.files if workers > 1 else (),
            shared_caches=compared.caches,
        )
        split = split_of(traced.pipeline, compared.first.pipeline, compared.files) if workers == 1 else None
    found = find(traced.pipeline, context)
    if compared is None:
        return Inspection(traced, context, found, notes=tuple(notes))
    notes = [SHARING_UNKNOWN.format(compared.unknown)] if compared.unknown else []
    notes += [_OWN_ORDERS] if compared.by_chance and compared.differ else []
    return Inspection(
        traced, context, found, split, compared.first if compared.halves else None, tuple(notes)
    )


def _named(traced: Traced, names: Names | None) -> Traced:
    known = () if names is None else names(traced.dataset.element_spec)
    element = traced.pipeline.element
    if len(known) != len(element):
        return traced
    called = tuple(replace(tensor, name=name) for name, tensor in zip(known, element, strict=True))
    return replace(traced, pipeline=replace(traced.pipeline, element=called))


def _places(traced: Traced, workers: int) -> Places:
    """The stages where mends put a shard and a repeat."""
    last, functions, stage = _looked_up(traced)
    repeated, batch = repeat_place(last, functions)
    return Places(stage(shard_place(last, workers, functions)[0]), stage(repeated), stage(batch))


def _looked_up(traced: Traced) -> tuple[Any, dict[str, Any], Callable[[Any], Any]]:
    """The operation that delivers, the functions of its graph by name, and what tells the stage of one."""
    stage_of = {node.name: stage for stage, nodes in traced.nodes.items() for node in nodes}

    def stage(node: Any) -> Any:
        return None if node is None else traced.pipeline.by_name[stage_of[node.name]]

    with traced.graph.as_default():
        last = tf.data.experimental.to_variant(traced.dataset).op
    return last, {f.signature.name: f for f in traced.graph.as_graph_def().library.function}, stage


def _halves(first: Traced, last: Traced, workers: int) -> tuple[Half, ...]:
    """The datasets that the first and the last of several workers both read whole, joined with others."""
    end, functions, stage = _looked_up(first)
    whole = read_whole(end, _looked_up(last)[0])
    bare = without_shard(end, workers, 0) if whole else None
    place = None if bare is None else shard_place(end, workers, functions, bare)[0]
    return tuple(
        Half(
            first.pipeline,
            stage(branch.end),
            stage(branch.joins[0]),
            stage(place) if bare is not None and branch.end.name == bare.end.name else None,
        )
        for branch in whole
    )


@dataclass(frozen=True)
class _Compared:
    """The inputs of the first and the last of several workers.

    Attributes:
        first: That of the first one.
        differ: Whether they read different data; None where nobody can tell.
        halves: Datasets that both read whole, though not all of them.
        by_chance: Whether the order of the records depends on random numbers that the function draws.
        unknown: Why nobody can tell; a part of a sentence.
        files: How many the sources of both have, where that is known.
        caches: Names of files in which both keep a cache.
    """

    first: Traced
    differ: bool | None
    halves: tuple[Half, ...]
    by_chance: bool
    unknown: str
    files: tuple[int, ...]
    caches: frozenset[str]


def _compare(make: Make, workers: int, seed: int | None, eager: bool, role: Role | None) -> _Compared:
    """Calls the function as the first and as the last of several workers.

    Raises:
        Exception: whatever it raises then, unchanged.
    """

    def traced(seed: int | None, workers: int, index: int) -> Traced:
        return trace(partial(make, workers, index), seed, eager=eager)

    by_chance = unsteady = False
    with random_numbers_anew() as drawn:
        first = with_listed_files(traced(seed, workers, 0))
        draws = drawn()
    with random_numbers_anew():
        last = with_listed_files(traced(seed, workers, workers - 1))
    differ = fingerprint(first.graph) != fingerprint(last.graph)
    if draws:
        with random_numbers_anew(seed=_SEED):
            by_chance = _places_by_chance(first, traced(seed, workers, 0), workers)
    if differ and role is not None:
        with random_numbers_anew():
            again = traced(seed, workers, 0)
        unsteady = fingerprint(first.graph) != fingerprint(again.graph)
        by_chance = by_chance or (unsteady and _places_by_chance(first, again, workers))
    both = (first.pipeline, last.pipeline)
    found = Likeness(differ)
    if unsteady and not _has_shard(first):
        # Of TensorFlow's random numbers only a seed decides.
        digests = {fingerprint(traced(_SEED, workers, index).graph) for index in (0, workers - 1)}
        found = Likeness(False) if len(digests) == 1 else Likeness(None, RANDOM_EACH_TIME)
    elif not differ and calls_python(first.graph):
        # With a seed the two have the same random numbers.
        build = partial(traced, _SEED if seed is None else seed)
        unseen = Likeness(None, _PYTHON_UNSEEN)
        found = unseen if role is None else records_differ(build, workers, role)
    return _Compared(
        first=first,
        differ=found.differ,
        halves=_halves(first, last, workers) if found.differ and differ else (),
        by_chance=by_chance,
        unknown=found.unknown,
        files=tuple(count for count in map(_files, both) if count is not None),
        caches=frozenset.intersection(*map(_cache_files, both)),
    )


def _places_by_chance(first: Traced, other: Traced, workers: int) -> bool:
    """Whether the order of elements, where a shard is or may be put, is another one in another call."""
    changed = changed_arguments(_looked_up(first)[0], _looked_up(other)[0])
    return any(node.name in changed for node in before_shards(first, workers))


def _has_shard(traced: Traced) -> bool:
    last, functions, _ = _looked_up(traced)
    within = {inner.op for function in functions.values() for inner in function.node_def}
    return any(kind.startswith("ShardDataset") for kind in within | {node.type for node in in_order(last)})


def _cache_files(pipeline: Pipeline) -> frozenset[str]:
    names = (stage.attributes.get("filename") for stage in pipeline.stages if stage.op == "cache")
    return frozenset(name for name in names if isinstance(name, str) and name)


def _files(pipeline: Pipeline) -> int | None:
    for stage in pipeline.stages:
        count = stage.attributes.get("files")
        if isinstance(count, int):
            return count
    return None
