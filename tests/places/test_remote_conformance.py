"""One suite for every provider whose place keeps clusters itself (trait ``remote``).

A new provider adds a fixture that leads to a place for tests, and its options, to `PLACES`.
"""

import asyncio
import dataclasses
import uuid
from datetime import UTC, datetime
from functools import partial

import pytest

from scalable.clusters.control import ask_at
from scalable.model import ClusterRecord, ComponentSpec, DeploymentSpec, ScalePlan
from scalable.model.codec import encode_spec
from scalable.protocol.credentials import new_credentials
from scalable.protocol.handlers import Handler, request
from scalable.providers.base import ProgramState
from scalable.providers.registry import get_provider, provider_names, provider_traits
from scalable.records import ClusterDirectory
from scalable.records.packing import packed, record_in

#: Provider -> options of a target on its place for tests.
IMAGE = "site/scalable:1"
PLACES = {
    "aws": {"image": IMAGE, "region": "us-east-1"},
    "gcp": {"image": IMAGE, "region": "us-central1"},
    "kubernetes": {"image": IMAGE},
}
REMOTE = [name for name in provider_names() if provider_traits(name).remote]


def test_every_remote_provider_has_a_place_for_tests():
    assert set(REMOTE) == set(PLACES)


@pytest.fixture(scope="module", params=sorted(PLACES))
def provider(request, tmp_path_factory):
    """Each remote provider, with access to its place."""
    if request.param == "kubernetes":
        pytest.importorskip("kubernetes_asyncio")
    bed = request.getfixturevalue(f"{request.param}_bed")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "kubernetes":
            patch.setenv("KUBECONFIG", str(bed.kubeconfig()))
        else:
            for name, text in bed.environment().items():
                patch.setenv(name, text)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield get_provider(request.param)


@pytest.fixture(scope="module")
def spec(provider):
    """A request with one component."""
    options = provider.options_model(**PLACES[provider.name])
    return DeploymentSpec(
        project_name="conformance",
        target_name="there",
        provider_name=provider.name,
        components={"a": ComponentSpec("a", memory="200M")},
        options=options.model_dump(mode="json"),
        written_options=frozenset(PLACES[provider.name]),
    )


@pytest.fixture(scope="module")
def place(provider, spec):
    """The place of the request."""
    return provider.remote(provider.place_of(spec))


@pytest.fixture(scope="module")
def cluster(provider, spec):
    """The directory here of a cluster whose scheduler was started there."""
    record = ClusterRecord(
        id=str(uuid.uuid4()),
        name="conformance",
        provider=provider.name,
        target="there",
        project="conformance",
        owner="tests",
        created_at=datetime.now(UTC).isoformat(),
        tags=("a",),
        wanted={"a": 0},
        services=provider.name,
        remote=True,
        place=provider.place_of(spec),
    )
    directory = ClusterDirectory.create(record, spec=encode_spec(spec))
    directory.write_pem(*new_credentials())
    provider.services(spec).start(directory.path, "scheduler", [], directory.logs_dir)
    return directory


def test_a_place_is_described_by_texts_and_nothing_is_asked(provider, spec):
    for place in (provider.place_of(spec), *provider.places()):
        assert all(isinstance(text, str) for pair in place.items() for text in pair)
        provider.remote(place)
    nowhere = dict.fromkeys(provider.place_of(spec), "nowhere")
    provider.remote(nowhere)


def test_the_place_keeps_the_files_of_the_cluster(place, cluster):
    files = place.clusters()[cluster.id]
    mine = packed(cluster)
    own = {name for name in mine if name != "record.json"}
    assert {name: files[name] for name in own} == {name: mine[name] for name in own}
    there, here = record_in(files), cluster.record()
    assert dataclasses.replace(there, place={}) == dataclasses.replace(here, place={})


def test_the_state_of_programs_is_told(place, provider, spec, cluster, eventually):
    eventually(lambda: place.programs(cluster.id)["scheduler"] == ProgramState("running"))
    assert provider.services(None).state(cluster.id) == {"scheduler": "running"}
    assert place.programs(str(uuid.uuid4())) == {}


def test_the_scheduler_is_reached_from_outside(place, cluster, eventually):
    eventually(lambda: place.programs(cluster.id)["scheduler"].state == "running")
    assert place.address(cluster.id) is None  # this process is not inside

    async def through_tunnel():
        tunnel = place.tunnel(cluster.id)
        port = await tunnel.open()
        try:
            address = f"tls://127.0.0.1:{port}"
            return await asyncio.to_thread(
                eventually, lambda: _status(address, cluster.pem()), "an answer"
            )
        finally:
            await tunnel.close()
            await asyncio.sleep(0.5)  # TLS of a dial that was cut short ends after it

    assert asyncio.run(through_tunnel())["state"] in ("running", "starting", "unmanaged")


def _status(address, pem):
    try:
        return ask_at(address, pem, partial(request, handler=Handler.STATUS), 5.0)
    except (OSError, TimeoutError, ValueError):
        return None


def test_output_comes_once(place, cluster, eventually):
    found = eventually(lambda: place.logs(cluster.id, {}).get("scheduler"))
    text, mark = found
    again, _ = place.logs(cluster.id, {"scheduler": mark}).get("scheduler", ("", mark))
    whole, _ = place.logs(cluster.id, {})["scheduler"]
    assert text
    assert whole.startswith(text)
    assert text not in again


@pytest.fixture
def session_there(provider, spec):
    """A cluster that ends with its creator, whose manager is a program in the place."""
    options = {**spec.options, "manager": "there"}
    handle = provider.build_cluster(dataclasses.replace(spec, options=options))
    yield handle
    provider.close(handle)


def test_the_manager_of_a_session_can_run_there(provider, place, session_there, eventually):
    cluster = session_there
    assert place.programs(cluster.id)["there"] == ProgramState("running")
    (manager,) = cluster.status_now()["managers"]
    assert manager["state"] == "attached"
    provider.scale(cluster, ScalePlan({"a": 1}))
    eventually(lambda: cluster.pools["a"].running == 1, timeout=120)
    assert cluster.id not in place.clusters()  # it is nobody else's
    provider.scale(cluster, ScalePlan({"a": 0}))
    eventually(lambda: cluster.pools["a"].running == 0, timeout=120)
    provider.close(cluster)
    assert place.programs(cluster.id) == {}


def test_it_ends_wholly_and_once(place, provider, cluster):
    place.keep(cluster.id, 3600.0)
    place.keep(cluster.id, None)
    assert provider.delete(cluster.id)
    assert cluster.id not in place.clusters()
    assert place.programs(cluster.id) == {}
    assert provider.delete(cluster.id) == place.delete(cluster.id) == []
    place.keep(cluster.id, 60.0)  # of nothing: harmless
    cluster.remove()
    assert provider.delete(cluster.id) == []
