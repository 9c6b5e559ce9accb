"""Google Cloud as a cloud of machines: what is requested, what comes back, and all its faults."""

import asyncio
import itertools

import pytest

from scalable.errors import ProviderError
from scalable.providers.remote.cloud import (
    CLUSTER,
    NAME,
    OWNER,
    ROLE,
    SCHEDULER,
    WORKERS,
    MachineRequest,
    MachineState,
    Refusal,
)

pytest.importorskip("google.auth")

from scalable.model import ComponentSpec, DeploymentSpec
from scalable.providers.gcp import api as api_module
from scalable.providers.gcp.cloud import GoogleCloud
from scalable.providers.gcp.config import Config
from scalable.providers.gcp.provider import GCPProvider

NUMBERS = itertools.count(1)
#: Seconds in which everything happens even on a busy machine.
SOON = 60


@pytest.fixture
def bed(gcp_bed, monkeypatch):
    for name, text in gcp_bed.environment().items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(api_module, "FIRST_PAUSE_S", 0.01)
    gcp_bed.reset_calls()
    yield gcp_bed
    gcp_bed.clear_faults()
    gcp_bed.clear()


def on_cloud(test, **options):
    """Run a coroutine function with a connection."""

    async def run():
        cloud = GoogleCloud(Config(**{"region": "us-central1"} | options))
        try:
            async with asyncio.timeout(SOON):
                return await test(cloud)
        finally:
            await cloud.close()

    return asyncio.run(run())


def request(name=None, cluster="c-1", **fields):
    name = name or f"unit-{next(NUMBERS)}"
    marks = {CLUSTER: cluster, OWNER: "Ann <ann@x.org>", ROLE: WORKERS, NAME: name}
    own = {"cpus": 1, "memory_bytes": 2**30, "units": (name,), "image": "any", "files": "none"}
    return MachineRequest(
        **{"name": name, "marks": marks, "program": (WORKERS, name)} | own | fields
    )


async def until(cloud, state, marks=None):
    while True:
        found = await cloud.machines(marks or {CLUSTER: "c-1"})
        if found and all(machine.state is state for machine in found):
            return found
        await asyncio.sleep(0.1)


# Machines -----------------------------------------------------------------------------------------


def test_a_machine_has_the_marks_of_its_request_exactly(bed):
    async def test(cloud):
        wanted = request("Unit.7", environment={"A": "x y'z"})
        bed.never_boot()
        made = (await cloud.run([wanted]))["Unit.7"]
        (found,) = await until(cloud, MachineState.RUNNING, {OWNER: "Ann <ann@x.org>"})
        assert found.marks == dict(wanted.marks)
        assert (found.id, found.units, found.zone) == (made.id, ("Unit.7",), made.zone)
        assert found.address
        assert found.public_address
        assert await cloud.machines({OWNER: "Ann <ann@x.com>"}) == []
        (labels,) = (machine["labels"] for machine in bed.machines().values())
        assert labels[OWNER] == "ann-ann-x-org-" + labels[OWNER][-8:]

    on_cloud(test)


def test_machines_are_asked_for_by_one_request_and_started_by_one_each(bed):
    async def test(cloud):
        bed.never_boot(count=5)
        await cloud.run([request() for _ in range(5)])
        before = bed.reset_calls()
        assert before["compute.instances.insert"] == 5
        assert before["compute.instances.aggregatedList"] == 1
        assert sum(before.values()) < 20
        await until(cloud, MachineState.RUNNING)
        assert bed.calls.keys() == {"compute.instances.aggregatedList"}

    on_cloud(test)


def test_an_answer_that_is_lost_makes_no_second_machine(bed):
    async def test(cloud):
        bed.never_boot(count=5)
        bed.lose_answers(count=1)
        assert await cloud.run([request("one")])
        assert list(bed.machines()) == ["scalable-one"]
        bed.lose_answers(count=100)
        with pytest.raises(ProviderError, match="does not answer") as caught:
            await cloud.run([request("two")])
        assert caught.value.transient
        bed.lose_answers(count=0)
        again = await cloud.run([request("two")])
        assert again["two"].marks[NAME] == "two"
        assert sorted(bed.machines()) == ["scalable-one", "scalable-two"]

    on_cloud(test)


def test_a_repeated_request_finds_the_machine_in_another_zone(bed):
    async def test(cloud):
        bed.never_boot(count=5)
        bed.exhaust("us-central1-a")
        first = (await cloud.run([request("one")]))["one"]
        bed.clear_faults()
        assert first.zone != "us-central1-a"
        assert (await cloud.run([request("one")]))["one"].id == first.id
        assert len(bed.machines()) == 1

    on_cloud(test)


# Capacity -----------------------------------------------------------------------------------------


def test_a_zone_without_room_is_followed_by_the_next(bed):
    async def test(cloud):
        bed.never_boot(count=5)
        bed.exhaust("us-central1-a")
        bed.exhaust("us-central1-b", code="ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS")
        made = (await cloud.run([request("one")]))["one"]
        assert made.zone == "us-central1-c"
        before = bed.reset_calls()["compute.instances.insert"]
        # For a minute the full zones are not asked again.
        assert (await cloud.run([request("two")]))["two"].zone == "us-central1-c"
        assert (before, bed.calls["compute.instances.insert"]) == (3, 1)

    on_cloud(test, instance_types=("e2-standard-2",))


def test_a_region_without_room_is_a_refusal_that_names_its_zones(bed):
    async def test(cloud):
        bed.exhaust()
        answer = (await cloud.run([request("one", spot=True)]))["one"]
        assert answer == Refusal(
            "no spot e2-standard-2 is free in us-central1-a, us-central1-b, us-central1-c, "
            "us-central1-f"
        )
        assert bed.machines() == {}

    on_cloud(test, instance_types=("e2-standard-2",))


def test_another_type_is_tried_where_the_cheapest_is_not_free(bed):
    async def test(cloud):
        bed.never_boot(count=5)
        cheapest = (await cloud.run([request("one")]))["one"].shape
        bed.exhaust(machine_type=cheapest)
        other = (await cloud.run([request("two")]))["two"].shape
        assert other.partition("-")[0] != cheapest.partition("-")[0]

    on_cloud(test)


def test_a_quota_that_is_used_up_is_named(bed):
    async def test(cloud):
        bed.quota("CPUS", 1)
        answer = (await cloud.run([request("one")]))["one"]
        assert isinstance(answer, Refusal)
        assert "the quota CPUS (limit 1) of the project is used up" in answer.reason
        # The quota is the region's: the other zones are not tried.
        assert bed.calls["compute.instances.insert"] == 1

    on_cloud(test, instance_types=("e2-standard-2",))


def test_a_region_without_the_type_is_an_error_that_says_so(bed):
    async def test(cloud):
        bed.without_type("*", "e2-standard-2")
        with pytest.raises(ProviderError, match="does not offer e2-standard-2") as caught:
            await cloud.run([request("one")])
        assert not caught.value.transient

    on_cloud(test, instance_types=("e2-standard-2",))


def test_a_zone_without_the_type_is_followed_by_the_next(bed):
    async def test(cloud):
        bed.never_boot()
        bed.without_type("us-central1-a", "e2-standard-2")
        assert (await cloud.run([request("one")]))["one"].zone == "us-central1-b"

    on_cloud(test, instance_types=("e2-standard-2",))


def test_spot_machines_are_requested_as_such(bed):
    async def test(cloud):
        bed.never_boot()
        await cloud.run([request("one", spot=True)])
        (found,) = await until(cloud, MachineState.RUNNING)
        assert found.spot
        bed.preempt("scalable-one")
        (gone,) = await until(cloud, MachineState.ENDED)
        assert gone.from_outside
        assert gone.reason == "Google Cloud preempted the spot machine"
        assert bed.machines() == {}

    bed.set(notice=0.1, shutdown=0.1)
    on_cloud(test, zone="us-central1-a")


# Ends ---------------------------------------------------------------------------------------------


def test_a_program_that_fails_leaves_its_code_and_its_last_words(bed):
    async def test(cloud):
        wanted = request("one", program=(SCHEDULER,), files="w")
        await cloud.put_files("w", wanted.marks, {"no": "record"})
        await cloud.run([wanted])
        (ended,) = await until(cloud, MachineState.ENDED)
        assert ended.exit_code == 1
        assert not ended.from_outside
        assert ended.reason == "its program exited with code 1"
        output, mark = await cloud.output(ended, "")
        assert "Traceback" in output
        assert await cloud.output(ended, mark) == ("", mark)
        # What is powered off costs the price of its disk, and is removed with the cluster.
        await cloud.clean({CLUSTER: "c-1"})
        async with asyncio.timeout(60):
            while await cloud.machines({CLUSTER: "c-1"}):
                await asyncio.sleep(0.05)

    on_cloud(test)


def test_machines_that_are_stopped_are_gone_and_stopping_them_twice_is_no_error(bed):
    async def test(cloud):
        bed.never_boot(count=2)
        await cloud.run([request(), request()])
        found = await until(cloud, MachineState.RUNNING)
        await cloud.stop(found)
        await cloud.stop(found)
        while bed.machines():
            await asyncio.sleep(0.1)
        await cloud.stop(found)
        assert await cloud.machines({CLUSTER: "c-1"}) == []

    on_cloud(test)


def test_a_machine_that_somebody_deletes_has_ended_from_outside(bed):
    async def test(cloud):
        bed.never_boot()
        await cloud.run([request("one")])
        found = await until(cloud, MachineState.RUNNING)

        async def delete(other):
            await other.stop(found)

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(bed.key("bob")))
            other = GoogleCloud(Config(region="us-central1"))
            await delete(other)
            await other.close()
        (gone,) = await until(cloud, MachineState.ENDED)
        assert gone.from_outside
        assert gone.reason == f"it was deleted by {bed.email('bob')}"

    on_cloud(test)


def test_units_are_told_to_end_by_the_metadata_of_their_machine(bed):
    async def test(cloud):
        bed.never_boot()
        await cloud.run([request("m", units=("a", "b", "c"))])
        (machine,) = await until(cloud, MachineState.RUNNING)
        await asyncio.gather(cloud.stop_units(machine, ["a"]), cloud.stop_units(machine, ["b"]))
        instance = await cloud.api.compute("GET", f"zones/{machine.zone}/instances/scalable-m")
        items = {item["key"]: item["value"] for item in instance["metadata"]["items"]}
        assert items["scalable-stopped-units"] == '["a", "b"]'
        assert (await cloud.machines({CLUSTER: "c-1"}))[0].units == ("a", "b", "c")

    on_cloud(test)


# Files --------------------------------------------------------------------------------------------


def test_files_come_back_as_they_were_and_are_replaced_and_deleted(bed):
    async def test(cloud):
        marks = {CLUSTER: "c-1", OWNER: "ann@x.org", ROLE: SCHEDULER}
        large = "".join(f"{n * 7919 % 10007:x}" for n in range(60_000))
        await cloud.put_files("c-1-scheduler", marks, {"a/b.json": "{}", "large": large})
        (stored,) = await cloud.files({CLUSTER: "c-1"})
        assert (stored.name, dict(stored.marks)) == ("c-1-scheduler", marks)
        assert stored.files == {"a/b.json": "{}", "large": large}
        await cloud.put_files("c-1-scheduler", marks, {"a/b.json": "[]"})
        (stored,) = await cloud.files({OWNER: "ann@x.org"})
        assert stored.files == {"a/b.json": "[]"}
        assert await cloud.files({OWNER: "bob@x.org"}) == []
        assert len(await cloud.delete_files({CLUSTER: "c-1"})) == 1
        assert await cloud.delete_files({CLUSTER: "c-1"}) == []
        assert await cloud.files({CLUSTER: "c-1"}) == []

    on_cloud(test)


def test_files_are_no_part_of_what_viewers_of_instances_see(bed):
    async def test(cloud):
        bed.never_boot()
        wanted = request("one", files="c-1-workers")
        await cloud.put_files("c-1-workers", wanted.marks, {"key.pem": "hush-hush"})
        await cloud.run([wanted])
        instance = await cloud.api.compute("GET", "zones/us-central1-a/instances/scalable-one")
        assert "hush" not in str(instance)
        return instance

    on_cloud(test, zone="us-central1-a")


def test_only_the_account_of_the_machines_is_added_to_the_readers(bed):
    async def test(cloud):
        marks = {CLUSTER: "c-1", ROLE: WORKERS}
        await cloud.put_files("w", marks, {"a": "b"})
        (secret,) = await cloud._secrets._list_secrets(marks)
        path = secret["name"].rpartition("/")[2]
        policy = await cloud._secrets._request("GET", f"{path}:getIamPolicy")
        members = [m for binding in policy["bindings"] for m in binding["members"]]
        assert members == ["serviceAccount:123456789012-compute@developer.gserviceaccount.com"]

    on_cloud(test)


# Network ------------------------------------------------------------------------------------------


def test_rules_are_made_once_for_a_cluster_and_removed_with_it(bed):
    async def test(cloud):
        marks = {CLUSTER: "c-1", OWNER: "ann"}
        await cloud.prepare("c-1", marks)
        await cloud.prepare("c-1", marks)
        # Machines of the default network reach each other already.
        assert bed.calls["compute.firewalls.insert"] == 1
        assert await cloud.clean({CLUSTER: "c-2"}) == []
        (gone,) = await cloud.clean(marks)
        assert gone.startswith("firewall rule scalable-")
        assert await cloud.clean(marks) == []

    on_cloud(test)


def test_a_rule_that_is_there_is_used(bed):
    async def test(cloud):
        body = {
            "name": "ours",
            "network": "global/networks/default",
            "allowed": [{"IPProtocol": "tcp", "ports": ["8000-9000"]}],
            "sourceRanges": ["203.0.113.0/24"],
            "targetTags": ["dask"],
        }
        await cloud.api.compute("POST", "global/firewalls", body=body)
        bed.reset_calls()
        await cloud.prepare("c-1", {CLUSTER: "c-1"})
        assert "compute.firewalls.insert" not in bed.calls
        await cloud.clean({CLUSTER: "c-1"})
        assert "compute.firewalls.delete" not in bed.calls

    on_cloud(test, network_tags=("dask",), clients_from=("203.0.113.7",))


def test_a_network_that_is_not_there_is_named(bed):
    with pytest.raises(ProviderError, match="there is no network 'blue' in this project"):
        on_cloud(lambda cloud: cloud.prepare("c-1", {}), network="blue")


# Access -------------------------------------------------------------------------------------------


def test_throttled_and_broken_answers_are_repeated(bed):
    async def test(cloud):
        bed.never_boot(count=9)
        bed.throttle("*", every=3)
        await cloud.put_files("w", {CLUSTER: "c-1"}, {"a": "b"})
        await cloud.prepare("c-1", {CLUSTER: "c-1"})
        answers = await cloud.run([request() for _ in range(6)])
        assert not any(isinstance(answer, Refusal) for answer in answers.values())
        bed.throttle("*", every=0)
        bed.break_calls("*", count=2)
        assert len(await until(cloud, MachineState.RUNNING)) == 6

    on_cloud(test)


def test_endless_throttling_ends_in_an_error_that_tells_it(bed, monkeypatch):
    monkeypatch.setattr(api_module, "LONGEST_PAUSE_S", 0.05)
    bed.throttle("*", every=1)
    with pytest.raises(ProviderError, match=r"Rate Limit Exceeded.* \(8 attempts") as caught:
        on_cloud(lambda cloud: cloud.machines({CLUSTER: "c"}))
    assert caught.value.transient


def test_wrong_credentials_are_an_error_of_one_line(bed, monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(bed.key("stranger")))
    with pytest.raises(
        ProviderError, match="does not accept the credentials of this user"
    ) as caught:
        on_cloud(lambda cloud: cloud.machines({CLUSTER: "c"}))
    assert "\n" not in str(caught.value)
    assert "gcloud auth application-default login" in str(caught.value)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(ProviderError, match="does not accept the credentials of this user"):
        on_cloud(lambda cloud: cloud.owner())


def test_tokens_that_expire_are_renewed(bed):
    async def test(cloud):
        await cloud.machines({CLUSTER: "c"})
        bed.expire_tokens()
        assert await cloud.machines({CLUSTER: "c"}) == []
        assert await cloud.owner() == bed.email()

    on_cloud(test)


def test_a_missing_permission_is_told_with_its_name(bed, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(bed.key("viewer")))
    with pytest.raises(ProviderError, match="compute.instances.create") as caught:
        on_cloud(lambda cloud: cloud.run([request()]))
    assert not caught.value.transient
    with pytest.raises(ProviderError, match="may not store files in Secret Manager"):
        on_cloud(lambda cloud: cloud.put_files("w", {}, {"a": "b"}))


def test_the_owner_is_the_account_of_the_credentials(bed, monkeypatch):
    assert on_cloud(lambda cloud: cloud.owner()) == bed.email("alice")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(bed.key("bob")))
    assert on_cloud(lambda cloud: cloud.owner()) == bed.email("bob")


# Before anything is made --------------------------------------------------------------------------


def checked(**options):
    spec = DeploymentSpec(
        "p",
        "t",
        "gcp",
        {"a": ComponentSpec("a", cpus=2, memory="4G")},
        options={"region": "us-central1"} | options,
    )
    return GCPProvider().check(spec)


def test_a_check_shows_the_rule_that_would_be_made_and_makes_nothing(bed):
    report = checked()
    assert report.errors == []
    (warning,) = report.warnings
    assert "tcp, port 8788, from 0.0.0.0/0 is made with each cluster" in warning.message
    assert not [method for method in bed.calls if method.endswith((".insert", ".create"))]


def test_a_check_names_what_is_missing(bed, monkeypatch):
    assert "has no region 'mars-1'" in checked(region="mars-1").errors[0].message
    bed.without_type("*", "e2-standard-2")
    bed.quota("CPUS", 1)
    found = {d.path[-1]: d.message for d in checked(instance_type="e2-standard-2").errors}
    assert "does not offer e2-standard-2" in found["instance_type"]
    assert "the quota CPUS leaves 1, and a machine for workers of 'a'" in found["region"]
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(bed.key("viewer")))
    (lacks,) = [d.message for d in checked().errors if d.path[-1] == "project_id"]
    assert "compute.instances.create" in lacks
