"""Bytes in larger units, powers of 1000 (KB, MB) and of 1024 (KiB, MiB)."""

from __future__ import annotations

_PREFIXES = "KMGTP"
UNITS = {"B": 1} | {
    f"{prefix}{unit}": base**power
    for unit, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate(_PREFIXES, start=1)
}
"""Bytes of each unit."""


def bytes_to_human(num: float, fmt: str = "{value:.1f}{unit}", log_base: int = 2) -> str:
    """Format a number of bytes in the largest unit that leaves 1 or more.

    Args:
        num: Bytes.
        fmt: Format with the fields `value` and `unit`.
        log_base: 2 for powers of 1024, 10 for powers of 1000.

    Raises:
        ValueError: `log_base` is neither.
    """
    if log_base not in (2, 10):
        raise ValueError(f"log_base is {log_base}, expected 2 (powers of 1024) or 10 (powers of 1000)")
    suffix = "iB" if log_base == 2 else "B"
    units = ["B", *(f"{prefix}{suffix}" for prefix in _PREFIXES)]
    unit = max((u for u in units if UNITS[u] <= abs(num)), key=UNITS.__getitem__, default="B")
    return fmt.format(value=num / UNITS[unit], unit=unit)


def convert_byte_unit(num: float, tgt_unit: str, src_unit: str = "B", precision: int = 0) -> float:
    """Return a number of units of `src_unit` in the unit `tgt_unit`; as an integer with precision 0.

    Args:
        num: Number of units of `src_unit`.
        tgt_unit: "B", or K, M, G, T or P with "B" (powers of 1000) or "iB" (powers of 1024).
        src_unit: As `tgt_unit`.
        precision: Decimals of the result.

    Raises:
        ValueError: A unit is unknown.
    """
    for name, unit in (("tgt_unit", tgt_unit), ("src_unit", src_unit)):
        if unit not in UNITS:
            raise ValueError(f"{name} is {unit!r}, expected one of {', '.join(UNITS)}")
    converted = num * UNITS[src_unit] / UNITS[tgt_unit]
    return round(converted, precision) if precision else int(converted)
