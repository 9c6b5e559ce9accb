"""An image is built by the real podman, on a root file system with a shell and a fake Python.

No image can be fetched here. The base is a shell, mkdir, rm and cat of this machine, and programs
`python3` and `useradd` that write down how they were called.
"""

import io
import json
import os
import re
import subprocess
import tarfile

import pytest
from podman_here import configure, podman

from scalable.cli.main import main
from scalable.containers import read_versions

MANIFEST = """\
version: 1
project: {name: harvest}
targets:
  local: {provider: local, processes: true, containers: podman}
components:
  crops: {cpus: 1, workers: 1}
"""
PYTHON = """\
#!/bin/sh
printf '%%s\\n' "$*" >> /calls
[ ! -e /tmp/scalable-image/requirements.txt ] || cat /tmp/scalable-image/requirements.txt > /wanted
case "$1" in -c) echo '%s' ;; esac
"""
PROGRAMS = ("/bin/dash", "/bin/mkdir", "/bin/rm", "/bin/cat")


def root_file_system(path, programs):
    """Write an archive with programs of this machine, the libraries that they need, and scripts."""
    linked = subprocess.run(["ldd", *PROGRAMS], capture_output=True, text=True, check=True).stdout
    files = {*PROGRAMS, *re.findall(r"(/\S+) \(", linked)}
    with tarfile.open(path, "w") as archive:
        for name in ("dev", "etc", "proc", "run", "sys", "tmp", "usr/bin", "usr/lib", "usr/lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
        for name in ("bin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(entry)
        for name in sorted(files):
            inside = name if name.startswith("/usr") else f"/usr{name}"
            archive.add(os.path.realpath(name), inside, recursive=False)
        for name, text in {"sh": '#!/bin/dash\nexec dash "$@"\n', **programs}.items():
            entry = tarfile.TarInfo(f"usr/bin/{name}")
            entry.mode, entry.size = 0o755, len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    directory = tmp_path_factory.mktemp("base")
    here = read_versions()
    said = json.dumps({"python": here.python, "packages": dict(here.packages)})
    with pytest.MonkeyPatch.context() as patch:
        configure(directory, patch)
        root = directory / "root.tar"
        root_file_system(
            root, {"python3": PYTHON % said, "useradd": '#!/bin/sh\necho "$*" >> /calls\n'}
        )
        name = f"localhost/scalable-base:{os.getpid()}"
        podman("import", str(root), name)
        yield name
        podman("rmi", "--force", name)


@pytest.fixture
def built(base, tmp_path, monkeypatch, capsys):
    """Build with arguments in a project, and return the result of the verb."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    (tmp_path / "requirements.txt").write_text("numpy<3  # a comment\nname; python_version>'3'\n")
    tags = []

    def build(*arguments):
        capsys.readouterr()
        code = main(["image", "build", *arguments, "--with", "podman", "--format", "json"])
        value = json.loads(capsys.readouterr().out)
        assert code == 0, value
        tags.append(value["image"])
        return value

    yield build
    for tag in tags:
        podman("rmi", "--force", tag)


def file_of(image, path):
    return podman("run", "--rm", "--network", "none", image, "/bin/cat", path).stdout


def test_an_image_is_built_proved_and_named_by_its_content(built, base):
    value = built("--base", base)
    assert re.fullmatch(r"localhost/scalable-harvest:[0-9a-f]{12}", value["image"])
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", value["id"])
    assert value["push"] == f"podman push {value['image']}"
    assert (value["key"], value["named"]) == ("components.crops.image", False)
    wanted = file_of(value["image"], "/wanted").splitlines()
    assert wanted[:2] == ["numpy<3", "name; python_version>'3'"]
    assert f"distributed=={read_versions().packages['distributed']}" in wanted
    first, second, user, proof = file_of(value["image"], "/calls").splitlines()
    assert first == "-m pip install --no-cache-dir -r /tmp/scalable-image/requirements.txt"
    assert re.match(r"-m pip install --no-cache-dir /tmp/scalable-\S+\.whl distributed==", second)
    assert user == "--uid 1000 --create-home scalable"
    assert proof == "-c import scalable.worker.program"


def test_a_changed_dockerfile_is_built_where_it_is(built, base, tmp_path, capsys):
    assert main(["image", "show", "--base", base, "--output", "sub/Dockerfile"]) == 1
    (tmp_path / "sub").mkdir()
    assert main(["image", "show", "--base", base, "--output", "sub/Dockerfile"]) == 0
    file = tmp_path / "sub" / "Dockerfile"
    (tmp_path / "sub" / "data.txt").write_text("mine\n")
    file.write_text(file.read_text() + "COPY data.txt /data.txt\n")
    tag = f"localhost/scalable-own:{os.getpid()}"
    assert built("--file", "sub/Dockerfile", "--tag", tag)["image"] == tag
    assert file_of(tag, "/data.txt") == "mine\n"
    assert sorted(path.name for path in file.parent.iterdir()) == ["Dockerfile", "data.txt"]
