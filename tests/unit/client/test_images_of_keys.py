"""The component of a call in its key: image and environment."""

import os

import pytest

from scalable.caching.calls import Purpose
from scalable.caching.key import KeyOptions
from scalable.client.remembering import RememberedCalls
from scalable.spec.remembering import Remembering


def work():
    return 1


@pytest.fixture
def key(tmp_path):
    """Return a function that returns the key of a call in a new session."""

    def made(**parts):
        says = Remembering(str(tmp_path / "results"), environments={"main": parts})
        calls = RememberedCalls(lambda: says, lambda: False)
        return calls.call(work, (), {}, KeyOptions(), Purpose(tag="main")).key

    return made


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


def test_other_images_and_the_environment_count_as_they_are_written(key):
    keys = [
        key(),
        key(image="model:1"),
        key(image="model:2"),
        key(image="/not/here.sif"),
        key(**{"environment:A": "1"}),
        key(**{"environment:A": "2"}),
        key(**{"environment:B": "1"}),
    ]
    assert len(set(keys)) == len(keys)
    assert key(image="model:1") == keys[1]
