"""The wheel that is made of this package's files."""

import base64
import csv
import hashlib
import io
import json
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import scalable
from scalable.errors import ProviderError
from scalable.images import package


def test_the_wheel_has_the_files_that_run_and_records_each():
    data = package.wheel_content()
    assert data == package.wheel_content()
    archive = zipfile.ZipFile(io.BytesIO(data))
    top = Path(scalable.__file__).parent
    sources = {f"scalable/{p.relative_to(top)}" for p in top.rglob("*.py")}
    assert sources <= set(archive.namelist())
    assert not any("__pycache__" in name for name in archive.namelist())
    (record,) = [name for name in archive.namelist() if name.endswith("/RECORD")]
    rows = list(csv.reader(io.StringIO(archive.read(record).decode())))
    assert {row[0] for row in rows} == set(archive.namelist())
    for name, digest, size in rows:
        if name != record:
            content = archive.read(name)
            found = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            assert (digest, int(size)) == (f"sha256={found.decode()}", len(content))


def test_the_wheel_is_imported_and_known_as_installed(tmp_path):
    zipfile.ZipFile(io.BytesIO(package.wheel_content())).extractall(tmp_path)
    code = (
        "import json, scalable, importlib.metadata as m;"
        "d = m.distribution('scalable');"
        "print(json.dumps([scalable.__file__, d.version, [e.name for e in d.entry_points]]))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    file, version, points = json.loads(done.stdout)
    assert file == str(tmp_path / "scalable" / "__init__.py")
    assert version == metadata.version("scalable")
    assert "scalable" in points


class Release(metadata.PathDistribution):
    """A release that came from an index."""

    version = "2.0.0"

    def read_text(self, name):
        return None


def test_a_release_needs_no_wheel(monkeypatch):
    monkeypatch.setattr(package.metadata, "distribution", lambda _: Release(None))
    assert package.wheel_name() is None


def test_an_install_from_files_needs_a_wheel(monkeypatch):
    class FromFiles(Release):
        def read_text(self, name):
            return json.dumps({"url": "file:///work/scalable"})

    monkeypatch.setattr(package.metadata, "distribution", lambda _: FromFiles(None))
    assert package.wheel_name() == "scalable-2.0.0-py3-none-any.whl"


def test_a_package_that_is_not_installed_is_an_error_with_the_way_out(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(package.metadata, "distribution", missing)
    with pytest.raises(ProviderError, match="pip install --editable"):
        package.wheel_name()
