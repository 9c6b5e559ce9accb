"""A workflow's script as a module: its definitions, without its workflow."""

import sys

import pytest

from scalable.errors import RunError
from scalable.session.script_module import script_as_main

GUARD = 'if __name__ == "__main__":\n    raise SystemExit("ran")\n'


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "workflow.py"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    "text",
    [
        '"""A text."""\nfrom __future__ import annotations\nimport os\n',
        "try:\n    import numpy\nexcept ImportError:\n    numpy = None\n",
        "import re\nfrom pathlib import Path\nPLACE: Path = Path('x') / 'y'\nWORD = re.compile('a')\n",
        "if 1 < 2:\n    A = [1, {'a': (2,)}]\nelse:\n    A = 3\n",
        "def f(x=len('ab')):\n    return open(x)\n\n\nclass C:\n    pass\n",
    ],
)
def test_definitions_are_loaded_and_the_workflow_is_not_run(text, script):
    before = sys.modules["__main__"]
    path = script(f"{text}\n\ndef own():\n    return __name__\n\n\n{GUARD}")
    with script_as_main(path):
        module = sys.modules["__main__"]
        assert module.own() == "__main__"
        assert module.own.__module__ == "__main__"
        assert module.__file__ == str(path)
        # As in the script itself: no future statement of ours has a part in its code.
        inherited = 0x1000000
        assert bool(module.own.__code__.co_flags & inherited) == ("__future__" in text)
    assert sys.modules["__main__"] is before


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("print(1)", 1),
        ("A = 1\nDATA = load()", 2),
        ("for a in range(3):\n    pass", 1),
        ("if ready():\n    A = 1", 1),
        ("try:\n    import a\nexcept ImportError:\n    install()", 1),
        ("with open('x') as file:\n    A = 1", 1),
        ("import os\nos.environ['A'] = os.getcwd()", 2),
    ],
)
def test_what_does_more_is_refused_with_its_line(text, line, script):
    path = script(f"{text}\n{GUARD}")
    with pytest.raises(RunError, match=f"line {line}, does more"), script_as_main(path):
        pass


@pytest.mark.parametrize("text", ["def", None])
def test_a_script_that_cannot_be_read_is_an_error(text, script, tmp_path):
    path = tmp_path / "none.py" if text is None else script(text)
    with pytest.raises(RunError, match="cannot be loaded"), script_as_main(path):
        pass
