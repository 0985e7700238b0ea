from __future__ import annotations

import pytest

from csrun.errors import UsageError
from csrun.site_defaults import SiteDefaults, site_defaults


def test_nothing_set_gives_the_smallest_job() -> None:
    assert site_defaults({}) == SiteDefaults(nodes=1, tasks_per_node=2, cpus_per_task=None)


def test_both_names_of_a_number_are_read_and_the_long_one_wins() -> None:
    assert site_defaults({"DEF_TASKS": "4", "DEF_CPUS": "8"}) == SiteDefaults(
        tasks_per_node=4, cpus_per_task=8
    )
    assert site_defaults({"DEF_TASKS": "4", "DEF_TASKS_PER_NODE": "5"}).tasks_per_node == 5


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "1_0", "٣", "99999999999"])
def test_a_wrong_number_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=r"DEF_NODES is .* whole number of at least 1"):
        site_defaults({"DEF_NODES": text})
