"""Operations that compute the same for a batch of records as for its records one by one."""

from __future__ import annotations

import re
from collections.abc import Set

from tensorflow.python.ops.parallel_for import pfor

# Operations that `tf.vectorized_map` converts, but whose results depend on the number of calls, that have
# effects for each record, or that choose what to compute by the content of a record.
_NOT_CONVERTED = re.compile(
    r"Random|Multinomial|TruncatedNormal|(Stateless)?(If|While|Case)$|Print|Stack(Pop|Push)|Tensor(Array|List)|"
    r"Optional|SparseSegment|Xla"
)
# Operations that it does not convert, but that compute the same for every element, or for every row.
_BY_ELEMENT = frozenset(
    {
        *("Const", "NoOp", "Placeholder", "ReadVariableOp", "LookupTableFind", "LookupTableFindV2"),
        *("DecodeRaw", "DecodePaddedRaw", "StringToNumber", "AsString", "StringLower", "StringUpper"),
        *("StringStrip", "StringLength", "Substr", "RegexReplace", "StaticRegexReplace", "RegexFullMatch"),
        *("StringToHashBucket", "StringToHashBucketFast", "StringToHashBucketStrong"),
    }
)


def have_batch_form(kinds: Set[str]) -> bool:
    """Return True if a function of these operations can work on a batch of records."""
    return all(kind in _BY_ELEMENT or _is_converted(kind) for kind in kinds)


def _is_converted(kind: str) -> bool:
    return kind in pfor._pfor_converter_registry and not _NOT_CONVERTED.search(kind)
