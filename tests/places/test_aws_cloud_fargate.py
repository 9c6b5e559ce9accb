"""Machines that are Fargate tasks, and what they need, in the AWS test bed."""

import asyncio
import dataclasses
import uuid

import pytest

pytest.importorskip("aiobotocore")

from scalable.errors import ProviderError
from scalable.providers.aws.api import AWSApi
from scalable.providers.aws.cloud import AWSCloud
from scalable.providers.aws.settings import Settings
from scalable.providers.remote.cloud import (
    CLUSTER,
    MANAGER,
    NAME,
    OWNER,
    ROLE,
    SCHEDULER,
    TAG,
    WORKERS,
    MachineRequest,
    MachineState,
    Refusal,
)

#: Started instead of the package's program: it tells what it sees, and ends when it is told to.
PROGRAM = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("args", *sys.argv[1:], flush=True)
print("plain", os.environ.get("PLAIN"), flush=True)
time.sleep(600)
"""
ENDED = MachineState.ENDED


@pytest.fixture(autouse=True)
def command(monkeypatch):
    """Let containers run a program of the test, since only the machines are tested here."""
    from scalable.providers.aws import render

    # A program that has no handler yet does not end at SIGTERM.
    monkeypatch.setattr(render, "STOP_TIMEOUT_S", 2)
    monkeypatch.setattr(
        render, "program", lambda request: ["python3", "-c", PROGRAM, *request.program]
    )


@pytest.fixture(autouse=True)
def quiet(aws_bed):
    aws_bed.settings(delay=0.02)
    yield
    aws_bed.clear()


@pytest.fixture
def user(aws_bed, monkeypatch):
    """Be a user of the account."""

    def become(name):
        for variable, value in aws_bed.environment(name).items():
            monkeypatch.setenv(variable, value)

    become("alice")
    return become


class Account:
    """A cluster's marks, and a cloud without long pauses."""

    def __init__(self, settings=None):
        self.id = str(uuid.uuid4())
        self.made = []
        self.settings = settings or Settings(region="us-east-1", kinds=("fargate",))

    def cloud(self, settings=None):
        settings = settings or self.settings
        cloud = AWSCloud(settings, api=AWSApi(settings.region, pause=lambda _: 0.02))
        self.made.append(cloud)
        return cloud

    async def marks(self, cloud, role=WORKERS, **more):
        return {CLUSTER: self.id, OWNER: await cloud.owner(), ROLE: role, **more}

    async def request(self, cloud, name, **fields):
        marks = await self.marks(cloud, **{TAG: "prep", MANAGER: "m"})
        own = {
            "program": ("workers", name),
            "files": "workers",
            "cpus": 0.25,
            "memory_bytes": 2**29,
            "units": (name,),
            "image": "image",
            "environment": {"PLAIN": "text"},
        }
        return MachineRequest(name, marks, **(own | fields))

    async def workers(self, cloud, names, **fields):
        marks = await self.marks(cloud)
        await cloud.put_files("workers", marks, {"a/b": "text"})
        return [await self.request(cloud, name, **fields) for name in names]

    async def end(self, cloud):
        await cloud.stop(await cloud.machines({CLUSTER: self.id}))
        await reached(cloud, {CLUSTER: self.id}, ENDED)
        await cloud.delete_files({CLUSTER: self.id})
        return await cloud.clean({CLUSTER: self.id})


async def reached(cloud, marks, state, count=None):
    """Return the machines with marks once all have a state."""
    for _ in range(600):
        found = await cloud.machines(marks)
        if all(m.state is state for m in found) and count in (None, len(found)):
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"not {state}: {found}")


def run(test, settings=None):
    """Run a coroutine function of an account."""
    account = Account(settings)

    async def running():
        try:
            return await asyncio.wait_for(test(account), 120)
        finally:
            for cloud in account.made:
                await cloud.close()

    return asyncio.run(running())


def names(clusters):
    return {machine.marks[NAME] for machine in clusters}


# Machines -----------------------------------------------------------------------------------------


def test_tasks_start_with_their_marks_and_units_and_are_found_by_another_process(user, aws_bed):
    async def test(account):
        cloud = account.cloud()
        requests = await account.workers(cloud, [f"u{i}" for i in range(12)])
        made = await cloud.run(requests)
        other = account.cloud()
        found = await reached(other, {CLUSTER: account.id}, MachineState.RUNNING, 12)
        assert {m.id for m in found} == {m.id for m in made.values()}
        by_name = {m.marks[NAME]: m for m in found}
        for request in requests:
            machine = by_name[request.name]
            assert request.marks.items() <= machine.marks.items()
            assert machine.units == (request.name,)
            assert machine.address
            assert machine.made_at
        calls = aws_bed.calls(reset=True)
        assert calls["ecs:RegisterTaskDefinition"] == 1
        assert calls["ecs:RunTask"] == 12
        removed = await account.end(cloud)
        assert any("task definition" in each for each in removed)
        assert any("role" in each for each in removed)
        assert sum("security group" in each for each in removed) == 2
        assert await cloud.clean({CLUSTER: account.id}) == []

    aws_bed.calls(reset=True)
    run(test)


def test_a_program_has_its_environment_and_its_output_is_read_from_where_it_was_left(
    user, eventually
):
    async def test(account):
        cloud = account.cloud()
        made = await cloud.run(await account.workers(cloud, ["u"]))
        text = mark = ""
        for _ in range(600):
            more, mark = await cloud.output(made["u"], mark)
            text += more
            if "plain" in text:
                break
            await asyncio.sleep(0.05)
        assert text == "args workers u\nplain text\n"
        assert (await cloud.output(made["u"], mark))[0] == ""
        await account.end(cloud)
        assert (await cloud.output(made["u"], ""))[0].startswith("args workers u\n")

    run(test)


def test_a_scheduler_has_a_public_address_and_alone_an_open_port(user, aws_bed):
    async def test(account):
        cloud = account.cloud()
        marks = await account.marks(cloud, SCHEDULER)
        await cloud.put_files("scheduler", marks, {"a": "b"})
        request = await account.request(cloud, "s", files="scheduler", units=())
        request = MachineRequest(**{**vars(request), "marks": marks})
        await cloud.run([request, *await account.workers(cloud, ["u"])])
        found = await reached(cloud, {CLUSTER: account.id}, MachineState.RUNNING, 2)
        by_role = {m.marks[ROLE]: m for m in found}
        assert by_role[SCHEDULER].public_address
        assert by_role[WORKERS].public_address is None
        groups = await cloud.api.pages(
            "ec2",
            "describe_security_groups",
            "SecurityGroups",
            Filters=[{"Name": f"tag:{CLUSTER}", "Values": [account.id]}],
        )
        opened = [p for g in groups for p in g["IpPermissions"] if p.get("IpRanges")]
        assert sorted(p["FromPort"] for p in opened) == [8786, 8788]
        await account.end(cloud)

    run(test)


def test_an_end_says_why(user, aws_bed, monkeypatch):
    from scalable.providers.aws import render

    monkeypatch.setattr(render, "program", lambda request: ["python3", "-c", "raise SystemExit(3)"])

    async def test(account):
        cloud = account.cloud()
        await cloud.run(await account.workers(cloud, ["u"]))
        (machine,) = await reached(cloud, {CLUSTER: account.id}, ENDED, 1)
        assert machine.exit_code == 3
        assert not machine.from_outside
        assert "exit code 3" in machine.reason
        await account.end(cloud)

    run(test)


def test_a_spot_task_that_is_taken_back_ended_from_outside(user, aws_bed):
    async def test(account):
        cloud = account.cloud()
        made = await cloud.run(await account.workers(cloud, ["u"], spot=True))
        await reached(cloud, {CLUSTER: account.id}, MachineState.RUNNING, 1)
        aws_bed.interrupt(made["u"].id, notice_s=1)
        (machine,) = await reached(cloud, {CLUSTER: account.id}, ENDED, 1)
        assert machine.from_outside
        assert machine.spot
        assert "spot" in machine.reason
        await account.end(cloud)

    run(test)


# Faults -------------------------------------------------------------------------------------------


def test_throttling_of_every_third_call_is_borne(user, aws_bed):
    async def test(account):
        cloud = account.cloud()
        made = await cloud.run(await account.workers(cloud, [f"u{i}" for i in range(5)]))
        assert len({m.id for m in made.values()}) == 5
        await reached(cloud, {CLUSTER: account.id}, MachineState.RUNNING, 5)
        await account.end(cloud)

    aws_bed.throttle("*", every=3)
    run(test)


def test_a_lost_answer_starts_no_second_task(user, aws_bed):
    async def test(account):
        cloud = account.cloud()
        requests = await account.workers(cloud, ["u"])
        aws_bed.lose_answer("ecs:RunTask", times=2)
        made = await cloud.run(requests)
        again = await account.cloud().run(requests)
        assert again["u"].id == made["u"].id
        await reached(cloud, {CLUSTER: account.id}, MachineState.RUNNING, 1)
        await account.end(cloud)

    run(test)


def test_spot_without_capacity_is_refused_while_there_is_some_on_demand(user, aws_bed):
    async def test(account):
        cloud = account.cloud()
        spot, demand = await account.workers(cloud, ["u", "v"])
        made = await cloud.run([dataclasses.replace(spot, spot=True), demand])
        assert isinstance(made["u"], Refusal)
        assert "spot" in made["u"].reason
        assert not made["v"].spot
        await account.end(cloud)

    aws_bed.no_capacity("ecs:*", provider="FARGATE_SPOT")
    run(test)


def test_a_zone_without_capacity_is_passed_over(user, aws_bed):
    async def test(account):
        cloud = account.cloud()
        made = await cloud.run(await account.workers(cloud, ["u"]))
        (machine,) = await reached(cloud, {CLUSTER: account.id}, MachineState.RUNNING, 1)
        assert machine.id == made["u"].id
        assert machine.zone != "us-east-1a"
        await account.end(cloud)

    aws_bed.no_capacity("ecs:*", zone="us-east-1a")
    run(test)


def test_no_capacity_anywhere_is_a_refusal_that_says_what_was_tried(user, aws_bed):
    async def test(account):
        cloud = account.cloud()
        made = await cloud.run(await account.workers(cloud, ["u", "v"], spot=True))
        for refusal in made.values():
            assert isinstance(refusal, Refusal)
            assert "us-east-1a" in refusal.reason
            assert "0.25 vCPU" in refusal.reason
        assert "Capacity is unavailable" in made["u"].reason
        assert await cloud.machines({CLUSTER: account.id}) == []
        await account.end(cloud)

    aws_bed.no_capacity("ecs:*")
    run(test)


def test_wrong_credentials_are_an_error_of_one_line(user, aws_bed, monkeypatch):
    async def test(account):
        with pytest.raises(ProviderError, match="credentials are wrong") as caught:
            await account.cloud().owner()
        assert "\n" not in caught.value.message
        assert not caught.value.transient

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAWRONGWRONGWRONG1")
    run(test)


def test_expired_credentials_are_read_again_once(user, aws_bed, monkeypatch):
    async def test(account):
        cloud = account.cloud()
        with pytest.raises(ProviderError, match="expired"):
            await cloud.owner()
        aws_bed.fail("sts:*", "ExpiredToken", "The security token is expired", times=1)
        assert "alice" in await account.cloud().owner()

    aws_bed.fail("sts:*", "ExpiredToken", "The security token is expired", times=2)
    run(test)


# Files --------------------------------------------------------------------------------------------


def test_files_are_found_by_their_marks_by_another_process_and_deleted(user):
    async def test(account):
        cloud = account.cloud()
        marks = await account.marks(cloud, SCHEDULER)
        await cloud.put_files("scheduler", marks, {"record.json": "old"})
        await cloud.put_files("scheduler", marks, {"record.json": "{}", "keys/a": "b" * 90000})
        other = account.cloud()
        (stored,) = await other.files({OWNER: marks[OWNER], CLUSTER: account.id})
        assert (stored.name, dict(stored.marks)) == ("scheduler", marks)
        assert stored.files == {"record.json": "{}", "keys/a": "b" * 90000}
        assert account.id in {
            each.marks[CLUSTER] for each in await other.files({OWNER: marks[OWNER]})
        }
        assert len(await other.delete_files({CLUSTER: account.id})) == 1
        assert await account.cloud().files({CLUSTER: account.id}) == []
        assert await other.delete_files({CLUSTER: account.id}) == []

    run(test)


def test_two_users_of_an_account_see_their_own(user):
    async def test(account):
        alice = account.cloud()
        marks = await account.marks(alice, SCHEDULER)
        await alice.put_files("scheduler", marks, {"a": "b"})
        user("bob")
        bob = account.cloud()
        mine = {OWNER: await bob.owner()}
        assert mine[OWNER] != marks[OWNER]
        assert await bob.files(mine) == []
        assert account.id not in {m.marks[CLUSTER] for m in await bob.machines(mine)}
        await alice.delete_files({CLUSTER: account.id})

    run(test)
