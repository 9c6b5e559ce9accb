"""Files of a cluster with any damage: they cost the row of their cluster, and nothing else."""

import contextlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.cli.clusters import render_list, render_status
from scalable.clusters import discovery, ending, resuming
from scalable.clusters.managing import config_of
from scalable.errors import ClusterError, ScalableError
from scalable.liveness import identify_process
from scalable.model import ClusterRecord, ComponentSpec, DeploymentSpec
from scalable.model.clusters import PoolStatus
from scalable.model.codec import encode_spec
from scalable.records import ClusterDirectory, status_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=3,
)
HERE = identify_process()
GONE = {**HERE, "start_ticks": 1}
SPEC = DeploymentSpec("p", "t", "local", {"a": ComponentSpec("a")})
MANAGER = {"target": "t", "provider": "local", "priority": 1, "limits": {"a": 2}}
POOL = PoolStatus(wanted=2, running=1, waiting="in the queue").to_dict()
ROW = {"id": "m", "target": "t", "state": "attached", "priority": 1, "silent_s": 0.1}
FILES = {
    "scheduler.json": {
        **HERE,
        "address": "tls://127.0.0.1:1",
        "log_dir": "/logs",
        "dashboard": None,
    },
    "status.json": {
        "written_at": time.time() + 1e6, "state": "running", "reason": None, "pools": {"a": POOL},
        "managers": [ROW], "ends_at": 1.0, "idle_ends_at": 1.0, "tasks": {},
    },
    "services.json": {"scheduler": HERE, "m": GONE},
    "managers/m/manager.json": {**GONE, "target": "t", "nonce": "abc"},
    "managers/m/spec.json": json.loads(encode_spec(SPEC)),
}  # fmt: skip


def record(name):
    return ClusterRecord(
        id=name * 4,
        name=name,
        provider="local",
        target="t",
        project="p",
        owner="me",
        created_at="2026-01-01T00:00:00+00:00",
        stage="made",
        creator=HERE,
        tags=("a",),
        managers={"m": MANAGER},
        wanted={"a": 2},
        adaptive={"a": (1, 2)},
    )


@pytest.fixture(scope="module", autouse=True)
def state():
    path = Path(tempfile.mkdtemp())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(path))
        patch.setattr(discovery, "_ask_plugins", lambda: ([], []))
        patch.setattr(ending, "WATCH_S", 0.0)
        yield path
    shutil.rmtree(path)


def put(name):
    made = ClusterDirectory.create(record(name))
    for file, value in FILES.items():
        path = made.path / file
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
        path.chmod(0o600)
    return made


def places(value, here=()):
    """Return the path of every value in a JSON value."""
    found = [here]
    children = value.items() if isinstance(value, dict) else ()
    children = enumerate(value) if isinstance(value, list) else children
    for key, child in children:
        found += places(child, (*here, key))
    return found


def damaged(value, path, other):
    """Return a JSON value with another value at a path."""
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = damaged(value[path[0]], path[1:], other)
    return copy


@given(data=st.data())
def test_a_damaged_file_costs_one_row_and_every_answer_is_an_error_of_ours(data, state):
    shutil.rmtree(state / "scalable", ignore_errors=True)
    made, _ = put("one1"), put("two2")
    file = data.draw(st.sampled_from(["record.json", *FILES]))
    whole = json.loads((made.path / file).read_text())
    place = data.draw(st.sampled_from(places(whole)))
    (made.path / file).write_text(json.dumps(damaged(whole, place, data.draw(VALUES))))
    if data.draw(st.booleans()):
        os.utime(made.path / "record.json", (0, 0))

    listing = discovery.list_clusters()
    assert "two2" in [row.name for row in listing]
    render_list(listing)
    for row in listing:
        render_status(row)
    ending.prune(dry_run=True)
    assert resuming.find_exactly("another") is None
    for ask in (
        lambda: status_of(made, time.time()),
        lambda: resuming.lost_elsewhere(made),
        lambda: ending.why_ended(made),
        lambda: config_of(made, "m"),
    ):
        with contextlib.suppress(ScalableError, FileNotFoundError):
            ask()
    with pytest.raises(ClusterError):
        ClusterDirectory.create(record("two2"))
