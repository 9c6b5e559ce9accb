"""States of pods in plain words."""

import pytest

from scalable.manager.launcher import UnitState
from scalable.providers.kubernetes.check import amount
from scalable.providers.kubernetes.reasons import lost_node, observation


def pod(phase="Pending", conditions=(), state=None, limit="2000000000", **status):
    containers = [{"name": "scalable", "image": "site/model:1", "state": state}] if state else []
    return {
        "spec": {
            "containers": [{"image": "site/model:1", "resources": {"limits": {"memory": limit}}}]
        },
        "status": {
            "phase": phase,
            "conditions": list(conditions),
            "containerStatuses": containers,
            **status,
        },
    }


def unscheduled(message):
    return [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    ]


@pytest.mark.parametrize(("message", "words"), [
    ("0/3 nodes are available: 3 Insufficient cpu.", "too few cpus"),
    ("0/3 nodes are available: 3 Insufficient memory.", "too little memory"),
    ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", "too few gpus"),
    ("0/1 nodes are available: 1 Insufficient example.com/fpga.", "too few example.com/fpga"),
    ("1 node(s) had untolerated taint {spot: true}.", "taint 'spot: true' is not tolerated"),
    ("1 node(s) had untolerated taint(s) {a: b}.", "taint 'a: b' is not tolerated"),
    ("1 node(s) didn't match Pod's node affinity/selector.", "labels of node_selector"),
    ("something new", "no node accepts it"),
])  # fmt: skip
def test_a_pod_without_a_node_says_which_resource_is_missing(message, words):
    seen = observation(pod(conditions=unscheduled(message)))
    assert seen.state is UnitState.PENDING
    assert words in seen.reason
    assert message in seen.reason


def waiting(reason, message=""):
    return {"waiting": {"reason": reason, "message": message}}


def test_an_image_that_cannot_be_pulled_is_named_and_tried_while_that_may_help():
    seen = observation(pod(state=waiting("ImagePullBackOff", "Back-off pulling image")))
    assert seen.state is UnitState.PENDING
    assert "image 'site/model:1' cannot be pulled" in seen.reason


@pytest.mark.parametrize(("reason", "message"), [
    ("InvalidImageName", "couldn't parse image"),
    ("ImagePullBackOff", "manifest for site/model:1 not found"),
])  # fmt: skip
def test_an_image_that_does_not_exist_ends_the_unit(reason, message):
    seen = observation(pod(state=waiting(reason, message)))
    assert seen.state is UnitState.ENDED
    assert not seen.from_outside
    assert "site/model:1" in seen.reason


@pytest.mark.parametrize(
    ("reason", "code", "words"),
    [("OOMKilled", 137, "it used more than 2G"), ("Error", 71, "it used nearly 2G")],
)
def test_a_pod_that_used_too_much_memory_names_the_limit(reason, code, words):
    seen = observation(pod("Failed", state={"terminated": {"reason": reason, "exitCode": code}}))
    assert seen.reason == f"out of memory: {words}"
    assert seen.out_of_memory
    assert not seen.from_outside


def test_an_exit_code_is_a_crash():
    seen = observation(pod("Failed", state={"terminated": {"reason": "Error", "exitCode": 3}}))
    assert (seen.state, seen.reason, seen.from_outside) == (UnitState.ENDED, "exit code 3", False)


@pytest.mark.parametrize(("status", "words"), [
    ({"reason": "Evicted", "message": "low on memory"}, "evicted: low on memory"),
    ({"reason": "NodeLost"}, "its node was lost"),
    ({"reason": "Preempting"}, "preempted"),
])  # fmt: skip
def test_ends_that_the_calls_did_not_cause_are_from_outside(status, words):
    seen = observation(pod("Failed", **status))
    assert seen.from_outside
    assert words in seen.reason


@pytest.mark.parametrize(("reason", "words"), [
    ("PreemptionByScheduler", "preempted"),
    ("DeletionByTaintManager", "node was lost"),
    ("EvictionByEvictionAPI", "evicted"),
])  # fmt: skip
def test_a_disruption_is_from_outside_whatever_the_exit_code(reason, words):
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "m"}
    ended = {"terminated": {"reason": "Error", "exitCode": 143}}
    seen = observation(pod("Failed", [condition], state=ended))
    assert seen.from_outside
    assert words in seen.reason


@pytest.mark.parametrize(("conditions", "ready", "node"), [
    ([{"type": "Ready", "status": "False"}], True, "n"),
    ([{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}], True, None),
    ([{"type": "Ready", "status": "False"}], False, None),
    ([{"type": "Ready", "status": "True"}], True, None),
    ([{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}], True, "n"),
])  # fmt: skip
def test_a_pod_on_a_silent_node_is_recognized(conditions, ready, node):
    silent = pod("Running", conditions, {"running": {}})
    silent["spec"]["nodeName"] = "n"
    silent["status"]["containerStatuses"][0]["ready"] = ready
    assert lost_node(silent) == node
    assert observation(silent).state is UnitState.RUNNING
    silent["metadata"] = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert observation(silent).state is (UnitState.ENDED if node else UnitState.RUNNING)


@pytest.mark.parametrize(("written", "number"), [
    ("500m", 0.5), ("2Gi", 2**31), ("1e3", 1000), ("4", 4), ("1.5G", 1.5e9),
    ("128974848", 128974848),
])  # fmt: skip
def test_quantities_are_read_as_kubernetes_reads_them(written, number):
    assert amount(written) == number


def test_other_texts_are_no_quantities():
    with pytest.raises(ValueError, match="not a Kubernetes quantity"):
        amount("2 Gi")


NOT_FOUND = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc "
    'create failed: unable to start container process: exec: "python3": executable file not found '
    "in $PATH: unknown"
)


def test_an_image_without_python_is_named():
    words = "image 'site/model:1' has no program python3"
    ended = {"terminated": {"exitCode": 128, "reason": "StartError", "message": NOT_FOUND}}
    seen = observation(pod("Failed", state=ended))
    assert seen.reason.startswith(f"{words}: exit code 128 (StartError)")
    seen = observation(pod(state=waiting("RunContainerError", NOT_FOUND)))
    assert seen.reason.startswith(f"{words}: its container cannot be started")
