"""What a detached cluster's scheduler and managers read of its specs, and load for it."""

import importlib
import json
from pathlib import Path

import pytest

from scalable.clusters.creation import DetachOptions, lifetimes
from scalable.clusters.specs import encoded, stored_spec
from scalable.errors import ClusterError
from scalable.model import ComponentSpec, DeploymentSpec
from scalable.records import ClusterDirectory
from unit.made_records import made_record
from unit.programs import printed_by

MANIFEST = """\
version: 1
project: {name: p}
targets:
  here: {provider: local, processes: true}
components:
  a: {memory: 20G}
"""
SPEC = DeploymentSpec("p", "here", "local", {"a": ComponentSpec("a", memory="20G")})


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Record a cluster with a manager, with or without stored specs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def make(spec, name="one"):
        managers = {"m": {"target": "here", "provider": "local", "priority": 0, "limits": {}}}
        record = made_record(name, target="here", managers=managers, workflow_dir="/where")
        directory = ClusterDirectory.create(record, manifest_yaml=MANIFEST, spec=spec)
        directory.write_request("m", MANIFEST, spec)
        return directory

    return make


def test_the_stored_spec_is_read(made):
    directory = made(encoded(SPEC))
    assert stored_spec(directory) == stored_spec(directory, "m") == SPEC


def test_without_a_stored_spec_the_manifest_is_read(made):
    options = {"plug-in": object()}
    assert encoded(DeploymentSpec("p", "here", "theirs", {}, options=options)) is None
    directory = made(None)
    spec = stored_spec(directory, "m")
    assert spec == stored_spec(directory)
    assert (spec.components["a"].memory_bytes, spec.workflow_dir) == (20 * 10**9, "/where")
    assert spec.options["processes"] is True


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "not a deployment spec"), (json.dumps({"version": 9}), "version 9, .* reads version 1")],
)
def test_a_stored_spec_that_cannot_be_used_names_the_cluster(made, text, words):
    directory = made(text)
    with pytest.raises(ClusterError, match=f"spec of cluster {directory.id} is .*{words}"):
        stored_spec(directory)


PROGRAM = """\
import sys
from pathlib import Path
import scalable.clusters.programs.manager
import scalable.clusters.programs.scheduler
from scalable.clusters.managing import ManagerProcess
from scalable.clusters.specs import stored_spec
from scalable.manager.pools import ManagerSite
from scalable.protocol.credentials import new_credentials, security_of
from scalable.providers.registry import get_provider
from scalable.records import ClusterDirectory
from scalable.records.directory import pem_fields

for path in map(Path, sys.argv[1:]):
    spec = stored_spec(ClusterDirectory(path), "m")
    site = ManagerSite(
        cluster_id="c", manager="m", incarnation="m-1", scheduler="tls://127.0.0.1:1",
        security=security_of(pem_fields(*new_credentials())), directory=path / "managers" / "m",
        log_dir=None, sys_path=(), detached=True,
    )
    print(len(get_provider(spec.provider_name).pools(spec, site)))
print([m for m in ("pydantic", "scalable.manifest", "jsonschema") if m in sys.modules])
"""
OPTIONS = {
    "local": {"threads_per_worker": 1, "processes": True, "interface": None, "containers": "none"},
    "slurm": {
        "interface": None,
        "walltime": "04:00:00",
        "worker_port_range": "40000:41000",
        "logs": None,
        "directives": [],
    },
}


def test_the_programs_build_their_pools_without_the_manifest_and_its_models(made):
    parts = {"a": ComponentSpec("a", memory="1G")}
    specs = [DeploymentSpec("p", "here", name, parts, options=OPTIONS[name]) for name in OPTIONS]
    paths = []
    for number, spec in enumerate(specs):
        paths.append(str(made(encoded(spec), f"n{number}").path))
    assert printed_by(PROGRAM, *paths).splitlines() == ["1", "1", "[]"]


@pytest.mark.parametrize("program", ["scheduler", "manager"])
def test_the_names_that_running_jobs_use_are_kept(program):
    module = importlib.import_module(f"scalable.clusters.programs.{program}")
    assert callable(module.main)
    assert '__name__ == "__main__"' in Path(module.__file__).read_text()


def test_the_loader_in_configurations_of_users_is_found():
    from distributed.utils import import_term

    assert import_term("scalable.clusters.connecting.load_security")({"address": "x"}) is None


def test_lifetimes_are_seconds_or_durations():
    assert lifetimes(SPEC, DetachOptions(idle_timeout_s="90s", time_to_live_s=60)) == (90.0, 60)
    with pytest.raises(ValueError, match="time_to_live_s="):
        lifetimes(SPEC, DetachOptions(time_to_live_s="soon"))
