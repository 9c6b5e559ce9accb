"""Manifests that several files of tests run."""

TWO_POOLS = """\
version: 1
project: {name: calls}
targets:
  local: {provider: local, processes: true}
components:
  a: {cpus: 1, workers: 2}
  b: {cpus: 1, workers: 1}
"""
