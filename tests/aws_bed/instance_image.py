"""What an instance sees: this machine, with directories of its own where user data may write."""

import subprocess
import sys
from pathlib import Path

import kubernetes_bed
from kubernetes_bed.container import image

#: Where an instance sees what the test bed needs there.
PLACE = "/.aws-bed"
#: Directories that each instance has for itself, empty at its start.
PRIVATE = ("/home", "/media", "/mnt", "/opt", "/run", "/srv", "/var")
SKELETON = ("cache", "lib/cloud/instance", "lib/docker", "log", "spool", "tmp")
INSIDE = Path(__file__).parent / "inside"
#: Program -> the file of `inside` that is behind it.
PROGRAMS = (
    "shutdown",
    "poweroff",
    "halt",
    "systemctl",
    "dnf",
    "yum",
    "apt-get",
    "amazon-linux-extras",
    "curl",
    "aws",
)


class Image:
    """The files of the image of all instances, made when the first one starts."""

    def __init__(self, directory):
        self.directory = Path(directory) / "image"

    def make(self):
        if self.directory.exists():
            return
        self.directory.mkdir()
        copy("/etc", self.directory / "etc")
        binaries = self.directory / "bin"
        binaries.mkdir()
        lines = {name: f"{PLACE}/inside/programs.py {name}" for name in PROGRAMS}
        lines["docker"] = f"{PLACE}/inside/docker.py"
        for name, words in lines.items():
            script = binaries / name
            script.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {words} "$@"\n')
            script.chmod(0o755)

    def mounts(self, folder, configuration):
        """Return the mounts of an instance; the configuration is a file."""
        self.make()
        found = {}
        for path in PRIVATE:
            own = folder / "own" / path.strip("/")
            own.mkdir(parents=True, exist_ok=True)
            found[path] = {"source": str(own)}
        for name in SKELETON:
            (folder / "own" / "var" / name).mkdir(parents=True, exist_ok=True)
        etc = folder / "own" / "etc"
        if not etc.exists():
            copy(self.directory / "etc", etc)
        found["/etc"] = {"source": str(etc)}
        found["/usr"] = {"source": "/usr", "read_only": True}
        for path in image():
            if any(path.startswith(f"{other}/") for other in found):
                found[path] = {"source": path, "read_only": path.startswith("/usr/")}
        shown = {
            "bin": self.directory / "bin",
            "image": self.directory,
            "inside": INSIDE,
            "kubernetes_bed": Path(kubernetes_bed.__file__).parent,
            "instance.json": configuration,
        }
        for name, source in shown.items():
            found[f"{PLACE}/{name}"] = {"source": str(source), "read_only": True}
        return found


def copy(source, target):
    """Copy a directory as it is; what cannot be read is left out."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=False, stderr=subprocess.DEVNULL)
