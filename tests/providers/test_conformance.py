"""One suite for every provider: the built-in ones, and one that a third party wrote."""

import subprocess
import sys
import time

import pytest
from distributed import LocalCluster

from scalable import (
    ClusterHandle,
    DeploymentProvider,
    ScalableSession,
    ScalePlan,
    ValidationReport,
)
from scalable.manifest.fields import ProviderOptions
from scalable.model import ComponentSpec, DeploymentSpec
from scalable.providers.registry import (
    get_provider,
    provider_class,
    provider_names,
    register_provider,
    unregister_provider,
)

#: Providers whose clusters can be built anywhere.
BUILDING = ("local", "minimal")


class MinimalProvider:
    """The least that the protocol asks for."""

    name = "minimal"

    def validate(self, spec):
        return ValidationReport()

    def build_cluster(self, spec):
        return LocalCluster(n_workers=0, processes=False, dashboard_address=":0")

    def scale(self, cluster, plan: ScalePlan):
        for count in plan.workers_by_tag.values():
            cluster.scale(count)

    def close(self, cluster):
        cluster.close()


@pytest.fixture(autouse=True)
def minimal():
    """The third party's provider is registered."""
    register_provider("minimal", MinimalProvider)
    yield
    unregister_provider("minimal")


ALL = (*provider_names(), "minimal")


@pytest.fixture
def request_for():
    """A request with one component for a provider, with the defaults of its options."""

    def make(provider_class, **options):
        model = getattr(provider_class, "options_model", None)
        values = options if model is None else model(**options).model_dump()
        return DeploymentSpec(
            project_name="conformance",
            target_name="there",
            provider_name=provider_class.name,
            components={"a": ComponentSpec("a")},
            options=values,
            written_options=frozenset(options),
        )

    return make


@pytest.fixture(params=ALL)
def provider(request):
    """Each provider in turn."""
    return get_provider(request.param)


def test_it_honours_the_protocol(provider):
    assert isinstance(provider, DeploymentProvider)
    assert provider.name == provider.name.lower()


def test_it_is_found_by_its_name_in_any_case(provider):
    assert type(get_provider(provider.name.upper())) is type(provider)


def test_its_options_all_have_defaults_and_descriptions(provider):
    model = getattr(provider, "options_model", None)
    if model is None:
        return
    assert issubclass(model, ProviderOptions)
    model()
    assert all(field.description for field in model.model_fields.values())


def test_it_validates_offline_and_changes_nothing(provider, request_for):
    spec = request_for(type(provider))
    report = provider.validate(spec)
    assert isinstance(report, ValidationReport)
    assert report.ok
    assert spec == request_for(type(provider))


@pytest.mark.parametrize("name", [n for n in ALL if n != "minimal"])
def test_validating_loads_no_engine_and_no_extra(name):
    code = (
        "import sys\n"
        "from scalable.providers.registry import get_provider\n"
        "from scalable.model import ComponentSpec, DeploymentSpec\n"
        f"p = get_provider({name!r})\n"
        "s = DeploymentSpec('p', 't', p.name, {'a': ComponentSpec('a')},"
        " options=p.options_model().model_dump())\n"
        "assert p.validate(s).ok\n"
        "found = [m for m in ('distributed', 'dask', 'kubernetes_asyncio', 'aiobotocore', 'google')"
        " if m in sys.modules]\n"
        "print(found)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("name", BUILDING)
@pytest.mark.parametrize("processes", [False, True])
def test_a_built_cluster_scales_and_closes(name, processes, request_for):
    cls = provider_class(name)
    options = {"processes": processes} if name == "local" else {}
    provider, spec = cls(), request_for(cls, **options)
    cluster = provider.build_cluster(spec)
    try:
        assert isinstance(cluster, ClusterHandle)
        assert "://" in cluster.scheduler_address
        for count in (2, 2, 1, 0):
            provider.scale(cluster, ScalePlan({"a": count}))
            wait_for(lambda: workers(cluster) == count)  # noqa: B023
        provider.scale(cluster, ScalePlan({}))
        assert workers(cluster) == 0
    finally:
        provider.close(cluster)
    provider.close(cluster)


def test_without_close_the_session_closes_the_cluster(tmp_path, monkeypatch):
    class Closeless(MinimalProvider):
        close = property()

        def build_cluster(self, spec):
            built.append(super().build_cluster(spec))
            return built[-1]

    built = []
    assert not hasattr(Closeless(), "close")
    assert isinstance(Closeless(), DeploymentProvider)
    manifest = tmp_path / "scalable.yaml"
    manifest.write_text(
        "version: 1\nproject: {name: p}\ntargets: {here: {provider: closeless}}\n"
        "components: {a: {cpus: 1, workers: 1}}\n"
    )
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    register_provider("closeless", Closeless)
    try:
        with ScalableSession.from_yaml(manifest) as client:
            assert client.submit(sum, [1, 2], tag="a").result(timeout=60) == 3
    finally:
        unregister_provider("closeless")
    assert [cluster.status.name for cluster in built] == ["closed"]


def workers(cluster):
    return len(cluster.scheduler.workers)


def wait_for(condition, timeout=60):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
