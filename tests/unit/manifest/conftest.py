import textwrap

import pytest

from scalable.errors import ManifestError
from scalable.manifest import Manifest
from scalable.providers.aws.options import AWSOptions
from scalable.providers.gcp.options import GCPOptions
from scalable.providers.kubernetes.options import KubernetesOptions
from scalable.providers.local.options import LocalOptions
from scalable.providers.slurm.options import SlurmOptions

MODELS = {
    "local": LocalOptions,
    "slurm": SlurmOptions,
    "kubernetes": KubernetesOptions,
    "aws": AWSOptions,
    "gcp": GCPOptions,
    "mine": None,
}


@pytest.fixture
def models():
    return dict(MODELS)


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load text as a manifest, from a file called ``m<suffix>`` in the current directory."""
    monkeypatch.chdir(tmp_path)

    def load(text, *, suffix=".yaml", environ=None, target=None, models=MODELS):
        name = f"m{suffix}"
        content = text if isinstance(text, bytes) else textwrap.dedent(text).encode()
        (tmp_path / name).write_bytes(content)
        return Manifest.load(name, models, environ=environ or {}, target=target)

    return load


@pytest.fixture
def faults(load):
    """What loading finds: ``code@line:column path`` for each fault, in the order reported."""

    def faults(text, **options):
        with pytest.raises(ManifestError) as caught:
            load(text, **options)
        return [f"{d.code}@{d.line}:{d.column} {d.dotted_path}" for d in caught.value.diagnostics]

    return faults


@pytest.fixture
def diagnose(load):
    """The diagnostics themselves."""

    def diagnose(text, **options):
        with pytest.raises(ManifestError) as caught:
            load(text, **options)
        return caught.value.diagnostics

    return diagnose
