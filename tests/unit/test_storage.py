"""The storage of a project: its URLs, its files, and what never gets into a record."""

import pickle
import sys
import threading
import time
import uuid

import fsspec
import pytest

from scalable.errors import ManifestError, ProviderError
from scalable.storage import Storage, absolute_url, size_of, url_fault, without_secrets


@pytest.fixture
def memory():
    """A storage in this process's memory that no other test has."""
    return Storage(f"memory://{uuid.uuid4().hex}")


@pytest.mark.parametrize("text", [
    "results", "./a:b", "file:results", "file:///data/p@q", "file:///data/what?", "s3://bucket",
    "s3://bucket/deep/prefix", "gs://bucket/prefix", "memory://", "memory://harvest",
])  # fmt: skip
def test_urls_of_storages(text):
    assert url_fault(text) is None


@pytest.mark.parametrize(("text", "problem", "secret"), [
    ("s3://KEY:hidden@bucket/p", "must not contain a user or a password", True),
    ("gs://hidden@bucket", "must not contain a user or a password", True),
    ("ftp://ann:hidden@host/p", "must not contain a user or a password", True),
    ("s3://bucket/p?secret=hidden", "must not contain a query (?...)", True),
    ("https://host/p?token=hidden", "must not contain a query (?...)", True),
    ("simplecache::s3://k:hidden@bucket", "must be one URL, not a chain of URLs", True),
    ("simplecache::s3://bucket", "must be one URL, not a chain of URLs", False),
    ("https://host/p", "must not have the scheme 'https'", False),
    ("C:results", "must not have the scheme 'c'", False),
    ("s3:bucket", "must name a bucket", False),
    ("gs:///prefix", "must name a bucket", False),
])  # fmt: skip
def test_texts_that_are_no_urls_of_storages(text, problem, secret):
    fault = url_fault(text)
    assert (fault.problem, fault.secret) == (problem, secret)
    with pytest.raises(ManifestError, match="the URL of a storage must") as caught:
        Storage(text)
    assert "hidden" not in str(caught.value)


def test_relative_parts_start_in_the_given_directory():
    assert absolute_url("results", "/work/p") == "file:///work/p/results"
    assert absolute_url("file:../results", "/work/p") == "file:///work/results"
    assert absolute_url("file:///data//x/", "/work/p") == "file:///data/x"
    assert absolute_url("s3://bucket/a/", "/work/p") == "s3://bucket/a"


def test_files_are_written_listed_and_read(tmp_path):
    storage = Storage(str(tmp_path / "results"))
    assert not storage.exists("maps/a.nc")
    with storage.open("maps/a.nc", "wb") as file:
        file.write(b"abc")
    with storage.open("maps/deep/b.txt", "w", encoding="latin-1") as file:
        file.write("\u00e9")
    assert (tmp_path / "results" / "maps" / "deep" / "b.txt").read_bytes() == b"\xe9"
    assert storage.ls() == ["maps"]
    assert storage.ls("maps") == ["maps/a.nc", "maps/deep"]
    assert storage.exists("maps")
    assert storage.fs.cat(storage.path("maps/a.nc")) == b"abc"
    assert fsspec.open(storage.url("maps/a.nc")).open().read() == b"abc"
    with pytest.raises(FileNotFoundError):
        storage.ls("nothing")


def test_memory_is_a_storage_too(memory):
    with memory.open("a/b", "w") as file:
        file.write("x")
    assert memory.ls("a") == ["a/b"]
    assert memory.url("a/b") == f"{memory.root}/a/b"
    assert Storage("memory://").url("x") == "memory://x"
    assert Storage("/").url("x") == "file:///x"


def test_a_directory_that_others_fill_is_listed_as_it_is(tmp_path):
    storage = Storage(f"file://{tmp_path}")
    assert storage.ls() == []
    (tmp_path / "late").touch()
    assert storage.ls() == ["late"]
    assert storage.exists("late")


@pytest.mark.parametrize("path", ["../a", "a/../../b", "/etc/passwd", "s3://other/a"])
def test_paths_that_lead_out_of_the_storage_are_refused(memory, path):
    for act in (memory.open, memory.url, memory.exists, memory.ls, memory.path):
        with pytest.raises(ValueError, match="is not a path within the storage"):
            act(path)


def test_only_the_url_is_pickled(memory):
    memory.fs  # noqa: B018 - opened before
    data = pickle.dumps(memory)
    assert pickle.loads(data) == memory
    assert hash(pickle.loads(data)) == hash(memory)
    assert len(data) < 200
    assert vars(memory) == {"root": memory.root}


def test_a_library_that_is_missing_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    storage = Storage("s3://bucket/prefix")
    assert storage.url("a") == "s3://bucket/prefix/a"
    with pytest.raises(ProviderError, match="pip install s3fs") as caught:
        storage.open("a")
    assert str(caught.value).startswith("s3:// needs a library that this Python lacks")


def test_secrets_of_urls_are_not_recorded():
    assert without_secrets("s3://bucket/a.nc") == "s3://bucket/a.nc"
    assert without_secrets("https://ann:pw@host:8/a?id=1") == "https://host:8/a?id=1"
    signed = "https://host/a?id=1&X-Amz-Signature=abc&sig=def"
    assert without_secrets(signed) == "https://host/a?id=1&X-Amz-Signature=...&sig=..."


def test_the_size_of_what_a_url_names(memory, tmp_path):
    with memory.open("a", "wb") as file:
        file.write(b"12345")
    assert size_of(memory.url("a")) == 5
    assert size_of(memory.url("b")) is None
    assert size_of("nonsense://x") is None


def test_a_store_that_does_not_answer_does_not_delay_the_workflow(memory, monkeypatch):
    answer = threading.Event()
    monkeypatch.setattr(type(memory.fs), "info", lambda *_: answer.wait(60))
    began = time.monotonic()
    assert size_of(memory.url("a"), timeout_s=0.1) is None
    assert time.monotonic() - began < 30
    answer.set()
