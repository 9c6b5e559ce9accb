"""Programs whose results depend on what a key overlooks easily: an edit makes another key."""

import json
import subprocess
import sys
import textwrap

import pytest

PLUG_IN = """
import importlib.util, pathlib
path = pathlib.Path(__file__).with_name("{name}_edited.py")
spec = importlib.util.spec_from_file_location("made_{name}", path)
plug_in = importlib.util.module_from_spec(spec)
spec.loader.exec_module(plug_in)
g = plug_in.g
"""
#: Name -> text of a module, and that of the module that is edited. ``1`` becomes ``2`` there.
TWO_MODULES = {
    "folder": ("import folder_edited.sub\ndef f(): return folder_edited.sub.g()", "folder"),
    "folder_within": (
        "def f():\n    import folder_within_edited.sub\n    return folder_within_edited.sub.g()",
        "folder",
    ),
    "relative": ("from relative_edited.user import f", "folder"),
    "plug_in": (PLUG_IN.format(name="plug_in") + "def f(): return plug_in.g()", "function"),
    "of_plug_in": (PLUG_IN.format(name="of_plug_in") + "def f(): return g()", "function"),
    "run_path": (
        (
            "import pathlib, runpy\n"
            "g = runpy.run_path(pathlib.Path(__file__).with_name('run_path_edited.py'))['g']\n"
            "def f(): return g()"
        ),
        "function",
    ),
    "loader": (
        "from importlib import import_module\ndef f(): return import_module('loader_edited').g()",
        "function",
    ),
    "loader_within": (
        (
            "def f():\n    import importlib as i\n"
            "    return i.import_module('loader_within_edited').g()"
        ),
        "function",
    ),
    "modules": (
        "import sys, modules_edited\ndef f(): return sys.modules['modules_edited'].g()",
        "function",
    ),
    "through": ("import through_h\ndef f(): return getattr(through_h, 'R')", "value"),
    "through_within": ("def f():\n    import through_within_h as h\n    return h.R", "value"),
}
EDITED = {
    "folder": {
        "{}_edited/sub.py": "def g(): return 1\n",
        "{}_edited/user.py": "def f():\n    from . import sub\n    return sub.g()\n",
    },
    "function": {"{}_edited.py": "def g(): return 1\n"},
    "value": {"{}_edited.py": "R = 1\n", "{}_h.py": "from {}_edited import R\n"},
}
#: Name -> text of a module that is edited: ``ONE`` stands for 1 before, for 2 after.
ONE_MODULE = {
    "dunder": "__version__ = 'ONE'\ndef f(): return __version__",
    "metadata": """
        from dataclasses import dataclass, field, fields
        @dataclass
        class C:
            x: int = field(default=0, metadata={'scale': ONE})
        def f(): return fields(C)[0].metadata['scale']
    """,
    "field_type": """
        from dataclasses import dataclass, fields
        @dataclass
        class C:
            x: KIND = 0
        def f(): return fields(C)[0].type('1')
    """,
    "field_class": """
        from __future__ import annotations
        from dataclasses import dataclass, fields
        class Inner:
            x = ONE
        @dataclass
        class C:
            x: list[Inner]
        def f(): return eval_of(C)
        def eval_of(kind): return fields(kind)
    """,
    "match_args": """
        class P:
            __match_args__ = ('xONE',)
            x1, x2 = 1, 2
        def f():
            match P():
                case P(a): return a
    """,
    "annotation": """
        import functools
        def converted(function):
            @functools.wraps(function)
            def run(x): return function(function.__annotations__['x'](x))
            return run
        @converted
        def f(x: KIND): return x
    """,
    "class_text": "class C:\n    'unit ONE'\ndef f(): return C.__doc__",
    "subclasses": """
        class Base: pass
        class Model(Base):
            value = ONE
        def f(): return [one.value for one in Base.__subclasses__()]
    """,
    "generic": """
        from typing import Generic, TypeVar, get_args
        T = TypeVar('T')
        class Table(Generic[T]): pass
        class Own(Table[KIND]): pass
        def f(): return get_args(Own.__orig_bases__[0])[0]('1')
    """,
    "made_class": """
        import dataclasses
        C = dataclasses.make_dataclass('C', ['x'], namespace={'at': lambda self: ONE})
        def f(): return C(0).at()
    """,
    "ufunc": """
        import numpy as np
        g = np.frompyfunc(lambda x: x + ONE, 1, 1)
        def f(): return g(1)
    """,
    "evaluated": "import builtins\ndef h(): return ONE\ndef f(): return builtins.eval('h()')",
    "built_in": "import builtins\nbuiltins.rate = ONE\ndef f(): return rate",
    "patched_value": "import json\njson.rate = ONE\ndef f(): return json.rate",
    "patched_function": "import json\njson.at = lambda: ONE\ndef f(): return json.at()",
}
PRINT_KEYS = """
import importlib, json, sys
from scalable.cache.errors import UnfollowedReferencesError
from scalable.cache.key import KeyMaker
found = {}
for name in sys.argv[1:]:
    try:
        function = importlib.import_module(name).f
        found[name] = KeyMaker().key(function, ("1",) if name == "annotation" else (), {}).digest
    except UnfollowedReferencesError as error:
        found[name] = None
print(json.dumps(found))
"""
REFUSED = {"loader", "loader_within", "modules", "subclasses", "ufunc", "evaluated"}


def write(root, *, edited):
    for name, text in ONE_MODULE.items():
        number, kind = ("2", "float") if edited else ("1", "int")
        whole = textwrap.dedent(text).replace("ONE", number).replace("KIND", kind)
        (root / f"{name}.py").write_text(whole)
    for name, (text, kind) in TWO_MODULES.items():
        (root / f"{name}.py").write_text(text)
        for place, content in EDITED[kind].items():
            path = root / place.format(name)
            path.parent.mkdir(exist_ok=True)
            whole = content.replace("{}", name)
            path.write_text(whole.replace("1", "2") if edited else whole)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    command = [sys.executable, "-c", PRINT_KEYS, *ONE_MODULE, *TWO_MODULES]
    processes = []
    for edited in (False, False, True):
        root = tmp_path_factory.mktemp("project")
        write(root, edited=edited)
        processes.append(subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True))
    return [json.loads(process.communicate(timeout=120)[0]) for process in processes]


@pytest.mark.parametrize("name", [*ONE_MODULE, *TWO_MODULES])
def test_edit_of_what_a_result_depends_on_makes_another_key(keys, name):
    before, again, edited = (found[name] for found in keys)
    assert before == again
    assert (before is None) == (name in REFUSED)
    assert before != edited or name in REFUSED
