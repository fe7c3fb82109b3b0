"""Marked-up books become plain text, wrapped text and wiki pages."""

from training import text

XHTML = b"""<html xmlns="http://www.w3.org/1999/xhtml"><head><title>No</title><meta/></head><body><section>
<h2>I</h2><p>\xe2\x80\x9cWait\xe2\x80\x94<i>now</i>,\xe2\x80\x9d she said.</p>
<blockquote><p>Quoted.</p></blockquote></section></body></html>"""
CNXML = b"""<document xmlns="http://cnx.rice.edu/cnxml"><title>Cells</title><metadata><x>no</x></metadata><content>
<para>The <term>nucleus</term> is <emphasis>large</emphasis>.</para><section><title>Parts</title>
<list><item>one</item><item>two</item></list></section></content></document>"""
TEI = b"""<TEI><teiHeader><p>no</p></teiHeader><text><body><div type="chapter"><head>1</head><p>A.</p></div>
<div type="chapter"><head>2</head><p>B<pb/>b.</p></div></body></text></TEI>"""


def parsed(content: bytes) -> text.ElementTree.Element:
    root = text.tree(content)
    assert root is not None
    return root


def test_xhtml_becomes_paragraphs() -> None:
    assert text.plain(parsed(XHTML)) == "I\n\n\u201cWait\u2014now,\u201d she said.\n\nQuoted.\n"


def test_older_books_are_ascii_and_wrapped() -> None:
    body = text.gutenberg(text.plain(parsed(XHTML)) + "\n" + "word " * 40, 40, indent=True)
    assert body.startswith('  I\n\n  "Wait--now," she said.\n\n  Quoted.\n\n  word')
    assert max(map(len, body.splitlines())) <= 40


def test_chapters_of_tei_are_apart() -> None:
    assert [text.plain(chapter) for chapter in text.chapters(parsed(TEI))] == ["1\n\nA.\n", "2\n\nBb.\n"]


def test_a_wiki_page_has_markup() -> None:
    page = text.wiki(parsed(CNXML), 4)
    assert page.startswith("'''Cells'''\n\nThe [[nucleus]] is ''large''.\n\n==Parts==\n\n*one\n*two\n")
    assert "[[Category:Nucleus]]" in page
    assert "&#x27;&#x27;&#x27;Cells" in text.wiki(parsed(CNXML), 5)


def test_broken_xml_and_entities_are_refused() -> None:
    assert text.tree(b"<a><b></a>") is None
    assert text.tree(b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>') is None
