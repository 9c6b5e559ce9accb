"""Which runtime is taken."""

import pytest

from scalable.containers import choose_runtime
from scalable.errors import ProviderError


def installed(*names):
    return lambda name: f"/usr/bin/{name}" if name in names else None


EVERYTHING = installed("apptainer", "podman", "docker")


@pytest.mark.parametrize(("asked", "component", "which", "chosen"), [
    ("none", None, EVERYTHING, None),
    ("none", "docker", EVERYTHING, None),
    ("auto", "none", EVERYTHING, None),
    ("auto", None, EVERYTHING, "apptainer"),
    ("auto", None, installed("docker", "podman"), "podman"),
    ("auto", "host", installed("docker"), "docker"),
    ("docker", None, EVERYTHING, "docker"),
    ("docker", "podman", EVERYTHING, "podman"),
    ("podman", "auto", EVERYTHING, "apptainer"),
    ("podman", "host", EVERYTHING, "podman"),
])  # fmt: skip
def test_the_component_wins_over_the_target_and_none_over_both(asked, component, which, chosen):
    assert choose_runtime(asked, component, which) == chosen


@pytest.mark.parametrize(("asked", "which", "message", "hint"), [
    ("auto", installed(), "supported: apptainer, podman, docker", "write none"),
    ("docker", installed("podman"), "'docker' is not on PATH .installed: podman.", "auto"),
    ("docker", installed(), "'docker' is not on PATH .none is installed.", "install it"),
    ("rkt", EVERYTHING, "container runtime 'rkt' is unknown", "apptainer, podman, docker, auto"),
])  # fmt: skip
def test_a_missing_runtime_is_named_with_the_available_ones(asked, which, message, hint):
    with pytest.raises(ProviderError, match=message) as caught:
        choose_runtime(asked, None, which)
    assert hint in caught.value.hint
