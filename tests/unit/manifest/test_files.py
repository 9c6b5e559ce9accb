"""Files that no manifest can be made of: an error with a place, at once, never a traceback."""

import os
import time

import pytest

from scalable.errors import ManifestError
from scalable.manifest import Manifest, read_targets

# A file that is expanded or parsed before it is refused takes far longer.
HANG_S = 30.0
HEAD = "version: 1\nproject: {name: p}\ntargets: {t: {provider: local}}\n"

FILES = {
    "empty": (b"", "E_SYNTAX@1:1 "),
    "comment": (b"# nothing\n", "E_SYNTAX@1:1 "),
    "null": (b"null\n", "E_SYNTAX@1:1 "),
    "empty map": (b"{}\n", "E_SYNTAX@1:1 "),
    "list": (b"- a\n", "E_SYNTAX@1:1 "),
    "text": (b"hello", "E_SYNTAX@1:1 "),
    "two documents": (b"version: 1\n---\nversion: 1\n", "E_SYNTAX@2:1 "),
    "latin-1": ("version: 1\nöx: \xff".encode("latin-1"), "E_SYNTAX@2:1 "),
    "after umlauts": ("version: 1\nöx: ".encode() + b"\xff", "E_SYNTAX@2:5 "),
    "utf-16": ("version: 1".encode("utf-16"), "E_SYNTAX@1:1 "),
    "control character": (b"version: 1\na: \x00\n", "E_SYNTAX@2:4 "),
    "tab": (b"version: 1\nproject:\n\tname: p\n", "E_SYNTAX@3:1 "),
    "open bracket": (b"version: [1\n", "E_SYNTAX@2:1 "),
    "bad escape": (b'version: "\\ud800"\n', "E_SYNTAX@1:13 "),
    "unknown alias": (b"version: *v\n", "E_SYNTAX@1:10 "),
    "alias in itself": (b"a: &a\n  b: *a\n", "E_SYNTAX@2:6 "),
}


@pytest.mark.parametrize(("content", "expected"), FILES.values(), ids=FILES)
def test_unfit_files(faults, content, expected):
    assert faults(content) == [expected]


BOMBS = {
    "aliases": "a0: &a0 [x, x]\n"
    + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 20)),
    "merge keys": "a0: &a0 {x: 1}\n"
    + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40)),
    "flow lists": "[" * 2_000_000,
    "flow maps": "{a: " * 1_000_000,
    "block lists": "- " * 2_000_000,
    "many values": "a: [" + "1," * 20_000,
    "many keys": "".join(f"k{i}: 1\n" for i in range(2000)),
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_bombs_are_refused_at_once(diagnose, few_values, text):
    started = time.process_time()
    found = diagnose(text.encode())
    assert time.process_time() - started < HANG_S
    (last,) = found
    assert last.code == "E_SYNTAX"
    assert last.hint


def test_a_file_within_the_limits_is_read(load, few_values):
    nested = "[" * 90 + "]" * 90
    values = "1, " * (few_values - 200)
    text = f"{HEAD}components: {{a: }}\n".replace("local", f"mine, n: {nested}, v: [{values}]")
    assert len(load(text).resolve("t").spec.options["v"]) == few_values - 200


@pytest.mark.parametrize("size", [10_000_000, 5 * 1024**2 + 1])
def test_large_files_are_not_read(diagnose, size):
    started = time.process_time()
    (found,) = diagnose(b"a: 1\n" * (size // 5 + 1))
    assert found.code == "E_UNREADABLE"
    assert "5 MiB" in found.message
    assert time.process_time() - started < HANG_S


def test_a_large_comment_is_no_fault(load):
    load((f"{HEAD}components: {{a: }}\n" + "# x\n" * 1_000_000).encode())


def test_a_directory_a_missing_file_a_pipe_and_an_endless_one(tmp_path, models):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "none.yaml", tmp_path / "pipe", "/dev/zero", "nul\0.yaml"):
        with pytest.raises(ManifestError) as caught:
            Manifest.load(path, models)
        (found,) = caught.value.diagnostics
        assert found.code == "E_UNREADABLE"
        assert found.file == str(path)
        assert str(path) in str(caught.value)
        with pytest.raises(ManifestError):
            read_targets(path)


@pytest.fixture
def nobody():
    """Root reads everything: be somebody else for a while."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


def test_a_file_that_may_not_be_read(tmp_path, models, nobody):
    path = tmp_path / "m.yaml"
    if os.geteuid() != 65534:
        path.write_text(HEAD)
        path.chmod(0)
    with pytest.raises(ManifestError) as caught:
        Manifest.load(path, models)
    assert caught.value.diagnostics[0].code == "E_UNREADABLE"
    assert "ermission" in str(caught.value)


def test_byte_order_mark_and_line_ends_of_windows(load, faults):
    text = f"{HEAD}components:\n  a:\n    cpus: CPUS\n".replace("\n", "\r\n")
    content = text.encode("utf-8-sig")
    assert load(content.replace(b"CPUS", b"2")).resolve("t").spec.components["a"].cpus == 2
    assert faults(content.replace(b"CPUS", b"x")) == ["E_BAD_OPTION@6:11 components.a.cpus"]


def test_columns_count_characters(faults):
    text = f"{HEAD}components:\n  a: {{image: äöü😀, cpus: x}}\n"
    assert faults(text) == ["E_BAD_OPTION@5:26 components.a.cpus"]


def test_three_thousand_lines_load_within_the_bound(load):
    components = "".join(
        f"  c{i}:\n    cpus: 1\n    memory: 2G\n    env:\n      A: ${{A:-1}}\n" for i in range(300)
    )
    tasks = "".join(
        f"  t{i}:\n    component: c{i}\n    count: 3\n    duration: 1m\n    cache: true\n"
        for i in range(300)
    )
    text = f"{HEAD}components:\n{components}tasks:\n{tasks}"
    assert text.count("\n") > 3000
    started = time.process_time()
    load(text.encode())
    assert time.process_time() - started < HANG_S
