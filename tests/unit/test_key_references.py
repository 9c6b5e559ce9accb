"""Ways in which code refers to other code, reads what a key does not cover, or stays the same."""

import itertools
import json
import subprocess
import sys

import pytest

from scalable.cache import references

#: How a function uses a module ``H``.
WAYS = {
    "alias": "import H\ndef f():\n    m = H\n    return m.g()",
    "argument": "import H\ndef run(m): return m.g()\ndef f(): return run(H)",
    "class": "import H\nclass C:\n    m = H\ndef f(): return C.m.g()",
    "closure": "import H\ndef make(m):\n    return lambda: m.g()\nf = make(H)",
    "default": "import H\ndef f(m=H): return m.g()",
    "getattr": "import H\ndef f(): return getattr(H, 'g')()",
    "global": "import H\ndef f(): return H.g()",
    "lambda": "def f():\n    import H\n    return (lambda: H.g())()",
    "lazy": "def f():\n    import H\n    return H.g()",
    "lazy_alias": "def f():\n    import H as h\n    m = h\n    return m.g()",
    "lazy_name": "def f():\n    from H import g\n    return g()",
    "method": "class C:\n    @property\n    def p(self):\n        import H\n        return H.C().p\n"
    "def f(): return C().p",
    "object": "import H, functools\nrun = functools.partial(getattr, H)\ndef f(): return run('g')()",
    "registry": "import H\nR = {'x': [H]}\ndef f(): return R['x'][0].g()",
    "star": "from H import *\ndef f(): return g()",
}
_CLASS = "\nclass C:\n    @property\n    def p(self): return g()\n"
#: How that module uses a module ``T``, which is edited.
CHAINS = {
    "alias": f"import T\nt = T\ndef g(): return t.h(){_CLASS}",
    "default": f"import T\ndef g(h=T.h): return h(){_CLASS}",
    "dict": f"import T\nR = {{1: T}}\ndef g(): return R[1].h(){_CLASS}",
    "lazy": f"def g():\n    import T\n    return T.h(){_CLASS}",
    "lazy_alias": f"def g():\n    import T\n    t = T\n    return t.h(){_CLASS}",
    "property": "class C:\n    @property\n    def p(self):\n        from T import h\n        return h()\n"
    "def g(): return C().p\n",
}
#: Each way with a lazy import, and with one of the other chains.
PAIRS = [
    (way, chain)
    for way, other in zip(WAYS, itertools.cycle(CHAINS), strict=False)
    for chain in sorted({"lazy", other})
]
#: Functions that use something that a key does not cover.
REFUSED = {
    "argv": "import sys\ndef f(): return sys.argv",
    "argv_name": "from sys import argv as given\ndef f(): return given, 1",
    "environ": "import os\ndef f():\n    o = os\n    return o.environ['HOME']",
    "environ_lazy": "def f():\n    import os\n    return os.getenv('HOME')",
    "by_import": "load = __import__\ndef f(): return load('json')",
    "loader": "from importlib.machinery import SourceFileLoader as S\ndef f(): return S('a', 'b')",
    "locate": "from pydoc import locate\ndef f(): return locate('json')",
    "entry_points": "from importlib import metadata\ndef f(): return metadata.entry_points()",
    "resources": "from importlib import resources\ndef f(): return resources.files('json')",
    "program": "from subprocess import run\ndef f(): return run(['true'])",
    "draw": "import random\ndef f(): return random.random()",
    "draw_numpy": "from numpy.random import normal\ndef f(): return normal()",
    "locale": "import locale\ndef f(): return locale.getlocale()",
    "open": "def f(): return open(__name__).read()",
    "open_name": "o = open\ndef run(p, o=o): return o(p)\ndef f(): return run('a')",
    "open_key": "def f(d): return open(d['w']).read()",
    "open_mapped": "def f(): return list(map(open, ['a']))",
    "path": "from pathlib import Path\nP = Path('a')\ndef f(): return P.read_text()",
    "path_open": "from pathlib import Path\ndef f():\n    with Path('a').open() as x: return x",
    "package": "def f():\n    import pandas as pd\n    return pd.read_csv('a.csv')",
    "file_within": "import scalable\ndef f(): return scalable.File('a').open()",
}
#: Two texts of a module whose function returns the same.
EQUAL = {
    "docstring": ("def f():\n    'a'\n    return 1", "def f():\n    'b'\n    return 1"),
    "docstring_class": (
        "class C:\n    'a'\n    def m(self):\n        'a'\ndef f(): return C",
        "class C:\n    'b'\n    def m(self):\n        'b'\ndef f(): return C",
    ),
    "line": (
        "def f(x=1):\n    return [y + x for y in (1, 2) if y and x]",
        "def f(x=1):\n    return [\n        y\n        + x for y in (1,\n 2) if y\n and x\n    ]",
    ),
    "writing": (
        "def f():\n    with open('a', 'w') as x: x.write('1')",
        "# Says.\ndef f():\n    with open('a', 'w') as x: x.write('1')",
    ),
    "temporary": (
        "import tempfile\ndef f():\n    d = tempfile.mkdtemp()\n    return open(d + '/a').read()",
        "import tempfile\n\ndef f():\n    d = tempfile.mkdtemp()\n    return open(d + '/a').read()",
    ),
    "seeded": (
        "import random\ndef f():\n    random.seed(1)\n    return random.random()",
        "import random\n\ndef f():\n    random.seed(1)\n    return random.random()",
    ),
    "own_generator": (
        "import numpy as np\ndef f(): return np.random.default_rng(1).normal()",
        "import numpy as np\n\ndef f(): return np.random.default_rng(1).normal()",
    ),
    "seeded_names": (
        "from random import random, seed\ndef f():\n    seed(1)\n    return random()",
        "from random import random, seed\n\ndef f():\n    seed(1)\n    return random()",
    ),
    "stream": (
        "import sys\nOUT = sys.stdout\ndef f(to=sys.stderr): return print(1, file=OUT)",
        "import sys\nOUT = sys.stdout\n\ndef f(to=sys.stderr): return print(1, file=OUT)",
    ),
    "in_memory": (
        "import io, pandas as pd\ndef f(): return pd.read_csv(io.StringIO('a,b'))",
        "import io, pandas as pd\n\ndef f(): return pd.read_csv(io.StringIO('a,b'))",
    ),
    "database_in_memory": (
        "import sqlite3\ndef f(): return sqlite3.connect(':memory:')",
        "import sqlite3\n\ndef f(): return sqlite3.connect(':memory:')",
    ),
    "unused": (
        "import functools\n@functools.cache\ndef g(): return 1\ndef f(): return 1",
        "import functools\n@functools.cache\ndef g(): return 2\ndef f(): return 1",
    ),
}
#: Two texts of a module whose function returns something else.
DIFFERENT = {
    "docstring": (
        "def f():\n    'a'\n    return f.__doc__",
        "def f():\n    'b'\n    return f.__doc__",
    ),
    "docstring_constant": (
        "def f():\n    'a'\n    return 'a'",
        "def f():\n    'b'\n    return 'b'",
    ),
    "text": ("def f(): return ['a' for _ in 'x']", "def f(): return ['b' for _ in 'x']"),
    "declared_file": tuple(
        f"import scalable\nX = {x}\ndef f(p=scalable.File(__file__)): return open(p).read()"
        for x in (1, 2)
    ),
    "method_of_a_value": tuple(f"get = {{'a': {x}}}.get\ndef f(): return get('a')" for x in (1, 2)),
    "object_as_module": tuple(
        "import sys\nclass C:\n    __spec__ = __spec__\n    def f(self=None): "
        f"return {x}\nC.f.__module__ = 'other'\nsys.modules[__name__] = C"
        for x in (1, 2)
    ),
    "accessor": tuple(
        "import pandas as pd\n@pd.api.extensions.register_dataframe_accessor('key_trap')\n"
        f"class A:\n    def __init__(self, d): self.x = {x}\n"
        "def f(): return pd.DataFrame().key_trap.x"
        for x in (1, 2)
    ),
    "patched": tuple(
        "import fractions\n"
        f"fractions.Fraction.key_trap = {x}\ndef f(): return fractions.Fraction(1).key_trap"
        for x in (1, 2)
    ),
    "abstract": tuple(
        "import abc\nclass B(abc.ABC): pass\nclass I: pass\n"
        f"B.register({x})\ndef f(): return isinstance(I(), B)"
        for x in ("int", "I")
    ),
    "unpicklable": tuple(
        "import threading\nclass D:\n    def __init__(self): self.lock = threading.Lock()\n"
        f"    def __get__(self, o, t): return {x}\nclass C:\n    d = D()\ndef f(): return C.d"
        for x in (1, 2)
    ),
}
PRINT_KEYS = """
import importlib, json, sys
sys.dont_write_bytecode = True
from scalable.cache.errors import UnfollowedReferencesError
from scalable.cache.key import KeyMaker
found = {}
for name in json.loads(sys.stdin.read()):
    function = importlib.import_module(name).f
    try:
        found[name] = KeyMaker().key(function, ("",) if name == "refused_open_key" else (), {}).digest
    except UnfollowedReferencesError:
        found[name] = None
print(json.dumps(found))
"""


def written(root, *, edited):
    """Write the modules, and return the names of those with a function."""
    texts = {f"refused_{name}": text for name, text in REFUSED.items()}
    for kind, pairs in (("equal", EQUAL), ("different", DIFFERENT)):
        texts |= {f"{kind}_{name}": pair[edited] for name, pair in pairs.items()}
    names = list(texts)
    for way, chain in PAIRS:
        name = f"chain_{way}_{chain}"
        names.append(name)
        texts[name] = WAYS[way].replace("H", f"h_{name}")
        texts[f"h_{name}"] = CHAINS[chain].replace("T", f"t_{name}")
        texts[f"t_{name}"] = f"def h(): return {1 + edited}"
    for name, text in texts.items():
        (root / f"{name}.py").write_text(text)
    return names


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    processes = []
    for edited in (False, False, True):
        root = tmp_path_factory.mktemp("project")
        names = written(root, edited=edited)
        process = subprocess.Popen(
            [sys.executable, "-c", PRINT_KEYS],
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append((process, json.dumps(names)))
    return [json.loads(process.communicate(names, timeout=300)[0]) for process, names in processes]


def test_key_is_the_same_in_another_process(keys):
    assert keys[0] == keys[1]


@pytest.mark.parametrize("way", WAYS)
def test_edit_behind_two_references_makes_another_key(keys, way):
    for name in (f"chain_{one}_{chain}" for one, chain in PAIRS if one == way):
        assert keys[0][name] not in (None, keys[2][name]), name


@pytest.mark.parametrize("name", REFUSED)
def test_use_of_what_keys_do_not_cover_is_refused(keys, name):
    assert keys[0][f"refused_{name}"] is None


@pytest.mark.parametrize("name", EQUAL)
def test_edit_without_effect_keeps_the_key(keys, name):
    assert keys[0][f"equal_{name}"] == keys[2][f"equal_{name}"] is not None


@pytest.mark.parametrize("name", DIFFERENT)
def test_edit_with_an_unusual_effect_makes_another_key(keys, name):
    assert keys[0][f"different_{name}"] not in (None, keys[2][f"different_{name}"])


def test_a_source_is_read_again_when_python_confuses_the_trees_of_two_threads(monkeypatch):
    read, left = references._module_source, [SystemError, SystemError]

    def confused(*given):
        if left:
            raise left.pop()
        return read(*given)

    monkeypatch.setattr(references, "_module_source", confused)
    assert references.module_source(json) is not None
    assert not left
