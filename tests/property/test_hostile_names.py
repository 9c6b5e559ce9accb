"""Texts of users in reports: no text becomes an element, an escape sequence or a line too many."""

import unicodedata
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalable.runs.reading import RunRecord
from scalable.runs.report.comparison import render_two_runs
from scalable.runs.report.run_report import report_on

START = 1767225600.0
#: Categories of characters that move a cursor, change a direction or cannot be encoded.
CONTROLS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
HOSTILE = (
    '<script>alert(1)</script><img src=x onerror="alert(1)">',
    "</style></title></script><svg onload=alert(1)>",
    "'\"><a href=javascript:alert(1)>&amp;&#60;b&#62;",
    "{{ 7 * 7 }}{% raw %}",
    "\x1b]0;title\x07\x1b[31mred\x9b2J\r\n\x00",
    "\u202egnp.exe\u2066\u200f\u05d0\u05d1 \u0627\u0644",
    "x" * 10_000,
    "\ud800\udfff",
)


class Structure(HTMLParser):
    """The elements and the names of attributes of a page, without its texts."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, tuple(name for name, _ in attrs)))
        assert not any(name.startswith("on") for name, _ in attrs)


def structure_of(page):
    parser = Structure()
    parser.feed(page)
    parser.close()
    return parser.found


def record_with(text, path):
    row = {"task_id": text, "task_name": text, "tag": text, "worker": text, "duration_s": 1.0}
    row |= {"state": "succeeded", "timestamp": START + 2, "queued_s": 1.0, "peak_memory": 5}
    failed = {"failure_class": text, "message": text, "timestamp": START}
    failed |= {"details": {"traceback": text, "frame": text, "arguments": text, text: text}}
    worker = {"worker": text, "tag": text, "event": "started", "timestamp": START, "host": text}
    lost = {**worker, "event": "removed", "reason": f"lost {text}", "timestamp": START + 5}
    scaled = {"timestamp": START, "tag": text, "action": "scale-up", "from": 1, "to": 2}
    return RunRecord(
        path=path,
        run={"run_id": text, "project": text, "target": text, "provider": text, "error": text}
        | {"versions": {text: text}, "host": text, "machine": {"platform": text}},
        status=text,
        tasks=[row, {**row, "task_id": f"{text}2", "state": text}],
        workers=[worker, lost],
        failures=[failed],
        scaling=[{**scaled, "source": text, "reason": text}],
        artifacts=[{"name": text, "path": text}],
        plan={"objective": text, "policy": text, "tasks": {text: {"calls": 1}}}
        | {"scale_plan": {"workers_by_tag": {text: 1}}, "predicted_time_s": 1.0},
        manifest_lock=text,
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def plain(place):
    made = report_on(record_with("plain", place))
    return structure_of(made.to_html()), structure_of(made._repr_html_())


def check(text, place, plain):
    record = record_with(text, place)
    made = report_on(record)
    page = made.to_html()
    assert structure_of(page) == plain[0]
    assert structure_of(made._repr_html_()) == plain[1]
    assert page.count("</script>") == 2
    assert all(char.isprintable() or char in "\n\t" for char in page)
    assert len(page) < 400_000
    for shown in (str(made), render_two_runs(made.compared_with(made))):
        assert not {unicodedata.category(char) for char in shown if char != "\n"} & CONTROLS
    page.encode()


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_change_no_element_of_a_page(text, place, plain):
    check(text, place, plain)


@settings(max_examples=10)
@given(st.text(st.characters() | st.sampled_from("<>&\"'`={}%\x1b\u202e"), min_size=1))
def test_no_text_changes_an_element_of_a_page(place, plain, text):
    check(text, place, plain)
