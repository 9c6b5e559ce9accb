"""The JSON form of a deployment spec says all of it, whatever is in it."""

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.model import (
    ComponentSpec,
    DeploymentSpec,
    KeepResults,
    ManagerSpec,
    RetryPolicy,
    TaskSpec,
    WorkerRange,
)
from scalable.model.codec import VERSION, SpecFormatError, decode_spec, encode_spec

texts = st.text(max_size=8)
seconds = st.floats(0, 1e18)
memory = st.sampled_from(["20G", "512MiB", "1.5 TB", "2000000"])
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(texts, below, max_size=3),
    max_leaves=8,
)


def maybe(values):
    """Such values, or None."""
    return st.none() | values


ranges = st.builds(
    lambda low, more: WorkerRange(low, None if more is None else low + more),
    st.integers(0, 99),
    maybe(st.integers(0, 99)),
)
names = st.lists(texts, max_size=3).map(tuple)
maps = st.dictionaries(texts, texts, max_size=3)
components = st.builds(
    ComponentSpec,
    texts,
    image=maybe(texts),
    runtime=maybe(texts),
    cpus=st.integers(1, 64) | st.floats(0.1, 64),
    memory=maybe(memory),
    gpus=st.integers(0, 8),
    slots=st.integers(1, 8),
    mounts=maps,
    env=maps,
    secrets=maps,
    preload_script=maybe(texts),
    setup=names,
    python=maybe(texts),
    workers=maybe(ranges),
    tags=names,
)
policies = st.builds(RetryPolicy, st.integers(0, 9), seconds, names, maybe(st.floats(1.1, 9)))
tasks = st.builds(
    TaskSpec,
    texts,
    texts,
    cache=st.booleans(),
    retries=maybe(policies),
    outputs=names,
    count=maybe(st.integers(0, 10**9)),
    duration_s=maybe(seconds),
    memory=maybe(memory),
    after=names,
)
managers = st.builds(
    ManagerSpec, texts, st.integers(-9, 9), st.dictionaries(texts, st.integers(0, 99), max_size=3)
)
specs = st.builds(
    DeploymentSpec,
    texts,
    texts,
    texts,
    st.dictionaries(texts, components, max_size=3),
    tasks=st.dictionaries(texts, tasks, max_size=3),
    options=st.dictionaries(texts, plain, max_size=4),
    written_options=st.frozensets(texts, max_size=4),
    adaptive=maybe(ranges),
    idle_timeout_s=maybe(seconds),
    time_to_live_s=maybe(seconds),
    manager_grace_s=maybe(seconds),
    spill_after_s=maybe(seconds),
    price_per_core_hour=maybe(seconds),
    budget=maybe(seconds),
    managers=st.lists(managers, max_size=2).map(tuple),
    manager_policy=texts,
    local_cache=maybe(texts),
    cache_limit=st.integers(0, 1 << 50),
    keep_results=maybe(st.builds(KeepResults, st.integers(0, 1 << 50), seconds)),
    default_storage=maybe(texts),
    workflow_dir=maybe(texts),
    log_dir=maybe(texts),
)


@given(specs)
def test_a_spec_is_read_as_it_was_written(spec):
    read = decode_spec(encode_spec(spec))
    assert read == spec
    # Equality does not tell 1 from True or from 1.0; a set has no order.
    one, other = (replace(each, written_options=frozenset()) for each in (read, spec))
    assert repr(one) == repr(other)
    for tag, component in spec.components.items():
        assert read.components[tag].memory_bytes == component.memory_bytes


def test_every_field_of_the_nouns_is_made_in_this_test():
    """A new field is added above too, or the round trip says nothing of it."""
    assert len(fields(DeploymentSpec)) == 23
    assert len(fields(ComponentSpec)) == 15
    assert (len(fields(TaskSpec)), len(fields(ManagerSpec)), len(fields(WorkerRange))) == (9, 4, 2)
    assert (len(fields(RetryPolicy)), len(fields(KeepResults))) == (4, 2)


SPEC = DeploymentSpec("p", "t", "local", {"a": ComponentSpec("a")})


@pytest.mark.parametrize("version", [0, VERSION + 1, "1", None])
def test_another_version_is_refused_by_its_number(version):
    data = json.loads(encode_spec(SPEC)) | {"version": version}
    with pytest.raises(SpecFormatError, match=f"version {version!r}.* reads version {VERSION}"):
        decode_spec(json.dumps(data))


@pytest.mark.parametrize("text", [
    "",
    "[]",
    "{}",
    '{"version": 1}',
    '{"version": 1, "spec": {}}',
    '{"version": 1, "spec": {"odd": 1}}',
    '{"version": 1, "spec": []}',
    encode_spec(SPEC)[:-9],
    encode_spec(SPEC).replace('"slots"', '"lots"'),
])  # fmt: skip
def test_values_that_are_not_a_spec_are_refused(text):
    with pytest.raises(SpecFormatError, match="not a deployment spec"):
        decode_spec(text)


@pytest.mark.parametrize(("value", "named"), [
    ((1,), "option odd is a tuple"),
    ({"in": [{1}]}, r"option odd\.in\[0\] is a set"),
    ({1: 2}, "option odd is a dict"),
    (float("nan"), "option odd is NaN"),
])  # fmt: skip
def test_an_option_without_a_json_form_is_refused_by_its_name(value, named):
    with pytest.raises(TypeError, match=named):
        encode_spec(replace(SPEC, options={"odd": value}))
