"""Every verb that reads a run, on directories with any damage: what can be read, or one error."""

import json
import random
import shutil

import pytest

from scalable.cli.main import main
from scalable.runs.directory import RunDirectory

VERBS = {
    "report": ("report", "RUN"),
    "html": ("report", "RUN", "--format", "html"),
    "json": ("report", "RUN", "--format", "json"),
    "failed": ("report", "RUN", "--failed", "--all"),
    "compare": ("report", "--compare", "RUN", "WHOLE"),
    "compared": ("report", "--compare", "WHOLE", "RUN"),
    "runs": ("runs",),
}
ROW = {"task_id": "t-0", "task_name": "größe", "tag": "a", "worker": "a-0", "state": "succeeded"}
ROW |= {"timestamp": 1767225601.0, "duration_s": 1.0, "queued_s": 0.0}


def make(directory, project):
    run = RunDirectory.create(
        project, "local", manifest_yaml="a: ö\n", manifest_lock="0" * 64, plan={"tasks": {}},
        runs_dir=directory,
    )  # fmt: skip
    run.append("workers", {"event": "started", "worker": "a-ü", "tag": "a", "timestamp": 1.7e9})
    run.append("scaling", {"tag": "a", "from": 0, "to": 1, "reason": "größer", "source": "x"})
    details = {"task_id": "t-1", "task_name": "größe", "tag": "a", "arguments": "('ü')"}
    failure = {"failure_class": "ValueError", "message": "ß", "timestamp": 1.7e9, "count": 1}
    run.append("failures", {**failure, "details": details})
    for number in range(4):
        run.append("tasks", {**ROW, "task_id": f"t-{number}"})
    run.close("completed")
    return run.path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    return make(directory, "damaged"), make(directory, "whole")


@pytest.fixture
def runs(made, tmp_path, monkeypatch):
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(tmp_path))
    return [shutil.copytree(path, tmp_path / path.name) for path in made]


def check(runs, capsys, verb):
    """Call a verb; it shows what is there, or names the fault in one error."""
    names = {"RUN": runs[0].name, "WHOLE": runs[1].name}
    code = main([names.get(word, word) for word in VERBS[verb]])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert code in (0, 6), (code, err)
    if code:
        assert "run" in out + err
    else:
        assert out
    return code, out + err


FILES = ("run.json", "plan.json", "summary.json", "tasks.jsonl", "workers.jsonl", "failures.jsonl")
FILES += ("scaling.jsonl", "manifest.yaml", "manifest.lock")


def places(data):
    """Byte positions at which a file is cut: ends, the middle of a character, and two others."""
    inside = [n + 1 for n, byte in enumerate(data) if byte >= 0xC0]
    chosen = random.Random(1).sample(range(len(data) + 1), min(2, len(data) + 1))
    return sorted({0, 1, max(0, len(data) - 1), *inside[:1], *chosen})


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_cut_anywhere_costs_no_traceback(runs, capsys, file):
    path = runs[0] / file
    if not path.exists():
        pytest.skip(f"a run has no {file}")
    data = path.read_bytes()
    for place in places(data):
        for verb in VERBS:
            path.write_bytes(data[:place])
            check(runs, capsys, verb)


def put(path, damage):
    """Put something else in the place of a file."""
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    match damage:
        case "empty":
            path.write_text("")
        case "bytes":
            path.write_bytes(b"\x00\xff\xfe{\xc3")
        case "directory":
            path.mkdir()
        case "other":
            path.write_text('[1, null, {"status": {}, "timestamp": "x"}]\n' * 2)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "bytes", "directory", "other"])
def test_a_file_that_is_missing_or_something_else_costs_no_traceback(runs, capsys, file, damage):
    for verb in VERBS:
        put(runs[0] / file, damage)
        code, told = check(runs, capsys, verb)
        if file == "run.json" and verb != "runs":
            assert code == 6
            assert "is not a recorded run" in told or "no run" in told or "cannot" in told


@pytest.mark.parametrize("verb", VERBS)
def test_a_run_that_is_written_and_one_that_crashed_are_told(runs, capsys, verb):
    value = json.loads((runs[0] / "run.json").read_text())
    value |= {"status": "running", "ended_at": None, "pid": 2**22 + 1, "start_ticks": 1}
    (runs[0] / "run.json").write_text(json.dumps(value))
    (runs[0] / "summary.json").unlink(missing_ok=True)
    with (runs[0] / "tasks.jsonl").open("ab") as file:
        file.write('{"task_id": "gr\u00f6'.encode()[:-1])
    code, told = check(runs, capsys, verb)
    assert code == 0
    if verb in ("report", "runs", "html"):
        assert "interrupted" in told or "without closing" in told


@pytest.mark.parametrize("verb", VERBS)
def test_a_run_of_the_first_version_is_read(runs, capsys, verb):
    """Its rows had fewer keys, and there were fewer files."""
    value = json.loads((runs[0] / "run.json").read_text())
    for key in ("versions", "machine", "workers_by_tag", "boot_id", "pid_namespace", "start_ticks"):
        value.pop(key, None)
    (runs[0] / "run.json").write_text(json.dumps(value))
    for name in ("scaling.jsonl", "resources.jsonl", "artifacts.jsonl"):
        (runs[0] / name).unlink(missing_ok=True)
    few = {k: ROW[k] for k in ("task_id", "task_name", "tag", "worker", "state", "timestamp")}
    (runs[0] / "tasks.jsonl").write_text(json.dumps(few) + "\n")
    failure = {"failure_class": "ValueError", "message": "ß", "timestamp": 1.7e9}
    (runs[0] / "failures.jsonl").write_text(json.dumps(failure) + "\n")
    assert check(runs, capsys, verb)[0] == 0
