"""Mach-O images are read from their load commands, wherever they begin, and invalid headers are refused."""

import pytest

from squeeze.codecs.parse.program import macho
from squeeze.codecs.parse.program.plan import FORMATS, MACHINES
from squeeze.codecs.parse.program.sections import Role
from tests.makers import programs

IMAGES = {name: data for name, data in programs.images().items() if name.startswith("Mach-O")}


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_has_its_machine_sections_and_segments(name):
    image = macho.read(IMAGES[name], 0)
    assert image and f"{FORMATS[image.format]} {MACHINES[image.machine]}" == name
    assert Role.CODE in {section.role for section in image.sections}
    assert 0 < image.size <= len(IMAGES[name]) and image.segments and image.is_placed
    assert all(section.start + section.size <= image.size for section in image.sections)


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_within_data_is_the_same(name):
    assert macho.read(b"before " + IMAGES[name], 7) == macho.read(IMAGES[name], 0)


@pytest.mark.parametrize("name", IMAGES)
def test_invalid_headers_are_refused(name):
    data = IMAGES[name]
    assert macho.read(b"\0" + data[1:], 0) is None
    assert macho.read(data[:31], 0) is None
    assert macho.read(data[:16] + bytes(4) + data[20:], 0) is None  # no load commands
    assert macho.read(data[:36] + b"\4\0\0\0" + data[40:], 0) is None  # a command shorter than its header
    assert macho.read(data[:20] + b"\xff\xff\xff\x7f" + data[24:], 0) is None  # commands beyond the end
