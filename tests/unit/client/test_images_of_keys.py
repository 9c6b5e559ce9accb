"""The component of a call in its key: image and environment."""

import logging
import os
from types import SimpleNamespace

import pytest

from scalable.cache.calls import Purpose
from scalable.cache.key import KeyOptions
from scalable.client.caching import TaskCache
from scalable.model.cache_settings import CacheSettings

CLIENT = SimpleNamespace(_scheduler_identity={})


def work():
    return 1


@pytest.fixture
def calls(tmp_path):
    """Return a function that returns a call in a new session, or None."""

    def made(*, here=False, **parts):
        store = str(tmp_path / "results")
        says = CacheSettings(store, environments={"main": parts}, images_here=here)
        remembered = TaskCache(CLIENT, says)
        made = remembered.call(work, (), {}, Purpose(tag="main"), KeyOptions())
        return made and made.key

    return made


@pytest.fixture
def key(calls):
    return calls


def test_image_that_is_a_file_counts_by_its_content(key, tmp_path):
    image, other = tmp_path / "model.sif", tmp_path / "other.sif"
    for path in (image, other):
        path.write_bytes(b"one")
        os.utime(path, (1, 1))
    first = key(image=str(image))
    assert key(image=str(other)) == first
    image.write_bytes(b"two")
    os.utime(image, (1, 1))
    assert key(image=str(image)) != first


def test_the_environment_and_names_with_a_digest_count_as_they_are_written(key):
    keys = [
        key(), key(image=f"model:1@sha256:{'0' * 64}"), key(image=f"model:1@sha256:{'1' * 64}"),
        key(**{"environment:A": "1"}), key(**{"environment:A": "2"}), key(**{"environment:B": "1"}),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert key(image=f"model:1@sha256:{'0' * 64}") == keys[1]


@pytest.fixture
def podman(tmp_path, monkeypatch):
    """Return a function that says what a podman of this machine answers, and counts questions."""
    programs = tmp_path / "programs"
    programs.mkdir()
    asked = programs / "asked"

    def answers(text, code=0):
        (programs / "podman").write_text(
            f"#!/bin/sh\necho \"$@\" >> {asked}\necho '{text}'\nexit {code}\n"
        )
        (programs / "podman").chmod(0o700)
        monkeypatch.setattr("scalable.cache.key.PROGRAMS", (str(programs / "podman"),))
        return asked

    return answers


def test_a_name_that_moved_to_another_image_is_another_key(calls, podman):
    podman("sha256:" + "a" * 64)
    first = calls(here=True, image="model:latest")
    assert calls(here=True, image="model:latest") == first is not None
    podman("sha256:" + "b" * 64)
    assert calls(here=True, image="model:latest") != first


def test_programs_are_asked_once_in_a_session(tmp_path, podman):
    asked = podman("sha256:" + "a" * 64)
    says = CacheSettings(
        str(tmp_path / "results"), environments={"main": {"image": "m:1"}}, images_here=True
    )
    remembered = TaskCache(CLIENT, says)
    for _ in range(3):
        remembered.call(work, (), {}, Purpose(tag="main"), KeyOptions())
    assert asked.read_text() == "image inspect --format {{.Id}} -- m:1\n"


@pytest.mark.parametrize("here", [False, True])
def test_calls_in_an_image_of_which_only_the_name_is_known_are_not_remembered(
    calls, podman, caplog, here
):
    podman("no such image", 1)
    with caplog.at_level(logging.WARNING, "scalable.client"):
        assert calls(here=here, image="model:latest") is None
        assert calls(here=here, image="/not/here.sif") is None
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "model:latest" in told[0]
    assert "by its digest" in told[0]
    says = CacheSettings("x", environments={"main": {"image": "model:latest"}})
    remembered = TaskCache(CLIENT, says)
    assert remembered.function(work, Purpose(tag="main"), KeyOptions()) is work
