"""Results that are instances of a script's own classes, in later runs of the script."""

import os

from python_runs import run_python

MANIFEST = """
version: 1
project: {name: classes, local_cache: results}
targets:
  threads: {provider: local}
  processes: {provider: local, processes: true}
components:
  main: {cpus: 1, workers: 1}
tasks:
  fit: {component: main, cache: true}
"""
SCRIPT = """
import sys
from dataclasses import dataclass
from enum import Enum

import scalable


class Colour(Enum):
    RED = 1


@dataclass
class Point:
    x: int


class Large(Point):
    pass


def ran(name):
    with open("ran.txt", "a") as file:
        file.write(name)


def small(x):
    ran("s")
    return Point(x)


def nested(x):
    ran("n")
    return {"a": [Point(x), Colour.RED, Point]}


def large(x):
    ran("l")
    made = Large(x)
    made.data = bytes(200_000)
    return made


def given(kind, x):
    ran("g")
    made = kind(x)
    made.data = bytes(200_000)
    return made


@scalable.cached(store="decorated")
def decorated(x):
    ran("d")
    return Point(x)


def is_point(value):
    return isinstance(value, Point)


if __name__ == "__main__":
    assert isinstance(decorated(1), Point)
    with scalable.ScalableSession.from_yaml("scalable.yaml", target=sys.argv[1]) as client:
        future = client.submit(small, 3, task="fit")
        assert future.result() == Point(3)
        assert client.submit(is_point, future).result()
        point, colour, kind = client.submit(nested, 3, task="fit").result()["a"]
        assert isinstance(point, Point)
        assert colour is Colour.RED and kind is Point
        made = client.submit(large, 3, task="fit").result()
        assert isinstance(made, Large) and isinstance(made, Point)
        assert isinstance(client.submit(given, Point, 3, task="fit").result(), Point)
"""


def run(directory, target):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SCALABLE_")}
    done = run_python(
        "script.py", target, cwd=directory, env=clean | {"XDG_CACHE_HOME": str(directory / "cache")}
    )
    assert done.returncode == 0, done.stderr
    log = directory / "ran.txt"
    names = "".join(sorted(log.read_text())) if log.exists() else ""
    log.unlink(missing_ok=True)
    return names


def test_result_is_an_instance_of_the_class_of_the_script_that_reads_it(tmp_path):
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    (tmp_path / "script.py").write_text(SCRIPT)
    assert run(tmp_path, "threads") == "dglns"
    # A worker in a process of its own does not know a class that the function does not name.
    assert run(tmp_path, "processes") == "g"
    (tmp_path / "script.py").write_text(SCRIPT.replace("    x: int", "    x: int = 0"))
    assert run(tmp_path, "threads") == "dglns"
