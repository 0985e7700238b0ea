"""Names of sparsity that TensorFlow programs import; there is no sparsifier to choose."""

from __future__ import annotations

from typing import Any

from estimator.errors import UnsupportedOnCsError


class _Sparsifiers(dict[str, type]):
    def __missing__(self, name: str) -> type:
        raise UnsupportedOnCsError(
            f"TensorFlow programs got the sparsifier {name!r}, expected none: train without sparsity here, "
            "or with the algorithms of cstorch.sparse in PyTorch"
        )


SPARSIFIER_MAP = _Sparsifiers()


def get_AdamW_aware_sparsifier_class(base_sparsifier: Any) -> Any:  # noqa: N802  # the original's name
    """Return the class unchanged."""
    return base_sparsifier
