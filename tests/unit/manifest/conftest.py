import functools
import re
import textwrap

import pytest

from scalable.errors import ManifestError
from scalable.manifest import Manifest, document, json_schema, yaml_format
from scalable.manifest.reader import read_document
from scalable.providers.aws.options import AWSOptions
from scalable.providers.gcp.options import GCPOptions
from scalable.providers.kubernetes.options import KubernetesOptions
from scalable.providers.local.options import LocalOptions
from scalable.providers.slurm.options import SlurmOptions

MODELS = {
    "local": LocalOptions, "slurm": SlurmOptions, "kubernetes": KubernetesOptions,
    "aws": AWSOptions, "gcp": GCPOptions, "mine": None,
}  # fmt: skip


# What no schema can say: it knows no names, no order of counts, no quotes, no environment, and not
# what a variable or an overlay makes of the rest.
BEYOND_A_SCHEMA = re.compile(
    r"E_DUPLICATE_KEY|E_SYNTAX|E_TASK_COMPONENT_REF|E_UNKNOWN_OVERLAY|E_UNKNOWN_TARGET |"
    r"no (task|component|target) is called|wait for each other|an overlay (changes|cannot)|"
    r"finite number|minimum .* exceeds maximum|the environment variable|is not a variable|range of ports|"
    r"cannot be |control characters|NUL"
)


@functools.cache
def _validator(models):
    import jsonschema  # takes a second: not where tests are only collected

    schema = json_schema(dict(models))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def plain(node):
    if isinstance(node.value, tuple):
        return [plain(item) for item in node.items]
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.entries.items()}
    return node.value


def assert_schema_agrees(name, models, error):
    """What loads must validate; what a schema can see to be wrong must not."""
    root, _ = read_document(name)
    if root is None:
        return
    from jsonschema.exceptions import best_match

    complaint = best_match(_validator(tuple(models.items())).iter_errors(plain(root)))
    if error is None:
        assert complaint is None, f"loads, but: {complaint.message} at {complaint.json_path}"
        return
    faults = [f"{d.code} {d.message}" for d in error.diagnostics if d.severity == "error"]
    visible = [fault for fault in faults if not BEYOND_A_SCHEMA.search(fault)]
    assert not visible or complaint is not None, f"validates, but: {visible}"


@pytest.fixture
def models():
    return dict(MODELS)


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load text as a manifest, from a file called ``m<suffix>`` in the current directory.

    The JSON Schema is asked about each document too, so that every case of these tests is one of
    its agreement; ``in_schema=False`` for those that are wrong in a way that only loading sees.
    """
    monkeypatch.chdir(tmp_path)

    def load(text, *, suffix=".yaml", environ=None, target=None, models=MODELS, in_schema=True):
        name = f"m{suffix}"
        content = text if isinstance(text, bytes) else textwrap.dedent(text).encode()
        (tmp_path / name).write_bytes(content)
        error = None
        try:
            return Manifest.load(name, models, environ=environ or {}, target=target)
        except ManifestError as caught:
            error = caught
            raise
        finally:
            if in_schema and len(content) < 10_000:
                assert_schema_agrees(name, models, error)

    return load


@pytest.fixture
def spec_of(load):
    """The request for target ``t`` of a text."""

    def spec_of(text, **options):
        return load(text, **options).resolve("t").spec

    return spec_of


@pytest.fixture
def few_values(monkeypatch):
    """Lower the number of values that a file may have, and return it: so many are read slowly."""
    assert document.MAX_NODES == 100_000
    for module in (document, yaml_format):
        monkeypatch.setattr(module, "MAX_NODES", 1000)
    return 1000


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
