"""A detached cluster whose provider comes from another package."""

import pytest

from scalable import connect
from verbs import program

PROVIDER = """\
from scalable.providers import LocalProvider

class NearbyProvider(LocalProvider):
    name = "nearby"
"""
MANIFEST = """\
version: 1
project: {name: trial}
targets: {here: {provider: nearby, processes: true}}
components: {model: {workers: 1}}
"""


@pytest.fixture
def scalable(tmp_path, monkeypatch):
    (tmp_path / "nearby.py").write_text(PROVIDER)
    package = tmp_path / "nearby-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: nearby\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[scalable.providers]\nnearby = nearby:NearbyProvider\n"
    )
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def run(*words, directory=elsewhere):
        monkeypatch.chdir(directory)
        done = program(*words, here=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield run
    program("down", "tp", "--yes")


def test_a_provider_of_another_package_has_detached_clusters(scalable, tmp_path):
    scalable("up", "--name", "tp", directory=tmp_path)
    assert "nearby" in scalable("list")
    scalable("scale", "tp", "model=2")
    assert "provider nearby" in scalable("status", "tp")
    with connect("tp") as client:
        assert client.submit(sum, [1, 2], tag="model").result(timeout=60) == 3
    assert "distributed.worker" in scalable("logs", "tp")
    assert "was deleted" in scalable("down", "tp", "--yes")
    assert "no clusters" in scalable("list")
