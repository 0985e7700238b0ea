"""What the records that workers share out are, and in which order, before anybody takes a part of them.

Two calls in one process show neither what a module has made when it was imported, or what a function keeps
from its first call, nor the order of a set, which is that of `hash()` of its process. Two processes do.
"""

from __future__ import annotations

import hashlib
from typing import Any

import tensorflow as tf

from input_analyzer.tf.functions import library_of
from input_analyzer.tf.graph import Traced
from input_analyzer.tf.half_sharded import Arguments, without_shard
from input_analyzer.tf.insertion_places import shard_place
from input_analyzer.tf.nodes import in_order


def before_shards(traced: Traced, workers: int) -> list[Any]:
    """All dataset operations up to each shard there is, and up to where another one may be put."""
    with traced.graph.as_default():
        last = tf.data.experimental.to_variant(traced.dataset).op
    bare = without_shard(last, workers, 0)
    places = [node for node in in_order(last) if node.type.startswith("ShardDataset")]
    places.append(shard_place(last, workers, library_of(last), bare)[0] or last)
    return list({node.name: node for place in places for node in in_order(place)}.values())


def digest_of_order(traced: Traced, workers: int) -> str:
    """A digest of these operations with all that they are given; the same in every process that shares them.

    Without names, seeds and paths of caches. What Python code, or a file, delivers is not in it.
    """
    arguments = Arguments(traced.graph)
    parts = [arguments.of(node) for node in before_shards(traced, workers)]
    return hashlib.sha256("".join(parts).encode()).hexdigest()
