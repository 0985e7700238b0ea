"""Host lists: compressed lists expand to the same nodes, and any text is expanded or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_toolkit.errors import UsageError
from csrun.schedulers.hostlist import MAX_NODES, compress_hostlist, expand_hostlist

_NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,6}[0-9]{0,4}", fullmatch=True)
_COUNTING = st.builds(
    lambda prefix, first, count, width: [f"{prefix}{n:0{width}}" for n in range(first, first + count)],
    st.from_regex(r"[a-z]{1,4}-?", fullmatch=True),
    st.integers(0, 2_000),
    st.integers(1, 30),
    st.integers(1, 5),
)


@given(st.lists(_NAMES | _COUNTING.map(",".join), max_size=8))
def test_compressed_names_expand_to_the_same(parts: list[str]) -> None:
    names = ",".join(parts).split(",") if parts else []
    assert expand_hostlist(compress_hostlist(names)) == names


@given(_COUNTING)
def test_counting_names_become_one_entry(names: list[str]) -> None:
    if len({len(name) for name in names}) == 1:
        assert compress_hostlist(names).count(",") == 0


@given(st.text(alphabet="ab01-[], \n", max_size=40))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    try:
        names = expand_hostlist(text)
    except UsageError:
        return
    assert all(name and "[" not in name and "," not in name for name in names)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("cs-node[1-3,7]", ["cs-node1", "cs-node2", "cs-node3", "cs-node7"]),
        ("node[006,011]", ["node006", "node011"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("login, gpu[1-2]x", ["login", "gpu1x", "gpu2x"]),
        ("", []),
    ],
)
def test_what_scontrol_show_hostnames_prints(text: str, names: list[str]) -> None:
    assert expand_hostlist(text) == names


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a[1-3", "brackets that do not match"),
        ("a]1[", "brackets that do not match"),
        ("a[b]", "'b' between brackets"),
        ("a[3-1]", "the range '3-1'"),
        ("a[1-]", "'1-' between brackets"),
        (f"a[0-{MAX_NODES}]", "the range"),
        ("a[0-999]b[0-999]", f"more than {MAX_NODES} names"),
        ("a[1-60000,1-60000]", f"more than {MAX_NODES} names"),
    ],
)
def test_refusals_name_the_fault(text: str, what: str) -> None:
    with pytest.raises(UsageError, match="correct the list") as caught:
        expand_hostlist(text)
    assert what in str(caught.value)
