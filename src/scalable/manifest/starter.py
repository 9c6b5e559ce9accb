"""Files written by ``scalable init``."""

from __future__ import annotations

import json
import re

_MANIFEST = """\
# yaml-language-server: $schema=./scalable.schema.json
# One manifest: what the workflow needs (components, tasks) and where it may run (targets).
# Check it with `scalable validate`, look ahead with `scalable plan`, run it with
# `scalable run --workflow workflow.py`.
version: 1

project:
  name: {name}
  # default_storage: results # session.storage: a directory, or s3://bucket/prefix

# Where to run. Choose a target with --target or SCALABLE_TARGET.
targets:
  local:
    provider: local
    processes: true # real memory limits, and a worker that dies is replaced
    max_workers: 3 # over all components
  hpc:
    provider: slurm
    queue: short
    account: ${{SLURM_ACCOUNT:-}} # ${{NAME:-default}} is taken from the environment
    walltime: 01:00:00
    n_workers: 10

# Kinds of workers. The name is the tag of tasks: client.submit(..., tag="model").
components:
  model:
    cpus: 1
    memory: 1G
    # image: ghcr.io/example/model:1.0
    # env:
    #   OMP_NUM_THREADS: 1
  analysis:
    cpus: 1
    memory: 1G

# Kinds of tasks, with estimates of their number and cost. Plans divide the workers by them.
tasks:
  simulate:
    component: model
    count: 20
    duration: 200ms
    memory: 200M
  summarise:
    component: analysis
    count: 1
    duration: 10ms
    after: [simulate]
"""

_WORKFLOW = '''\
"""Simulations on the workers of one component, their summary on those of another."""

import random
import statistics
import time

from scalable import ScalableSession


def simulate(seed):
    """Stand in for a model run."""
    time.sleep(0.2)
    return random.Random(seed).gauss(2.5, 0.5)


def summarise(values):
    """Reduce all runs to what is reported."""
    return {"runs": len(values), "mean": round(statistics.mean(values), 3)}


def main():
    """Run the workflow on the target that was chosen."""
    with ScalableSession.from_yaml() as client:
        runs = [client.submit(simulate, seed, task="simulate") for seed in range(20)]
        summary = client.submit(summarise, runs, task="summarise")
        print(summary.result())


if __name__ == "__main__":
    main()
'''


def starter_manifest(project_name: str) -> str:
    """Return a commented, valid manifest. The name is quoted if YAML needs that."""
    name = project_name
    is_word = re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name) is not None
    if not is_word or name.lower() in ("true", "false", "null"):
        name = json.dumps(name, ensure_ascii=False).replace("${", "$${")
    return _MANIFEST.format(name=name)


def starter_workflow() -> str:
    """Return a workflow that runs with the manifest from :func:`starter_manifest`."""
    return _WORKFLOW
