"""Option models of the built-in providers, and of third parties."""

import enum
import textwrap
from pathlib import Path

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from scalable.errors import ManifestError
from scalable.manifest import ProviderOptions
from scalable.manifest.fields import Duration, Record, Text, TextMap
from scalable.units import parse_port_range

# Target blocks of published tutorials and of the provider pages.
PUBLISHED = {
    "local": """
        provider: local
        max_workers: 4
        threads_per_worker: 2
        processes: false
        containers: none
        """,
    "slurm": """
        provider: slurm
        queue: short
        account: GCIMS
        walltime: "02:00:00"
        interface: ib0
        container_runtime: apptainer
        """,
    "kubernetes": """
        provider: kubernetes
        namespace: scalable
        image: ghcr.io/jgcri/scalable-worker:latest
        n_workers: 4
        adaptive:
          minimum: 1
          maximum: 16
        """,
    "aws": """
        provider: aws
        region: us-east-1
        cluster_type: fargate
        n_workers: 4
        worker_cpu: 1024
        worker_mem: 4096
        """,
    "aws adaptive": """
        provider: aws
        region: us-east-1
        cluster_type: fargate
        adaptive:
          minimum: 2
          maximum: 20
        """,
    "gcp": "provider: gcp",
}


@pytest.mark.parametrize("block", PUBLISHED.values(), ids=PUBLISHED)
def test_published_targets_validate(spec_of, block):
    text = textwrap.indent(textwrap.dedent(block).strip(), "    ")
    spec = spec_of(
        f"version: 1\nproject: {{name: p}}\ntargets:\n  t:\n{text}\ncomponents: {{a: }}\n"
    )
    assert spec.written_options <= spec.options.keys()
    assert spec.provider_name in text


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Disk(Record):
    label: Text
    gib: int = 1


class TheirOptions(ProviderOptions):
    """As a third party writes them: plain types beside those of the manifest."""

    zone: Text = Field(description="Zone.")
    size: Size = Size.SMALL
    where: Path | None = None
    count: int = 1
    ratio: float | None = None
    labels: TextMap = Field(default={})
    disks: tuple[Disk, ...] = ()
    named: dict[str, Disk] = Field(default={})


def their(load, option):
    text = f"""\
        version: 1
        project: {{name: p}}
        targets:
          t:
            provider: theirs
            zone: 007
            {option}
        components: {{a: }}
        """
    return load(text, models={"theirs": TheirOptions})


@pytest.mark.parametrize(("option", "name", "value"), [
    ("size: large", "size", "large"),
    ("where: /x", "where", "/x"),
    ("ratio: 2", "ratio", 2.0),
    ("labels: {a: 01}", "labels", {"a": "01"}),
    ("disks: [{label: 01, gib: 2}]", "disks", [{"label": "01", "gib": 2}]),
    ("named: {x: {label: 1e3}}", "named", {"x": {"label": "1e3", "gib": 1}}),
    ("count: 2", "zone", "007"),
])  # fmt: skip
def test_options_of_third_parties(load, option, name, value):
    assert their(load, option).resolve("t").spec.options[name] == value


@pytest.mark.parametrize(("option", "expected", "hint"), [
    ("size: lage", "E_BAD_OPTION@7:11 targets.t.size", "did you mean 'large'?"),
    ("count: '2'", "E_BAD_OPTION@7:12 targets.t.count", "without quotes"),
    ("zome: 1", "E_UNKNOWN_TARGET_OPTION@7:5 targets.t.zome", "'zone'"),
    ("disks: [{label: a}, {gib: 1}]", "E_MISSING_KEY@7:25 targets.t.disks[1].label", "label"),
    ("named: {x: {label: a, gb: 1}}", "E_BAD_OPTION@7:27 targets.t.named.x.gb", "'gib'"),
])  # fmt: skip
def test_faults_in_options_of_third_parties(load, option, expected, hint):
    with pytest.raises(ManifestError) as caught:
        their(load, option)
    (d,) = caught.value.diagnostics
    assert f"{d.code}@{d.line}:{d.column} {d.dotted_path}" == expected
    assert hint in d.hint


def test_a_required_option_of_a_third_party(faults):
    text = "version: 1\nproject: {name: p}\ntargets:\n  t: {provider: theirs}\ncomponents: {a: }\n"
    assert faults(text, models={"theirs": TheirOptions}) == ["E_MISSING_KEY@4:3 targets.t.zone"]


@pytest.mark.parametrize(
    ("text", "ports"),
    [("40000:41000", (40000, 41000)), ("1-65535", (1, 65535)), ("8786", (8786, 8786))],
)
def test_port_ranges(text, ports):
    assert parse_port_range(text) == ports


@pytest.mark.parametrize("text", ["9" * 300, "9" * 400])
def test_a_length_of_time_that_no_sum_survives_is_refused(text):
    with pytest.raises(ValidationError, match="more than 0 and less than 1e[+]18"):
        TypeAdapter(Duration).validate_python(text)
