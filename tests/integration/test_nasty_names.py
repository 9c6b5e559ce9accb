"""Task names, arguments and errors that are hostile: no surface executes them or passes them on."""

import json
import re
from html.parser import HTMLParser

import pytest
from distributed import Event

import scalable
from nasty_names import LONGEST_LINE, NASTY, check_harmless
from scalable.cli.main import main
from scalable.clusters.creation import DetachOptions
from scalable.clusters.ending import end
from scalable.clusters.services import wait_until_ready

MANIFEST = """\
version: 1
project: {name: tests}
targets: {local: {provider: local, max_workers: 1, processes: true}}
components: {small: {cpus: 1, memory: 500M}}
"""


def fail(text):
    print(text, flush=True)
    raise ValueError(text)


def held(text):
    Event("held").wait(timeout="300s")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A cluster with tasks of nasty names that failed, run and wait, and their run."""
    directory = tmp_path_factory.mktemp("nasty")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(directory / "state"))
        patch.setenv("SCALABLE_RUNS_DIR", str(directory / "runs"))
        patch.chdir(directory)
        (directory / "scalable.yaml").write_text(MANIFEST)
        session = scalable.ScalableSession.from_yaml()
        made = session.create(session.plan(), DetachOptions(name="nasty"))
        wait_until_ready(made, timeout_s=120)
        try:
            with scalable.connect("nasty") as client:
                failed = [
                    client.submit(fail, text, tag="small", task=text, key=f"{text}-{number}")
                    for number, text in enumerate(NASTY.values())
                ]
                with client.pool("small") as pool:
                    broken = [pool.submit(fail, text) for text in NASTY.values()]
                    for future in (*failed, *broken):
                        assert future.exception(timeout=120) is not None
                options = {"tag": "small", "pure": False}
                waiting = [client.submit(held, t, task=t, **options) for t in NASTY.values()]
                yield directory, [future.key for future in (*failed, *waiting)]
                Event("held", client=client).set()
        finally:
            end("nasty")


@pytest.fixture
def verb(place, capsys):
    """Call a verb; return its exit code, output and messages."""

    def call(*arguments):
        code = main(list(arguments))
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


VERBS = (
    ("status", "nasty"),
    ("list",),
    ("explain", "nasty"),
    ("explain", "nasty", "small"),
    ("top", "nasty", "--once"),
    ("report",),
    ("report", "--failed", "--all"),
    ("runs",),
    ("logs", "nasty"),
)


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_verb_shows_them_harmlessly(verb, words):
    code, out, err = verb(*words)
    assert code == 0, err
    assert "ValueError" in out or words[:2] != ("report", "--failed")
    check_harmless(out, longest=20_000 if words[0] == "logs" else LONGEST_LINE)
    check_harmless(err)


@pytest.mark.parametrize("words", [("status", "nasty"), ("explain", "nasty"), ("list",)])
def test_a_verb_writes_them_as_json(verb, words):
    json.loads(verb(*words, "--format", "json")[1])


def test_each_call_is_explained_by_its_key(place, verb):
    for key in place[1]:
        code, out, err = verb("explain", "nasty", key)
        assert code == 0, err
        check_harmless(out)
        check_harmless(err)


def test_the_logs_of_all_processes_hold_none_of_them(place):
    """What calls print themselves is theirs: it stays as it is in the log of their worker."""
    texts = {path: path.read_text(errors="replace") for path in place[0].rglob("*.log")}
    assert len(texts) >= 2, texts
    seen = 0
    for text in texts.values():
        for line in text.split("\n"):
            if line in PRINTED:
                continue
            seen += "ValueError" in line
            check_harmless(line)
    assert seen, [text[:2000] for text in texts.values()]


# Reading a file makes every end of line the same.
ENDS = re.compile(r"\r\n?|\n")
PRINTED = {line for text in NASTY.values() for line in ENDS.split(text)}


class Elements(HTMLParser):
    found = ()

    def handle_starttag(self, tag, attrs):
        self.found += ((tag, attrs),)


def test_the_report_as_a_page_has_no_element_of_theirs(place, verb):
    page = place[0] / "page.html"
    assert verb("report", "--format", "html", "-o", str(page))[0] == 0
    parser = Elements()
    parser.feed(page.read_text())
    assert "img" not in {tag for tag, _ in parser.found}
    assert not [attrs for _, attrs in parser.found for name, _ in attrs if name.startswith("on")]
    assert page.stat().st_size < 1_000_000
