"""The modules that commands and sessions load: the cost of a start, without a clock."""

import functools
import json

import pytest

from unit.programs import printed_by

MANIFEST = """version: 1
project: {name: bench}
targets: {local: {provider: local, processes: true}}
components: {a: {workers: 2}}
"""
ENGINE = ("dask", "distributed", "tornado", "bokeh", "pandas", "psutil", "asyncio", "ssl")
#: Rooms that checking and planning do without.
CLUSTERS = (
    *("client", "scheduler", "manager", "worker", "clusters"),
    *("records", "containers", "runs.report"),
)
OTHER_PROVIDERS = tuple(f"scalable.providers.{name}" for name in ("aws", "gcp", "kubernetes"))


def loaded(code, directory):
    """Names of the modules that are loaded after some code has run in a new interpreter."""
    code = f"{code}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    return json.loads(printed_by(code, cwd=directory).splitlines()[-1])


def those_below(names, packages):
    return [m for m in names if any(m == p or m.startswith(f"{p}.") for p in packages)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a directory with a manifest of a provider."""

    @functools.cache
    def place(provider="local, processes: true"):
        made = tmp_path_factory.mktemp("manifest")
        text = MANIFEST.replace("local, processes: true", provider)
        (made / "scalable.yaml").write_text(text)
        return made

    return place


@pytest.fixture(scope="module")
def loaded_by(place):
    """Names of the modules that a command loads; each is run once."""

    @functools.cache
    def run(verb, *provider):
        code = f"from scalable.cli.main import main; assert main([{verb!r}]) == 0"
        return loaded(code, place(*provider))

    return run


@pytest.mark.parametrize("verb", ["validate", "plan"])
def test_checking_and_planning_load_neither_engine_nor_clusters_nor_other_providers(
    loaded_by, verb
):
    names = loaded_by(verb)
    rooms = [f"scalable.{room}" for room in CLUSTERS]
    if verb == "plan":
        rooms.remove("scalable.runs.report")  # shows the plan
    unwanted = [*ENGINE, *rooms, "scalable.session.session", "scalable.session.detached"]
    unwanted += [*OTHER_PROVIDERS, "scalable.providers.slurm"]
    assert those_below(names, unwanted) == []
    assert {"scalable.session.request", "scalable.providers.local.options"} <= {*names}


def test_validating_loads_nothing_of_plans_and_runs(loaded_by):
    planned = ["scalable.planning.plan", "scalable.model.plan", "scalable.model.prices"]
    planned += ["scalable.forecasting", "statistics", "scalable.manifest.schema_document"]
    unwanted = [*planned, "scalable.runs", "scalable.scaling"]
    assert those_below(loaded_by("validate"), unwanted) == []


def test_validating_does_not_search_installed_packages(place):
    # The metadata of all packages is read neither for pydantic's plugins nor for providers.
    code = "import importlib.metadata as metadata; metadata.entry_points = None\n"
    code += "from scalable.cli.main import main; assert main(['validate']) == 0\n"
    code += "import os; assert not [name for name in os.environ if name.startswith('PYDANTIC')]"
    assert "pydantic.plugin._loader" in loaded(code, place())


@pytest.mark.parametrize("provider", ["local", "slurm"])
def test_validating_loads_nothing_that_starts_workers(loaded_by, provider):
    names = loaded_by("validate", provider)
    starting = ["scalable.protocol.code", "scalable.protocol.forking", "scalable.manager"]
    assert f"scalable.providers.{provider}.options" in names
    assert those_below(names, [*starting, "subprocess", "tarfile"]) == []


def test_pools_without_a_manifest_need_no_model(tmp_path):
    code = "from scalable import ScalableSession as S; assert S.local({'a': 2}).validate().ok"
    assert those_below(loaded(code, tmp_path), [*ENGINE, "pydantic", "yaml", "click"]) == []


def test_a_session_that_runs_on_threads_needs_no_model(tmp_path):
    code = """
from scalable import ScalableSession
with ScalableSession.local({'a': 1}) as client:
    assert client.submit(abs, -1, tag='a').result() == 1
"""
    names = loaded(code, tmp_path)
    assert those_below(names, ["pydantic", "scalable.containers", *OTHER_PROVIDERS]) == []
    assert "distributed" in names


def test_the_fork_server_starts_before_this_process_plans_and_loads_the_engine(place):
    code = """
import sys
from scalable import ScalableSession
from scalable.providers.local.fork_server import ForkServerProcess as Server
begin, at_start = Server.__init__, []
def begin_noted(self):
    at_start.append({"distributed", "dask", "scalable.planning.plan"} & {*sys.modules})
    begin(self)
Server.__init__ = begin_noted
with ScalableSession.from_yaml("scalable.yaml") as client:
    assert client.submit(abs, -1, tag="a").result() == 1
assert at_start == [set()], at_start
"""
    assert "scalable.planning.plan" in loaded(code, place())
