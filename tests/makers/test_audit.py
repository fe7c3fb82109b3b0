"""Test that the audit hook sees files, network, processes and pickles."""

import pytest

from tests.makers.audit import news


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import json, numpy", []),
        ("open('/etc/hostname').read()", ["open /etc/hostname"]),
        ("import socket\nsocket.socket().close()", ["socket.__new__"]),
        ("import pickle\npickle.loads(pickle.dumps(print))", ["unpickle builtins.print"]),
        ("import os\nos.system('true')", ["os.system"]),
        ("import colorsys", ["import colorsys"]),
    ],
)
def test_what_is_done_is_told(code, expected):
    assert news(code, refused=["colorsys"]) == expected


def test_files_that_are_named_may_be_read(tmp_path):
    (tmp_path / "note").write_bytes(b"x")
    code = f"open({str(tmp_path / 'note')!r}).read()"
    assert news(code, [tmp_path]) == []
    assert news(code) == [f"open {tmp_path / 'note'}"]
