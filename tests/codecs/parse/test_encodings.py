"""Text in UTF-32 and in code pages is opened to UTF-8, and closed to the same bytes."""

import numpy as np
import pytest

from squeeze.codecs.parse.encodings import PAGES, CodePage, Utf32, table
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError
from tests.codecs.parse.test_texts import check
from tests.makers import inputs

TEXT = inputs.words(2_000).decode()
GERMAN = "Über die größte Brücke fährt täglich ein Zug, „schön“ und für alle – auch für ältere Leute.\n" * 9  # noqa: RUF001
FRENCH = "L’été, à la forêt, où l’élève a été très tôt : « ça va déjà ». Le garçon naïf goûte un gâteau.\n" * 9  # noqa: RUF001
RUSSIAN = "Широкая электрификация южных губерний даст мощный толчок подъёму сельского хозяйства. Съешь ещё.\n" * 9
GREEK = "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία, και το φως του ήλιου είναι πάντα εδώ για όλους.\n" * 9  # noqa: RUF001
POLISH = "Zażółć gęślą jaźń, a pchnąć w tę łódź jeża lub ośm skrzyń fig; książka leży pod łóżkiem.\n" * 9


@pytest.mark.parametrize("order", ["utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_utf_32_becomes_utf_8(order, mark):
    text = mark + TEXT + RUSSIAN + "中文 😀\n"
    assert check(text.encode(order))[0] == ("UTF-32", text.encode())


def test_utf_32_among_other_bytes():
    data = b"\xff" * 40 + TEXT.encode("utf-32-le") + b"\0\0\x11\0" + b"\xff" * 40
    assert check(data) == [("UTF-32", TEXT.encode())]


def test_small_numbers_are_not_utf_32():
    assert check(np.arange(1, 400, dtype="<u4").tobytes()) == []
    assert check((np.arange(2_000, dtype="<u4") % 9).tobytes()) == []


@pytest.mark.parametrize(
    ("text", "page"),
    [
        *((FRENCH, page) for page in ("cp1252", "mac-roman")),
        *((GERMAN.replace("„", "»").replace("“", "«").replace("\u2013", ""), page) for page in ("cp1252", "cp437")),
        *((RUSSIAN, page) for page in ("cp1251", "koi8-r", "cp866")),
        *((POLISH, page) for page in ("cp1250", "iso8859-2")),
        (GREEK, "cp1253"),
    ],
)
def test_a_text_in_a_code_page_becomes_utf_8(text, page):
    assert check(text.encode(page)) == [("code page", text.encode())]
    found = CodePage().open(text.encode(page), 0, Room(1 << 20))
    assert found and CodePage().kind_name(found.extra) == f"{page} text"


@pytest.mark.parametrize(
    "data",
    [
        *(RUSSIAN.encode(), GERMAN.encode(), FRENCH.encode("cp1252") + b"\0", b"\xe9" * 9),
        *(inputs.random_bytes(5_000), RUSSIAN.encode("utf-8")[:-1], bytes(range(32, 256)) * 9, TEXT.encode()),
    ],
)
def test_what_is_no_text_in_a_code_page_stays_closed(data):
    assert "code page" not in dict(check(data))


def test_each_byte_of_a_page_is_another_character():
    for number, page in enumerate(PAGES):
        content = np.frombuffer(table(page).encode(), np.uint8)
        closed = CodePage().close(content, content[:0], bytes([number]))
        assert closed.tobytes() == bytes(range(256))


@pytest.mark.parametrize("extra", [b"", b"\x40", b"\0\0"])
def test_impossible_extras_are_refused(extra):
    content = np.frombuffer(b"text", np.uint8)
    for wrapper in (CodePage(), Utf32()):
        with pytest.raises(DamagedError):
            wrapper.close(content, content[:0], extra)
    for text in ("中".encode(), b"\xff"):
        with pytest.raises(DamagedError):
            CodePage().close(np.frombuffer(text, np.uint8), content[:0], b"\0")
