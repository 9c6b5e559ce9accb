"""The end of a log."""

from scalable.files import read_tail


def test_the_end_of_a_file_is_read(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"first\n" + b"x" * 100 + b"\nlast \xff\n")
    assert read_tail(log, 8) == "last \ufffd\n"
    assert read_tail(log).startswith("first\n")
    log.write_bytes(b"")
    assert read_tail(log) == ""


def test_a_file_that_cannot_be_read_is_empty(tmp_path):
    assert read_tail(tmp_path / "none") == ""
    assert read_tail(tmp_path) == ""
