from __future__ import annotations

from pathlib import Path

import pytest

from cs_toolkit import config_file
from cs_toolkit.fabric import FabricError, fabric_names, load_fabric

CS2 = config_file("cs2.yaml")


def test_the_patio_of_a_cs2_has_307840_elements() -> None:
    fabric = load_fabric()
    assert fabric.name == "cs2"
    assert fabric.processing_elements == 307_840
    assert fabric.clock_hz == 850e6


@pytest.mark.parametrize("name", fabric_names())
def test_every_fabric_that_comes_with_the_toolkit_loads_under_its_name(name: str) -> None:
    assert load_fabric(name).name == name


def test_all_bundled_files_of_systems_are_known() -> None:
    assert {path.stem for path in CS2.parent.glob("cs[0-9]*.yaml")} == set(fabric_names())


def test_a_fabric_of_the_user_is_read_from_its_file(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(CS2.read_text().replace("name: cs2", "name: half").replace("width: 740", "width: 370"))
    assert load_fabric(own).processing_elements == 153_920


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        FabricError, match=r"'cs9', expected one of cs1, cs2 or the path of a \.yaml file"
    ) as error:
        load_fabric("cs9")
    assert error.value.exit_code == 2


def test_all_errors_of_a_file_are_named_with_their_lines(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(CS2.read_text().replace("width: 740", "width: -1\ncolor: red"))
    with pytest.raises(FabricError) as error:
        load_fabric(str(own))
    assert "own.yaml:7: 'width' is -1" in str(error.value)
    assert "own.yaml:8: unknown key 'color'" in str(error.value)


def test_input_is_limited_by_the_ethernet_links() -> None:
    fabric = load_fabric()
    # 12 x 100 Gbit/s at 850 MHz are 1411 bits a cycle.
    assert fabric.input_cycles(784 * 4 + 4) == 18
    assert fabric.input_cycles(0) == 1
