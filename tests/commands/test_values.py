"""Values of options: sizes, times, ranges and paths."""

from pathlib import Path

import click
import pytest

from squeeze.commands.values import PATH, STDOUT, PathOrUrl, PlaceOrName, Range, Size, Time


def test_sizes_and_ranges_are_read():
    assert Size().convert("2K", None, None) == Size().convert(2048, None, None) == 2048
    assert Range().convert("1K:", None, None) == (1024, None)
    assert Range().convert(":200", None, None) == (0, 200)


@pytest.mark.parametrize("text", ["100", "200:100", "a:b"])
def test_refuses_what_is_not_a_range(text):
    with pytest.raises(click.BadParameter):
        Range().convert(text, None, None)


@pytest.mark.parametrize("text", ["nan", "0", "-1", "1e9"])
def test_refuses_a_time_that_is_not_a_time(text):
    assert Time().convert("1.5", None, None) == 1.5
    with pytest.raises(click.BadParameter):
        Time().convert(text, None, None)


def test_a_dash_is_standard_output_only_where_that_serves():
    assert PathOrUrl(urls=True, standard=True).convert("-", None, None) is STDOUT
    with pytest.raises(click.BadParameter, match="standard input and output do not serve here"):
        PATH.convert("-", None, None)


def test_a_name_is_not_a_path_and_a_path_with_a_folder_is_not_a_name():
    value = PlaceOrName(["self"])
    assert value.convert("self", None, None) == "self"
    assert value.convert("./self", None, None) == Path("self")
