"""The kind of machine is a short text that is equal on equal machines."""

import platform
import subprocess
import sys

import pytest

from scalable.protocol import machine_kind as module
from scalable.protocol.machine_kind import LONGEST, MACHINE_TYPE, cleaned, machine_kind


@pytest.fixture
def kind(tmp_path, monkeypatch):
    """The kind of a machine with the given text in /proc/cpuinfo."""
    monkeypatch.delenv(MACHINE_TYPE, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(module, "_PROCESSORS", tmp_path / "cpuinfo")

    def of(text):
        (tmp_path / "cpuinfo").write_text(text)
        machine_kind.cache_clear()
        return machine_kind()

    yield of
    machine_kind.cache_clear()


@pytest.mark.parametrize(
    ("text", "model"),
    [
        (
            "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz\n",
            "Intel Xeon Gold 6148",
        ),
        ("model name\t: AMD EPYC 7763 64-Core Processor\n", "AMD EPYC 7763"),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported"),
    ],
)
def test_it_is_the_model_of_the_processor_and_the_architecture(kind, text, model):
    assert kind(text) == f"{model} {platform.machine()}"


def test_a_type_of_the_cloud_comes_first(kind, monkeypatch):
    monkeypatch.setenv(MACHINE_TYPE, "c7i.4xlarge")
    assert kind("model name\t: Intel(R) Xeon(R) Platinum 8488C\n") == "c7i.4xlarge"


def test_machines_that_tell_no_model_have_their_architecture(kind):
    assert platform.machine() in kind("")


@pytest.mark.parametrize("text", [None, 7, ["x"], "", " \n "])
def test_what_is_no_text_is_no_kind(text):
    assert cleaned(text) == ""


def test_texts_of_workers_are_short_and_on_one_line():
    assert cleaned("a\n b\x1b[31m") == "a b\\x1b[31m"
    assert len(cleaned("x" * 1000)) == LONGEST


def test_it_is_equal_in_another_process():
    code = "from scalable.protocol.machine_kind import machine_kind; print(machine_kind())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    machine_kind.cache_clear()
    assert done.stdout.strip() == machine_kind() != ""
