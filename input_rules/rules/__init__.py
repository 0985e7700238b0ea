"""Rules that find possible improvements of an input pipeline, a file for each family of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from input_rules.findings import Finding
from input_rules.pipeline import Pipeline
from input_rules.rules import batching, caching, order, parallelism, sharding
from input_rules.rules.base import Context

Rule = Callable[[Pipeline, Context], Iterator[Finding]]

# The rules about tf.data; findings of the same severity are reported in this order.
RULES: tuple[Rule, ...] = (
    sharding.find_missing_shard,
    sharding.find_late_shard,
    sharding.find_uneven_files,
    order.find_shuffle_after_batch,
    order.find_small_shuffle_buffer,
    batching.find_smaller_batches,
    batching.find_unknown_sizes,
    batching.find_map_before_batch,
    batching.find_missing_repeat,
    batching.find_missing_prefetch,
    batching.find_empty_prefetch,
    parallelism.find_sequential_calls,
    parallelism.find_fixed_cycle_length,
    parallelism.find_flat_map_of_files,
    parallelism.find_sequential_reader,
    caching.find_oversized_cache,
    caching.find_shared_cache_file,
    caching.find_cached_randomness,
    caching.find_missing_cache,
    parallelism.find_python_code,
    order.find_nondeterministic_order,
    order.find_stateful_randomness,
    order.find_unseeded_shuffle,
    batching.find_wide_types,
)

_RANK = {"error": 0, "warning": 1, "info": 2}


def find(pipeline: Pipeline, context: Context, rules: Sequence[Rule] = RULES) -> tuple[Finding, ...]:
    """Apply rules to a pipeline, by default those about tf.data; return the findings, most severe first."""
    found = [finding for rule in rules for finding in rule(pipeline, context)]
    # Two calls of the same name on a line give equal findings.
    return by_rank(dict.fromkeys(found))


def by_rank(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity, most severe first, and keep their order within each."""
    return tuple(sorted(findings, key=lambda finding: _RANK[finding.severity]))
