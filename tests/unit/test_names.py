"""Names that would become a path, an argument, shell text or another's file are refused."""

import asyncio
import json
import os
import socket
import uuid

import pytest

from scalable import ScalableSession
from scalable.cli.main import main
from scalable.clusters.record import default_name
from scalable.errors import ClusterError, ManifestError, ProviderError
from scalable.manager.inventory import Inventory
from scalable.manager.pools import ManagerSite, Pool
from scalable.manifest import Manifest
from scalable.model import ComponentSpec, DeploymentSpec, names
from scalable.providers.local.launcher import ProcessLauncher
from scalable.providers.registry import option_models
from scalable.providers.slurm.launcher import Jobs
from scalable.providers.slurm.options import SlurmOptions
from scalable.providers.slurm.queue import comment
from scalable.providers.slurm.render import JobTemplate, batch_script
from scalable.records import ClusterDirectory, read_access_file, write_access_file
from scalable.session.request import Request
from unit.made_records import made_record

DOCUMENT = {
    "version": 1,
    "project": {"name": "p"},
    "targets": {"hpc": {"provider": "slurm"}},
    "components": {"a": {}},
}


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def refused(changes):
    """Return the findings for a document with changes."""
    with pytest.raises(ManifestError) as caught:
        Manifest.from_mapping(DOCUMENT | changes, option_models())
    return caught.value.diagnostics


# In the manifest --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", ["../../../../../victim", "..", ".hidden", "-o", "a/b", "a b", "a\nb", "x" * 61]
)
def test_a_target_that_leads_to_another_directory_is_refused(target):
    (found,) = refused({"targets": {target: {"provider": "slurm"}}})
    assert found.code == "E_BAD_OPTION"
    assert "cannot be the name of a target" in found.message
    assert "letters" in found.hint


@pytest.mark.parametrize(
    "name", ["X=1;touch PWN;Y", "A B", "1A", "$(id)", "", "A\nB", "A-B", "UID", "SCALABLE_SCRATCH"]
)
def test_a_variable_that_would_be_shell_text_is_refused(name):
    (found,) = refused({"components": {"a": {"env": {name: "1"}}}})
    assert found.path == ("components", "a", "env", name)
    assert "cannot be the name of an environment variable" in found.message


def test_the_finding_about_a_variable_points_at_its_name(tmp_path):
    path = tmp_path / "scalable.yaml"
    path.write_text(
        "version: 1\nproject: {name: p}\ntargets: {l: {provider: local}}\n"
        'components:\n  a:\n    env:\n      "X=1;touch PWN;Y": 1\n'
    )
    with pytest.raises(ManifestError) as caught:
        Manifest.load(path, option_models())
    (found,) = caught.value.diagnostics
    assert (found.line, found.column) == (7, 7)
    assert "it contains '='" in found.message


@pytest.mark.parametrize("image", ["--privileged", "-v", "docker://--privileged", "a\x1b[2J"])
def test_an_image_that_would_be_an_option_is_refused(image):
    (found,) = refused({"components": {"a": {"image": image}}})
    assert found.path == ("components", "a", "image")
    assert "a container image" in found.message or "control characters" in found.message


@pytest.mark.parametrize("option", ["queue", "account", "qos", "constraint", "reservation"])
def test_an_option_that_begins_with_a_dash_is_refused(option):
    (found,) = refused({"targets": {"hpc": {"provider": "slurm", option: "--wrap=id"}}})
    assert found.path == ("targets", "hpc", option)
    assert "starts with '-'" in found.message


@pytest.mark.parametrize(("key", "value"), [
    ("interface", "eth0;id"),
    ("interface", "an-interface-of-24-letters"),
    ("directives", ["mail-type=END"]),
    ("logs", "/runs/50%"),
])  # fmt: skip
def test_an_option_that_slurm_would_misread_is_refused(key, value):
    (found,) = refused({"targets": {"hpc": {"provider": "slurm", key: value}}})
    assert found.path[:3] == ("targets", "hpc", key)
    assert "cannot be" in found.message


@pytest.mark.parametrize(("changes", "path"), [
    ({"project": {"name": "--all"}}, ("project", "name")),
    ({"project": {"name": "\u202egnp"}}, ("project", "name")),
    ({"tasks": {"-t": {"component": "a"}}}, ("tasks", "-t")),
    ({"components": {"a": {"tags": ["--x"]}}}, ("components", "a", "tags", 0)),
    ({"components": {"a": {"mounts": {"/a\nb": "/c"}}}}, ("components", "a", "mounts", "/a\nb")),
    ({"components": {"a": {"mounts": {"/a": "/c\x1b"}}}}, ("components", "a", "mounts", "/a")),
    ({"components": {"a": {"env": {"A": "\0"}}}}, ("components", "a", "env", "A")),
    ({"components": {"-a": {}}}, ("components", "-a")),
])  # fmt: skip
def test_each_other_name_is_checked(changes, path):
    (found,) = refused(changes)
    assert found.path == path


def test_names_in_use_are_accepted():
    document = DOCUMENT | {
        "project": {"name": "Überblick 2 (draft)"},
        "targets": {
            "hpc-2.0_x": {
                "provider": "slurm",
                "queue": "short,long",
                "constraint": "[rack1|rack2]&a100",
                "interface": "bond0.12",
                "directives": ["--mail-type=END", "-x node[1-2]"],
                "logs": "/shared/my logs",
            }
        },
        "components": {
            "_a.b-c": {
                "image": "docker://ghcr.io/site/model@sha256:0",
                "mounts": {"/data/10:30, 'x'": "/in"},
                "env": {"LINES_": "a\nb\t'c'"},
                "tags": ["big runs"],
            }
        },
        "tasks": {"run climate": {"component": "_a.b-c"}},
    }
    Manifest.from_mapping(document, option_models())


@pytest.mark.parametrize(
    ("provider", "most"), [("local", 63), ("slurm", 100), ("kubernetes", 63), ("gcp", 63)]
)
def test_a_tag_longer_than_its_provider_allows_is_a_finding(provider, most):
    image = {"image": "i:1"} if provider in ("kubernetes", "gcp") else {}

    def findings(length):
        data = DOCUMENT | {
            "targets": {"t": {"provider": provider, **image}},
            "components": {"a" * length: {"memory": "1G"}},
        }
        manifest = Manifest.from_mapping(data, option_models())
        return Request(manifest.resolve("t"), manifest).validate().errors

    assert findings(most) == []
    (found,) = findings(most + 1)
    assert found.path == ("components", "a" * (most + 1))
    assert f"the limit is {most}" in found.message
    assert provider in found.hint


def test_a_tag_of_190_characters_is_refused_with_its_limit():
    (found,) = refused({"components": {"a" * 190: {}}})
    assert "has 190 characters" in found.message


# In Python and on the command line --------------------------------------------------------------


def test_a_pool_of_a_bad_tag_is_refused():
    with pytest.raises(ClusterError, match="the name of a component"):
        Inventory("i", lambda: None).add_pool(Pool("../a", None))


@pytest.mark.parametrize("pools", [{"../a": 1}, {"-a": {"cpus": 1}}, {"a" * 190: 1}])
def test_a_local_session_checks_its_names(pools):
    with pytest.raises(ManifestError, match="the name of a component"):
        ScalableSession.local(pools)


@pytest.mark.parametrize("arguments", [
    ("up", "--name", "../victim"),
    ("manager", "attach", "one", "--id", "../victim"),
    ("manager", "attach", "one", "--id", "scheduler"),
    ("scale", "one", "../a=3"),
])  # fmt: skip
def test_a_bad_name_on_the_command_line_is_named(arguments, capsys):
    assert main(list(arguments)) not in (0, 1)
    assert "cannot be the" in capsys.readouterr().err


@pytest.mark.parametrize("manager", ["../../victim", "..", "a/b", "", "a\0b"])
def test_no_manager_has_its_directory_elsewhere(tmp_path, manager):
    with pytest.raises(ClusterError, match="the name of a file"):
        ClusterDirectory(tmp_path).manager_directory(manager)


@pytest.mark.parametrize("project", ["p" * 200, "模型", "_x", "--"])
def test_the_default_name_of_a_cluster_is_a_name(project):
    spec = DeploymentSpec(project, "_hpc", "slurm", {})
    assert names.CLUSTER.accepts(default_name(spec))
    assert default_name(spec).endswith("hpc")


# Where it is rendered ---------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [
    {"environment": {"X=1;touch PWN;Y": "1"}},
    {"environment": {"X": "a\0b"}},
    {"name": "a\n#SBATCH --uid=0"},
    {"name": "a b"},
    {"options": {"queue": "--wrap=id"}},
    {"options": {"account": "a\nb"}},
    {"options": {"directives": ("--a\n#SBATCH --uid=0",)}},
    {"log": "a\nb"},
])  # fmt: skip
def test_no_script_is_rendered_with_a_bad_name(changes):
    given = {"name": "n", "component": ComponentSpec("a"), "options": {}} | changes
    with pytest.raises(ProviderError, match="cannot be|NUL"):
        batch_script(JobTemplate(**given))


def test_no_variable_of_a_component_changes_the_name_of_its_worker():
    template = JobTemplate(
        "n",
        ComponentSpec("a"),
        {},
        environment={"SLURM_ARRAY_TASK_ID": "a[$(touch PWN)]", "UNIT": "other"},
        prefix="a-",
        command="exec echo @UNIT@",
    )
    lines = batch_script(template).splitlines()
    assert lines.index('SCALABLE_UNIT=a-"$((0 + ${SLURM_ARRAY_TASK_ID:-0}))"') < next(
        i for i, line in enumerate(lines) if line.startswith("export")
    )
    assert lines[-1] == 'exec echo "$SCALABLE_UNIT"'


def test_a_comment_longer_than_slurm_takes_is_refused_before_it_is_sent(tmp_path):
    with pytest.raises(ProviderError, match="Slurm allows 1024") as caught:
        comment("n", tmp_path / ("x" * 1000))
    assert not caught.value.transient


# Files of the state directory -------------------------------------------------------------------


def site_in(directory, *, detached):
    return ManagerSite(
        cluster_id=str(uuid.uuid4()),
        manager="m",
        incarnation="m-1",
        scheduler="tcp://127.0.0.1:1",
        security=None,
        directory=directory,
        log_dir=None,
        sys_path=(),
        detached=detached,
    )


@pytest.mark.parametrize("tag", ["owner", "manager", "spec", "scheduler", "record", "services"])
def test_a_component_overwrites_no_file_of_its_cluster(tmp_path, tag):
    directory = tmp_path / "home"
    options = SlurmOptions().model_dump()
    Jobs(None, site_in(directory, detached=False), options, tmp_path).pool(ComponentSpec(tag))
    owner = json.loads((directory / "owner.json").read_text())
    assert owner["pid"] == os.getpid()
    assert [path.name for path in directory.glob("*.json")] == ["owner.json"]
    assert (directory / "components" / f"{tag}.json").stat().st_mode & 0o777 == 0o600


def test_a_worker_whose_name_is_too_long_for_a_file_is_not_tried_again(tmp_path):
    launcher = ProcessLauncher(site_in(tmp_path, detached=False))
    with pytest.raises(ProviderError, match="cannot be started") as caught:
        asyncio.run(launcher.launch({"a" * 300: {"options": {"container": None}}}))
    assert not caught.value.transient


# Access files -----------------------------------------------------------------------------------


@pytest.fixture
def cluster():
    made = ClusterDirectory.create(made_record())
    made.write_pem("-----BEGIN ca", "-----BEGIN cert", "-----BEGIN key")
    made.write_scheduler({"address": "tls://127.0.0.1:1"})
    return made


def fifo(path):
    os.mkfifo(path)


def listener(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


def link(path):
    (path.parent / "elsewhere").write_text("kept")
    path.symlink_to("elsewhere")


def dangling(path):
    path.symlink_to("nowhere")


@pytest.mark.parametrize(("make", "kind"), [
    (fifo, "a named pipe"), (listener, "a socket"), (link, "a symbolic link"),
    (dangling, "a symbolic link"), (os.mkdir, "a directory"),
])  # fmt: skip
def test_an_access_file_replaces_only_files(cluster, tmp_path, monkeypatch, make, kind):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "access"
    make(path)
    before = path.lstat()
    with pytest.raises(ClusterError, match=f"{path} is {kind}"):
        write_access_file(path, cluster)
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    if make is link:
        assert (tmp_path / "elsewhere").read_text() == "kept"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a device")
def test_an_access_file_does_not_replace_a_device(cluster, tmp_path):
    path = tmp_path / "null"
    try:
        os.mknod(path, 0o20666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("devices cannot be made here")
    with pytest.raises(ClusterError, match="is a device"):
        write_access_file(path, cluster)
    assert path.is_char_device()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file to another user")
def test_an_access_file_does_not_replace_a_file_of_another_user(cluster, tmp_path):
    path = tmp_path / "access"
    path.write_text("theirs")
    os.chown(path, 65534, 65534)
    with pytest.raises(ClusterError, match="belongs to another user"):
        write_access_file(path, cluster)
    assert path.read_text() == "theirs"


def test_an_own_access_file_is_replaced(cluster, tmp_path):
    path = tmp_path / "access"
    path.write_text("old")
    write_access_file(path, cluster)
    assert read_access_file(path).id == cluster.id


def test_an_access_file_does_not_lead_to_another_directory(cluster, tmp_path):
    path = tmp_path / "access"
    write_access_file(path, cluster)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"id": "../../victim"}))
    with pytest.raises(ClusterError, match="the name of a file"):
        read_access_file(path)
