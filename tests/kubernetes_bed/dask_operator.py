"""The real Dask Kubernetes operator, as a process of a test, on a cluster of the test bed.

It lives in an environment of its own, `operator` in the environment of the tests: other packages of
an environment that has dask-kubernetes would see its plug-ins (`make` installs it there).
"""

import asyncio
import contextlib
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

from scalable.providers.kubernetes.api import KubernetesApi, Resource

MODULE = "dask_kubernetes.operator.controller"
DEFINITIONS = Resource("customresourcedefinitions", "", "apiextensions.k8s.io/v1")


def environment():
    """Return the directory of the operator's environment, None if it is not installed."""
    for entry in sys.path:  # the packages may be those of another environment
        if entry.endswith("site-packages"):
            found = Path(entry).parents[2] / "operator"
            if (found / "bin" / "kopf").exists():
                return found
    return None


@functools.cache
def definitions():
    """Return the definitions of the operator's kinds, as its package has them."""
    load = functools.partial(yaml.load, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    pattern = "lib/python*/site-packages/dask_kubernetes/operator/deployment/helm/*/crds/*.yaml"
    files = sorted(environment().glob(pattern))
    return [without_nulls(load(file.read_text())) for file in files]


def without_nulls(value):
    """Return a value as an API server keeps it."""
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


def as_admin(bed, work):
    """Run a coroutine function on a connection with all rights, and return its result."""

    async def run():
        api = KubernetesApi()
        try:
            return await work(api)
        finally:
            await api.close()

    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = str(bed.kubeconfig("admin"))
    try:
        return asyncio.run(run())
    finally:
        os.environ.pop("KUBECONFIG")
        if before is not None:
            os.environ["KUBECONFIG"] = before


@contextlib.contextmanager
def operator_kinds(bed):
    """Let the cluster know the operator's kinds."""

    async def define(api):
        for body in definitions():
            await api.create(DEFINITIONS, json.dumps(body).encode())

    async def undefine(api):
        for body in definitions():
            await api.delete(DEFINITIONS, body["metadata"]["name"])

    as_admin(bed, define)
    try:
        yield
    finally:
        as_admin(bed, undefine)


@contextlib.contextmanager
def running_operator(bed, namespace, directory):
    """Run the operator for one namespace; yield the file of its output.

    Its package writes into the home directory, which is `directory` here.
    """
    log = directory / "operator.log"
    command = [environment() / "bin" / "kopf", "run", "--standalone", "--verbose", "-m", MODULE]
    given = {"HOME": str(directory), "KUBECONFIG": str(bed.kubeconfig("admin"))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--namespace", namespace],
            env={**os.environ, **given},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
