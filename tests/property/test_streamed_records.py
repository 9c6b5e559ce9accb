"""Records that are read row by row, beside records that are held as a whole."""

import json
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from scalable.model.overview import MEASUREMENTS
from scalable.quantiles import Quantiles, Sum
from scalable.runs.calls import bundled
from scalable.runs.reading import read_run
from scalable.runs.report.run_report import report_on
from scalable.runs.streams import STREAMS, StoredRows, decode_object
from scalable.runs.summary import summarize

FINAL = ("succeeded", "failed", "cancelled")
STATES = ("submitted", "running", *FINAL, "found", "rerun")
AMOUNTS = st.none() | st.floats(0, 1e6) | st.integers(0, 10**12)
BUNDLES = st.fixed_dictionaries(
    {
        "count": st.integers(0, 5),
        "failed": st.integers(0, 2),
        "total_s": st.floats(0, 100),
        "quantiles_s": st.just({"0": 0.5, "1": 2.0}),
        "cancelled": st.integers(0, 2),
    }
)
ROWS = st.fixed_dictionaries(
    {"task_id": st.sampled_from("abcdef"), "state": st.sampled_from(STATES)},
    optional={
        "task_name": st.sampled_from(["fit", "sum", "ü"]),
        "tag": st.sampled_from(["model", "post"]),
        "worker": st.sampled_from(["w-0", "w-1"]),
        "timestamp": st.floats(1.7e9, 1.8e9),
        "queued_s": AMOUNTS,
        "duration_s": AMOUNTS,
        "cpu_s": AMOUNTS,
        "peak_memory": AMOUNTS,
        "calls": BUNDLES,
        "after": st.sampled_from("abcdef"),
        "reason": st.sampled_from(["worker lost", "retried"]),
        "count": st.integers(1, 3),
    },
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
#: What a damaged file has between its rows: any bytes, other JSON, rows with values of any kind.
DAMAGE = (
    st.binary(max_size=20).map(lambda data: data.replace(b"\n", b""))
    | VALUES.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(
        st.sampled_from(["task_id", "state", "tag", "calls", "timestamp"]), VALUES
    ).map(lambda row: json.dumps(row).encode())
)
LINES = st.lists(ROWS.map(lambda row: json.dumps(row).encode()) | DAMAGE, max_size=30)


def decoded(data):
    """Return a JSON object as Python's decoder reads it, with null for what is not a number."""
    try:
        value = json.loads(data.decode(), parse_constant=lambda _: None)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def written(place, lines, ending=b"\n"):
    """Write a run with lines of calls, and of all other kinds; return its directory."""
    run = Path(place) / "run-20260101T000000Z-p-0a1b2c3d"
    run.mkdir()
    (run / "run.json").write_text('{"status": "completed", "started_at": "2026-01-01T00:00:00"}')
    for stream in STREAMS:
        (run / f"{stream}.jsonl").write_bytes(b"\n".join(lines) + ending)
    return run


@given(LINES, st.sampled_from([b"\n", b"", b'\n{"task_id":"a"']))
def test_summary_and_report_are_those_of_the_rows_as_a_whole(lines, ending):
    with tempfile.TemporaryDirectory() as place:
        streamed = read_run(written(place, lines, ending))
        rows = [row for line in lines if (row := decoded(line)) is not None]
        held = replace(streamed, **dict.fromkeys(STREAMS, rows))
        summary = replace(summarize(streamed), malformed_lines=0)
        assert summary == summarize(held)
        report = report_on(streamed).to_dict()["report"]
        assert {**report, "malformed_lines": 0} == report_on(held).to_dict()["report"]


def measured(measurement, rows):
    """Return the values of tasks from their last rows."""
    found: list[float] = []
    for row in rows:
        many, value = bundled(row), row.get(measurement.key)
        if many is not None and measurement.key == "duration_s":
            found += many.durations_s
        elif value is not None and (tasks := 1 if many is None else many.calls):
            found += [float(measurement.of_one(value, tasks))] * tasks
    return found


@given(st.lists(ROWS, max_size=40))
def test_the_columns_of_calls_tell_what_their_rows_do(rows):
    with tempfile.TemporaryDirectory() as place:
        lines = [json.dumps(row).encode() for row in rows]
        summary = summarize(replace(read_run(written(place, lines)), remembered=()))
    calls: dict[str, list] = {}
    for row in rows:
        calls.setdefault(row["task_id"], []).append(row)
    names: dict[str, list[str]] = {}
    for task_id, told in calls.items():
        name = next((r["task_name"] for r in reversed(told) if "task_name" in r), task_id)
        names.setdefault(name, []).append(task_id)
    assert list(summary.task_names) == list(names)
    total = Counter()
    for name, ids in names.items():
        found = summary.task_names[name]
        states, final = Counter(), []
        for told in (calls[task_id] for task_id in ids):
            moved = [r for r in told if r["state"] != "rerun"]
            ends = [r for r in moved if r["state"] in FINAL]
            final += ends[-1:]
            if not moved or moved[-1]["state"] == "found":
                continue
            many = bundled(ends[-1]) if ends else None
            if many is None:
                states[(ends or moved)[-1]["state"]] += 1
            else:
                states["succeeded"] += many.calls - many.failed
                states["failed"] += many.failed
                states["cancelled"] += many.cancelled
        total += states
        assert (found.count, found.task.counts.failed) == (states.total(), states["failed"])
        assert found.tags == tuple(sorted({r["tag"] for i in ids for r in calls[i] if "tag" in r}))
        for measurement in MEASUREMENTS:
            values = measured(measurement, final)
            quantiles = Quantiles.of(values) if measurement.quantiles else None
            assert found.task.sums[measurement.key] == Sum.of(values)
            assert found.quantiles.get(measurement.key) == quantiles
    assert summary.tasks == dict(total)
    reasons = Counter()
    for told in calls.values():
        begun_again = [r for r in told if r["state"] == "rerun"]
        starts = sum(r["state"] == "running" for r in told)
        for row in begun_again:
            reasons[row.get("reason", "reason not known")] += row.get("count", 1)
        if not begun_again and starts > 1:
            reasons["reason not known"] += starts - 1
    assert summary.rerun_reasons == dict(reasons)


@given(VALUES)
def test_rows_are_decoded_as_python_decodes_them(value):
    data = json.dumps({"value": value}).encode()
    assert decode_object(data) == decoded(data)
    if not isinstance(value, dict):
        assert decode_object(json.dumps(value).encode()) is None


@given(st.lists(LINES, min_size=1, max_size=4), st.data())
def test_a_file_that_grows_is_read_as_it_was_and_its_rows_are_new_once(parts, data):
    content = b"".join(line + b"\n" for lines in parts for line in lines)
    rows = [row for line in content.split(b"\n") if (row := decoded(line)) is not None]
    moments = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=3)))
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "tasks.jsonl"
        path.write_bytes(b"")
        told, seen, offset = [], [], 0
        for begin, end in zip([0, *moments], [*moments, len(content)], strict=True):
            with path.open("ab") as file:
                file.write(content[begin:end])
            stored = StoredRows(path.parent, "tasks")
            seen.append((stored, list(stored), stored.malformed))
            new = StoredRows(path.parent, "tasks", offset, complete=True)
            told, offset = [*told, *new], new.end
        assert told == rows
        for stored, before, malformed in seen:
            assert list(stored) == before
            assert (len(stored), bool(stored)) == (len(before), bool(before))
            assert stored.malformed == malformed
        assert seen[-1][1] == rows
