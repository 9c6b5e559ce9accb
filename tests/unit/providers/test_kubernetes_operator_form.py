"""Objects for the Dask Kubernetes operator, and the lives of its pods."""

import asyncio
import json

import pytest
from test_kubernetes_render import frame_of, request

from scalable.manager.launcher import UnitState
from scalable.model import ComponentSpec
from scalable.providers.kubernetes import objects as drafts
from scalable.providers.kubernetes.form import OperatorForm
from scalable.providers.kubernetes.launcher import PodLauncher
from scalable.providers.kubernetes.remote import state_of
from unit.played import decorator_of

FORM = OperatorForm()
GROUP = "scalable-0123456789-crops-0123456789-0"


def objects(counts, *components, **options):
    spec = request(list(components) or None, operator=True, **options)
    return [json.loads(body) for body in drafts.objects(spec, counts).values()]


def parts_of(things):
    """The DaskCluster and the worker groups."""
    (cluster,) = [thing for thing in things if thing["kind"] == "DaskCluster"]
    return cluster, [thing for thing in things if thing["kind"] == "DaskWorkerGroup"]


# Objects ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.31", "1.34"])
def test_the_pods_of_the_operator_are_valid(version):
    validate = pytest.importorskip("kubernetes_validate").validate
    components = [ComponentSpec("a_b", memory="1G", mounts={"pvc://data/in": "/in"})]
    job, *others = objects({"a_b": 2}, *components, service_account="runner", env={"A": "1"})
    cluster, groups = parts_of(others)
    validate(job, version, strict=True)
    parts = [cluster["spec"]["scheduler"], *(group["spec"]["worker"] for group in groups)]
    for part in parts:
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", **part["metadata"]}}
        validate({**body, "spec": part["spec"]}, version, strict=True)
        assert part["spec"]["restartPolicy"] == "Always"  # a Deployment takes nothing else
    assert [thing["kind"] for thing in others] == [
        *("Secret", "DaskCluster", "Secret"),
        *("DaskWorkerGroup", "DaskWorkerGroup"),
    ]


def test_the_operator_finds_nothing_by_which_it_could_choose_a_worker():
    cluster, groups = parts_of(objects({"demeter": 1}))
    (port,) = cluster["spec"]["scheduler"]["service"]["ports"]
    assert port["name"] == "tcp-comm"
    assert cluster["spec"]["idleTimeout"] == 0
    assert cluster["spec"]["worker"]["replicas"] == 0
    (container,) = groups[0]["spec"]["worker"]["spec"]["containers"]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert env["DASK_SCHEDULER_ADDRESS"] == "None"  # else the operator adds one without TLS


# Lives --------------------------------------------------------------------------------------------


def pod(uid="1", restarts=0, state=None, last=None, phase="Running", **status):
    own = {"name": "scalable", "restartCount": restarts, "state": state or {"running": {}}}
    own |= {"lastState": {"terminated": last} if last else {}}
    return {
        "metadata": {
            "name": f"{GROUP}-worker-{uid}",
            "uid": uid,
            "labels": {"l": "1", "dask.org/workergroup-name": GROUP},
        },
        "spec": {"containers": [{"image": "i", "resources": {"limits": {"memory": "2000"}}}]},
        "status": {"phase": phase, "containerStatuses": [own], **status},
    }


OOM = {"exitCode": 137, "reason": "OOMKilled"}
REFUSED = {"exitCode": 73, "reason": "Error"}


class Deletions:
    """An API server that knows of groups, and whose deletions are remembered."""

    def __init__(self):
        self.deleted = []

    async def create(self, resource, body):
        assert resource.path() == "/apis/kubernetes.dask.org/v1/namespaces/n/daskworkergroups"

    async def delete(self, resource, name, **options):
        assert (resource.name, options) == ("daskworkergroups", {"propagationPolicy": "Foreground"})
        self.deleted.append(name)
        return True


def play(work):
    """Run a coroutine function on a launcher with one unit, and the API server."""

    async def run():
        api = Deletions()
        spec = request([ComponentSpec("crops")], operator=True)
        launcher = PodLauncher(
            api,
            "n",
            {"l": "1"},
            lambda tag, unit: FORM.unit(frame_of(spec), spec.components[tag], unit),
            FORM,
        )
        await launcher.launch({"crops-0123456789-0": {"pool": "crops"}})
        await work(launcher, api)

    asyncio.run(run())


launched = decorator_of(play, 2)


def seen(launcher):
    return launcher.observe()["crops-0123456789-0"]


def test_a_unit_ends_with_the_first_life_of_its_program():
    ends = []

    async def live(launcher, api):
        launcher.on_change = lambda: ends.append(1)
        assert "operator" in seen(launcher).reason
        launcher.noted(pod(), gone=False)
        assert seen(launcher).state is UnitState.RUNNING
        launcher.noted(pod(restarts=1, last=OOM), gone=False)
        assert seen(launcher).state is UnitState.ENDED
        assert "out of memory" in seen(launcher).reason
        launcher.noted(pod(restarts=2, last=REFUSED), gone=False)
        assert "out of memory" in seen(launcher).reason

    launched(live)
    assert ends == [1]


@launched()
async def test_a_program_that_ended_is_seen_before_it_is_started_again(launcher, api):
    launcher.noted(pod(state={"terminated": OOM}), gone=False)
    assert "out of memory" in seen(launcher).reason


@launched()
async def test_a_program_that_was_started_again_unseen_has_ended_all_the_same(launcher, api):
    launcher.noted(pod(restarts=1), gone=False)
    assert seen(launcher).state is UnitState.ENDED


@launched()
async def test_the_replacement_of_a_lost_pod_is_not_the_unit(launcher, api):
    launcher.noted(pod("1"), gone=False)
    launcher.noted(pod("2"), gone=False)
    launcher.noted(pod("1"), gone=True)
    assert (seen(launcher).state, seen(launcher).from_outside) == (UnitState.ENDED, True)


@launched()
async def test_a_group_is_deleted_although_its_first_pod_is_gone_and_all_its_pods_are_awaited(
    launcher, api
):
    launcher.noted(pod("1"), gone=False)
    launcher.noted(pod("1"), gone=True)
    launcher.noted(pod("2"), gone=False)
    stopping = asyncio.ensure_future(launcher.stop(["crops-0123456789-0"]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert api.deleted == [GROUP]
    assert not stopping.done()
    launcher.noted(pod("2"), gone=True)
    assert launcher._is_over(GROUP)
    stopping.cancel()


# Detached clusters --------------------------------------------------------------------------------


def test_the_manager_of_a_detached_cluster_may_make_worker_groups_and_finds_the_scheduler():
    bodies = drafts.objects(request(operator=True), {}, "apart").values()
    things = [json.loads(body) for body in bodies]
    (role_of_manager,) = [thing for thing in things if thing["kind"] == "Role"]
    verbs = {rule["resources"][0]: rule["verbs"] for rule in role_of_manager["rules"]}
    assert {"create", "delete", "list"} <= set(verbs["daskworkergroups"])
    assert "create" not in verbs["pods"]
    (service,) = [thing for thing in things if thing["kind"] == "Service"]
    (cluster,) = [thing for thing in things if thing["kind"] == "DaskCluster"]
    marks = cluster["spec"]["scheduler"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= marks.items()


def kept_job(*conditions):
    job = FORM.root(frame_of(request(operator=True)), 60)
    job["metadata"]["uid"] = "u"
    return {**job, "status": {"conditions": [{"type": c, "status": "True"} for c in conditions]}}


def scheduler_pod(**status):
    marks = {"scalable/cluster": "0123456789", "scalable/role": "scheduler"}
    return {"metadata": {"name": "s", "labels": marks}, "status": status}


def ended_with(code):
    own = {
        "name": "scalable",
        "restartCount": 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": code, "reason": "Error"}},
    }
    return scheduler_pod(phase="Running", containerStatuses=[own])


@pytest.mark.parametrize(("job", "pods", "state"), [
    (kept_job(), [], "pending"),
    (kept_job(), [ended_with(0)], "completed"),
    (kept_job(), [ended_with(137)], "failed"),
    (kept_job("Complete"), [ended_with(137)], "failed"),
    (kept_job("Complete"), [ended_with(0)], "completed"),
    (kept_job("Complete"), [], "failed"),
    (kept_job("Failed"), [ended_with(0)], "failed"),
])  # fmt: skip
def test_the_state_of_a_scheduler_is_that_of_its_first_life_and_not_its_keepers(job, pods, state):
    job["metadata"]["labels"]["scalable/cluster"] = "0123456789"
    assert state_of(job, pods).state == state
