"""Digests of signed archives follow from their members."""

import base64
import hashlib

import numpy as np
import pytest

from squeeze.codecs.parse import finding, jar_digests, tree
from squeeze.codecs.parse.jar_digests import MANIFEST, SIGNATURE, Digests, kind_of
from squeeze.codecs.parse.tree import Node
from squeeze.errors import DamagedError
from tests.makers import wrapped
from tests.references import naive_zip


def own_bytes(data: bytes) -> list[bytes]:
    """Return the own bytes of all members of an archive that comes back."""
    root: Node = finding.parse(np.frombuffer(data, np.uint8), lambda data, found: True)
    own = np.concatenate([node.own for node in root.nodes()])
    assert tree.close(tree.read(tree.to_bytes(root), own), len(data)).tobytes() == data
    return [child.node.own.tobytes() for child in root.children]


@pytest.mark.parametrize("is_last", [False, True])
def test_digests_of_members_and_of_sections_are_left_out(is_last):
    members = own_bytes(wrapped.signed_jar(is_last=is_last))
    manifest, signature = (members[k] for k in ((-1, -2) if is_last else (0, 1)))
    for text in (manifest, signature):
        assert text.count(b"SHA-256-Digest: \r\n") == len(wrapped.TEXTS)
    assert manifest.count(b"\r\n /many") == 1
    assert [*wrapped.TEXTS] == (members[:-2] if is_last else members[2:])


def test_digests_of_other_files_stay():
    wrong = b"Name: none\r\nSHA-256-Digest: " + b"A" * 43 + b"=\r\n\r\n"
    manifest = own_bytes(wrapped.signed_jar(wrong=wrong))[0]
    assert manifest.endswith(wrong) and manifest.count(b"SHA-256-Digest: \r\n") == len(wrapped.TEXTS)


def test_a_manifest_that_does_not_come_back_stays_as_it_is():
    wrong = b"Name: words/part-0.txt\r\nSHA-256-Digest: \r\n\r\n"
    manifest, signature = own_bytes(wrapped.signed_jar(wrong=wrong))[:2]
    assert manifest.endswith(wrong) and b"SHA-256-Digest: \r\n" not in manifest[: -len(wrong)]
    assert signature.count(b"SHA-256-Digest: \r\n") == len(wrapped.TEXTS) - 1  # the section of part 0 is another one


MEMBERS = [(b"one", b"1"), (b"two", b"2" * 100), (b"", b"3")]
TEXTS = {
    "nothing": b"",
    "one line": b"SHA1-Digest: ",
    "no section": b"SHA-256-Digest: \n",
    "a section": b"A: 1\n\nName: one\nSHA1-Digest: \nSHA-1-Digest: \nSHA-256-Digest: \n\nSHA1-Digest: \n",
    "a name in parts": b"Name: o\r\n n\r\n e\r\nSHA-256-Digest: \r\n\r\n",
    "a name after a name": b"Name: one\nName: two\nSHA-256-Digest: \nName: one\nX: 1\nSHA1-Digest: \n",
    "a name alone": b"Name: one\n\nSHA1-Digest: \nName: two",
    "an empty name": b"Name: \nSHA1-Digest: \n\nName: \n\n",
    "no newline at the end": b"Name: two\r\nSHA-256-Digest: ",
    "sections of one name": b"Name: one\nA: 1\n\nName: one\nB: 1\n\n\n\n",
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("kind", [MANIFEST, SIGNATURE])
def test_agrees_with_a_decoder_of_the_format(name, kind):
    members = [(name, np.frombuffer(content, np.uint8)) for name, content in MEMBERS]
    manifest = TEXTS[name] + b"Name: two\nX: 1\n\nName: one\r\nX: 2\r\n"
    digests = Digests([*members, (b"META-INF/MANIFEST.MF", np.frombuffer(manifest, np.uint8))])
    values = dict(MEMBERS) if kind == MANIFEST else naive_zip.sections(manifest)
    ours = digests.filled(kind, np.frombuffer(TEXTS[name], np.uint8)).tobytes()
    assert ours == naive_zip.digests(TEXTS[name], values)


def test_knows_names():
    assert kind_of(b"META-INF/MANIFEST.MF") == MANIFEST
    assert kind_of(b"META-INF/ANY.SF") == SIGNATURE
    assert not any(map(kind_of, [b"", b"MANIFEST.MF", b"META-INF/ANY.RSA", b"other/META-INF/ANY.SF"]))


def test_refuses_a_manifest_without_end(monkeypatch):
    monkeypatch.setattr(jar_digests, "_MOST", 100)
    member = b"one", np.frombuffer(b"1", np.uint8)
    for remains in (b"x" * 101, b"Name: one\n" + b"SHA-256-Digest: \n" * 3):
        with pytest.raises(DamagedError):
            Digests([member]).filled(MANIFEST, np.frombuffer(remains, np.uint8))
    assert Digests([member]).emptied(MANIFEST, np.zeros(101, np.uint8)) is None


def test_old_digests_are_of_sha_1():
    digest = base64.b64encode(hashlib.sha1(b"1").digest())
    content = b"Name: one\nSHA1-Digest: " + digest + b"\n\n"
    remains = Digests([(b"one", np.frombuffer(b"1", np.uint8))]).emptied(MANIFEST, np.frombuffer(content, np.uint8))
    assert remains is not None and remains.tobytes() == b"Name: one\nSHA1-Digest: \n\n"


def test_of_several_manifests_the_last_counts_and_a_longer_one_has_no_sections(monkeypatch):
    texts = [f"Name: one\nX: {number}\n{' ' * length}\n\n".encode() for number, length in enumerate((1, 2, 80))]
    manifests = [(b"META-INF/MANIFEST.MF", np.frombuffer(text, np.uint8)) for text in texts]
    remains = b"Name: one\nSHA1-Digest: "
    expected = remains + base64.b64encode(hashlib.sha1(texts[1]).digest())
    monkeypatch.setattr(jar_digests, "_MOST", 80)
    for last, filled in ((2, expected), (3, remains)):
        found = Digests(manifests[:last]).filled(SIGNATURE, np.frombuffer(remains, np.uint8)).tobytes()
        assert found == filled
