"""Two regions of one account: neither is taken for the other."""

import asyncio
import json
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cloud_places import COMPONENTS
from clouds import CLOUDS

from scalable.model import ClusterRecord
from scalable.providers.registry import get_provider
from scalable.providers.remote.cloud import CLUSTER, OWNER, ROLE, SCHEDULER
from scalable.providers.remote.cloud_place import CloudPlace, remains
from scalable.records.directory import RECORD
from verbs import garbage, program

HOME = {"aws": "us-east-1", "gcp": "us-central1"}
AWAY = {"aws": "us-west-2", "gcp": "europe-west1"}


@pytest.fixture(scope="module", params=["aws-fargate", "gcp"])
def cloud(request):
    """Fargate, whose roles belong to no region, and Google Cloud, whose secrets and rules do not."""
    fixture, make = CLOUDS[request.param]
    return make(request.getfixturevalue(fixture))


@pytest.fixture(autouse=True)
def shell(cloud, monkeypatch, tmp_path):
    """The shell of a user, in which nothing counts as fresh."""
    cloud.use(monkeypatch)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("scalable.providers.remote.cloud_place.MACHINELESS_S", -5.0)
    monkeypatch.setattr(f"scalable.providers.{cloud.provider}.cloud.LEFT_AFTER_S", -5.0)
    yield
    cloud.clear()


class Region:
    def __init__(self, cloud, region):
        place = {"region": region, "project": "bed-project", "ecs_cluster": "scalable"}
        self.connect = lambda: get_provider(cloud.provider).cloud(place)
        self.place = CloudPlace(self.connect)

    def ask(self, question):
        async def asked():
            cloud = self.connect()
            try:
                return await question(cloud, await cloud.owner())
            finally:
                await cloud.close()

        return asyncio.run(asked())

    def make(self, cluster_id, *, files=True):
        """Make all of a cluster but its machines."""
        record = ClusterRecord(
            id=cluster_id, name="n", provider="aws", target="t", project="p", owner="o",
            created_at=datetime.now(UTC).isoformat(), remote=True,
        )  # fmt: skip

        async def make(cloud, owner):
            marks = {CLUSTER: cluster_id, OWNER: owner}
            if files:
                own = {**marks, ROLE: SCHEDULER}
                await cloud.put_files(
                    f"{cluster_id}-scheduler", own, {RECORD: json.dumps(record.to_dict())}
                )
            await cloud.prepare(cluster_id, marks)

        self.ask(make)

    def clean(self, cluster_id):
        self.ask(lambda cloud, owner: cloud.clean({CLUSTER: cluster_id, OWNER: owner}))


@pytest.fixture
def regions(cloud):
    home, away = (Region(cloud, where[cloud.provider]) for where in (HOME, AWAY))
    return home, away


def test_clusters_of_another_region_are_neither_listed_nor_taken_for_remains(regions):
    home, away = regions
    detached, session = str(uuid.uuid4()), uuid.uuid4().hex[:10]
    away.make(detached)
    away.make(session)
    assert home.place.clusters() == {}
    assert list(away.place.clusters()) == [detached]
    assert remains(home.connect) == {}
    assert list(remains(away.connect)) == [session]
    for each in (detached, session):
        assert away.place.delete(each)
    assert remains(away.connect) == {}


def test_what_a_cluster_needs_stays_when_a_cluster_of_another_region_ends(cloud, regions):
    home, away = regions
    away.make("there")
    before = cloud.bed.things()
    home.make("here")
    home.place.delete("here")
    assert cloud.bed.things() == before
    away.place.delete("there")
    assert [thing for thing in cloud.bed.things() if "there" in thing] == []


def test_roles_groups_and_rules_without_files_are_remains_of_their_own_region(cloud, regions):
    _, away = regions
    cluster_id = uuid.uuid4().hex[:10]
    away.make(cluster_id, files=False)
    assert list(remains(away.connect)) == [cluster_id]
    manifest = cloud.manifest(COMPONENTS).replace(HOME[cloud.provider], AWAY[cloud.provider])
    Path("scalable.yaml").write_text(manifest)
    done = program("prune", "--dry-run", "scalable.yaml", "--target", "there")
    assert done.returncode == 0, done.stderr
    assert cluster_id[:8] in done.stdout
    # From now on the region of the target is known here.
    assert cluster_id in {row["id"] for row in garbage("--yes")}
    assert remains(away.connect) == {}
    assert garbage() == []


def test_a_secret_that_was_never_filled_is_found_and_removed(cloud, regions):
    if cloud.provider != "gcp":
        pytest.skip("a secret of AWS is made with its content")
    home, _ = regions
    cluster_id = str(uuid.uuid4())
    cloud.bed.break_calls("secretmanager.projects.secrets.addVersion", count=100, status=400)
    with pytest.raises(Exception, match="Internal error"):
        home.make(cluster_id)
    cloud.clear()
    assert home.place.clusters() == {}
    assert [row["id"] for row in garbage("--yes")] == [cluster_id]
    assert [thing for thing in cloud.bed.things() if "secret" in thing] == []
