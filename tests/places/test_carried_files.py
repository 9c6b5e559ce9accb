"""Files of a workflow on Kubernetes: its pods see no file of this machine."""

import importlib
import json
import logging
import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from scalable import ScalableSession
from scalable.errors import ClusterError
from scalable.records.directory import pem_fields

pytest.importorskip("kubernetes_asyncio")

MANIFEST = """
version: 1
project: {name: carried}
targets:
  k: {provider: kubernetes, image: site/scalable:1}
components:
  crops: {cpus: 1, memory: 500M, workers: {minimum: 0, maximum: 3}}
"""
PACKAGE = {
    "model_package/__init__.py": "",
    "model_package/table.csv": "1,2,3\n",
    "model_package/notes/read.me": "hello\n",
    "model_package/main.py": """
import importlib.resources
import os
from pathlib import Path

AT_IMPORT = (Path(__file__).parent / "table.csv").read_text()


def resource():
    return importlib.resources.files("model_package").joinpath("notes/read.me").read_text()


def beside():
    return (Path(__file__).parent / "table.csv").read_text()


def at_import():
    return AT_IMPORT


def lazily():
    from model_package import hidden

    return hidden.ANSWER


def exists(name):
    return (Path(__file__).parents[1] / name).exists()


def place():
    status = os.stat(Path(__file__).parents[1])
    return str(Path(__file__).parents[1]), status.st_mode & 0o777
""",
    "model_package/hidden.py": "ANSWER = 'one'\n",
    ".gitignore": "*.secret\n/outputs/\n",
    "keys.secret": "x",
    "outputs/large.nc": "x",
    ".venv/pyvenv.cfg": "",
    ".venv/lib/thing.py": "",
    "deep/.gitignore": "left_out.txt\n",
    "deep/left_out.txt": "x",
    "deep/kept.txt": "x",
}


def write(directory, files):
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


@pytest.fixture(scope="module")
def place(kubernetes_bed, tmp_path_factory):
    """A directory with the workflow, and the kubeconfig of a user."""
    directory = tmp_path_factory.mktemp("carried")
    write(directory, {"scalable.yaml": MANIFEST, **PACKAGE})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.syspath_prepend(directory)
        patch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig()))
        yield directory


@pytest.fixture(scope="module")
def session(place):
    session = ScalableSession.from_yaml(place / "scalable.yaml", target="k")
    try:
        session.start()
        session.scale("crops", 1)
        session.client.wait_for_workers(1, timeout=120)
        yield session
    finally:
        session.close()


@pytest.fixture
def client(session):
    return session.client


@pytest.fixture(scope="module")
def model(place):
    return importlib.import_module("model_package.main")


def run(client, function, *args):
    return client.submit(function, *args, tag="crops", pure=False).result(timeout=90)


def test_data_beside_modules_is_read_in_pods(client, model):
    assert run(client, model.beside) == "1,2,3\n"
    assert run(client, model.resource) == "hello\n"
    assert run(client, model.at_import) == "1,2,3\n"
    with client.pool(tag="crops") as pool:
        assert pool.submit(model.beside).result(timeout=90) == "1,2,3\n"


def test_a_module_that_only_a_call_imports_is_found(client, model):
    assert run(client, model.lazily) == "one"


def test_what_is_ignored_or_an_environment_stays_here(client, model):
    names = [name for name in PACKAGE if not run(client, model.exists, name)]
    assert names == [
        *(".gitignore", "keys.secret", "outputs/large.nc", ".venv/pyvenv.cfg"),
        *(".venv/lib/thing.py", "deep/.gitignore", "deep/left_out.txt"),
    ]


def test_files_are_in_the_private_directory_of_their_worker(client, model):
    place, mode = run(client, model.place)
    assert mode == 0o700
    assert not os.path.exists(place)


def test_changed_files_are_carried_anew_and_told_once(client, model, place, caplog, eventually):
    write(
        place,
        {"model_package/table.csv": "4,5,6\n", "model_package/hidden.py": "ANSWER = 'two'\n"},
    )
    with caplog.at_level(logging.WARNING, "scalable.client"):
        eventually(
            lambda: (
                run(client, model.beside) == "1,2,3\n" and "changed since the files" in caplog.text
            )
        )
        assert run(client, model.lazily) == "one"
    assert client.sync_code() == ["model_package/hidden.py", "model_package/table.csv"]
    assert run(client, model.beside) == "4,5,6\n"
    assert run(client, model.at_import) == "4,5,6\n"
    assert run(client, model.lazily) == "two"
    told = [r.getMessage() for r in caplog.records if "changed since the files" in r.getMessage()]
    assert len(told) == 1
    assert "model_package/table.csv" in told[0]


def test_a_reloaded_module_and_a_new_one_reach_pods(client, model, place):
    write(place, {"model_added.py": "import model_part\ndef answer():\n    return model_part.X\n"})
    write(place, {"model_part.py": "X = 7\n"})
    importlib.invalidate_caches()
    added = importlib.import_module("model_added")
    assert run(client, added.answer) == 7


def test_a_worker_that_starts_later_has_the_same_files(session, client, model, eventually):
    session.scale("crops", 2)
    client.wait_for_workers(2, timeout=120)
    expected = run(client, model.beside), run(client, model.lazily)
    for worker in client.scheduler_info(n_workers=-1)["workers"]:
        calls = [
            client.submit(function, workers=[worker], pure=False)
            for function in (model.beside, model.lazily)
        ]
        assert tuple(client.gather(calls)) == expected


OTHER = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path.cwd()))
from scalable.client.client import ScalableClient
from scalable.protocol.credentials import security_of
import json
access = json.load(sys.stdin)
import model_package.main as model
with ScalableClient(access["address"], security=security_of(access["pem"])) as client:
    for _ in range(3):
        found = [client.submit(f, tag="crops", pure=False) for f in (model.beside, model.lazily)]
        print(*client.gather(found))
"""


def test_sessions_with_different_files_share_workers(session, client, model, tmp_path):
    write(tmp_path, {**PACKAGE, "model_package/table.csv": "other"})
    write(tmp_path, {"model_package/hidden.py": "ANSWER = 'other'\n"})
    pem = pem_fields(*session.cluster._credentials)
    access = {"address": session.cluster.scheduler_address, "pem": pem}
    own = run(client, model.beside), run(client, model.lazily)
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = other.communicate(json.dumps(access), timeout=120)
    assert out.split() == ["other", "other"] * 3
    assert (run(client, model.beside), run(client, model.lazily)) == own


def needs_package():
    import package_only_here

    return package_only_here


def test_a_package_that_only_this_process_has_is_named_with_its_version_and_the_image(
    client, tmp_path, monkeypatch
):
    site = tmp_path / "site-packages"
    about = "Metadata-Version: 2.1\nName: Only-Here\nVersion: 1.2.3\n"
    write(
        site,
        {
            "package_only_here/__init__.py": "",
            "Only_Here-1.2.3.dist-info/METADATA": about,
            "Only_Here-1.2.3.dist-info/RECORD": "package_only_here/__init__.py,,\n",
        },
    )
    monkeypatch.syspath_prepend(site)
    with client.pool(tag="crops") as pool:
        for future in (client.submit(needs_package, tag="crops"), pool.submit(needs_package)):
            with pytest.raises(ModuleNotFoundError, match="package_only_here") as caught:
                future.result(timeout=90)
            assert "(image site/scalable:1)" in str(caught.value)
            assert "Only-Here==1.2.3" in str(caught.value)


TEMPLATE = """
spec:
  containers: [{name: scalable, volumeMounts: [{name: other, mountPath: /other}]}]
  volumes: [{name: other, hostPath: {path: PLACE}}]
"""


@pytest.fixture
def other_image(tmp_path, kubernetes_bed, monkeypatch):
    """A manifest whose image has another release of distributed, as its metadata say."""
    about = "Metadata-Version: 2.1\nName: distributed\nVersion: 2026.6.1\n"
    target = "env: {PYTHONPATH: /other}, pod_template: pod.yaml, image: site/scalable:1"
    files = {
        "other/distributed-2026.6.1.dist-info/METADATA": about,
        "pod.yaml": TEMPLATE.replace("PLACE", str(tmp_path / "other")),
        "scalable.yaml": MANIFEST.replace("image: site/scalable:1", target),
    }
    write(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig("bob")))
    return tmp_path / "scalable.yaml"


def test_an_image_with_another_release_of_distributed_is_refused(other_image):
    with pytest.raises(ClusterError) as caught:
        ScalableSession.from_yaml(other_image, target="k").start()
    told = str(caught.value)
    assert all(part in told for part in ("2026.6.1", version("distributed"), "site/scalable:1"))


@pytest.mark.filterwarnings("ignore::distributed.versions.VersionMismatchWarning")
def test_another_release_is_only_warned_of_where_the_target_allows_it(other_image, caplog):
    allowed = other_image.read_text().replace("env: {", "allow_version_mismatch: true, env: {", 1)
    other_image.write_text(allowed)
    with (
        caplog.at_level(logging.WARNING, "scalable.client"),
        ScalableSession.from_yaml(other_image, target="k"),
    ):
        pass
    assert "distributed 2026.6.1 (here" in caplog.text
