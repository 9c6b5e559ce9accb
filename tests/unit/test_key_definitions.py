"""Edits of a class that a function can see, each of which makes another key."""

import importlib
import sys
import textwrap
import threading

import pytest

from scalable.cache.errors import UnfollowedReferencesError
from scalable.cache.key import KeyMaker

#: Name -> module with a function ``f``. ``ONE`` is 1 before an edit, and 2 after it.
EDITED = {
    "attribute of a property": """
        class Rated(property):
            pass
        def get(self): return 1
        rate = Rated(get)
        rate.factor = ONE
        class C:
            rate = rate
        def f(): return C.rate.factor
    """,
    "class of a property": """
        class Rated(property):
            def __get__(self, one, kind=None): return ONE
        class C:
            @Rated
            def rate(self): return 1
        def f(): return C().rate
    """,
    "class of a cached property": """
        import functools
        class Rated(functools.cached_property):
            def __get__(self, one, kind=None): return ONE
        class C:
            @Rated
            def rate(self): return 1
        def f(): return C().rate
    """,
    "class of a class method": """
        class Rated(classmethod):
            def __get__(self, one, kind=None): return lambda: ONE
        class C:
            @Rated
            def rate(cls): return 1
        def f(): return C.rate()
    """,
    "class of a static method": """
        class Rated(staticmethod):
            def __get__(self, one, kind=None): return lambda: ONE
        class C:
            @Rated
            def rate(): return 1
        def f(): return C.rate()
    """,
    "descriptor with a lock": """
        import threading
        RATE = ONE
        class Rated:
            def __init__(self): self.lock, self.rate = threading.Lock(), RATE
            def __get__(self, one, kind=None): return self.rate
        class C:
            rate = Rated()
        def f(): return C.rate
    """,
    "class of a descriptor with a lock": """
        import threading
        class Rated:
            def __init__(self): self.lock = threading.Lock()
            def __get__(self, one, kind=None): return ONE
        class C:
            rate = Rated()
        def f(): return C.rate
    """,
    "attribute that refuses pickling": """
        RATE = ONE
        class Held:
            def __init__(self): self.rate = RATE
            def __reduce__(self): raise TypeError
        class C:
            held = {"one": [Held()]}
        def f(): return C.held["one"][0].rate
    """,
    "class of thread locals": """
        import threading
        class Kept(threading.local):
            rate = ONE
        class C:
            kept = Kept()
        def f(): return C.kept.rate
    """,
    "value of a thread local": """
        import threading
        RATE = ONE
        class Kept(threading.local):
            def __init__(self): self.rate = RATE
        class C:
            kept = Kept()
        def f(): return C.kept.rate
    """,
    "context variable": """
        import contextvars
        VARIABLE = contextvars.ContextVar('rate', default=ONE)
        class C:
            rate = VARIABLE
        def f(): return C.rate.get()
    """,
    "factory of a field": """
        from dataclasses import dataclass, field
        def made(): return ONE
        @dataclass
        class C:
            x: int = field(init=False, default_factory=made)
        def f(): return C().x
    """,
    "flag of a field": """
        from dataclasses import dataclass, field, fields
        @dataclass
        class C:
            x: int = field(default=0, repr=ONE == 1)
        def f(): return fields(C)[0].repr
    """,
    "comparison of a field": """
        from dataclasses import dataclass, field, fields
        @dataclass
        class C:
            x: int = field(default=0, hash=ONE == 1, compare=True)
        def f(): return fields(C)[0].hash
    """,
    "parameters of a dataclass": """
        from dataclasses import dataclass
        @dataclass(unsafe_hash=ONE == 1, eq=False)
        class C:
            x: int = 0
        def f(): return C.__dataclass_params__.unsafe_hash
    """,
    "metadata of an annotation": """
        from typing import Annotated, get_type_hints
        class Scale:
            def __init__(self, factor): self.factor = factor
        class C:
            x: Annotated[int, Scale(ONE)]
        def f(): return get_type_hints(C, include_extras=True)['x'].__metadata__[0].factor
    """,
    "metadata of an annotation as text": """
        from __future__ import annotations
        from typing import Annotated
        scale = [ONE]
        def g(x: Annotated[int, scale]): return x
        def f(): return g
    """,
    "class of an annotated parameter": """
        class Scale:
            def __call__(self, x): return x * ONE
        scale = Scale()
        def g(x: scale): return x
        def f(): return g.__annotations__['x'](1)
    """,
    "class of a text within an annotation": """
        from __future__ import annotations
        from typing import Optional
        class Scale:
            factor = ONE
        def g(x: Optional[list["Scale"]]): return x
        def f(): return g
    """,
    "signature of a class": """
        import inspect
        class C:
            __signature__ = inspect.Signature([inspect.Parameter('x', 1, default=ONE)])
        def f(): return inspect.signature(C).parameters['x'].default
    """,
    "metaclass": """
        class Meta(type):
            def __call__(cls): return ONE
        class C(metaclass=Meta): pass
        def f(): return C()
    """,
    "keyword of a class": """
        class Base:
            def __init_subclass__(cls, rate): cls.rate = rate
        class C(Base, rate=ONE): pass
        def f(): return C.rate
    """,
    "slots": "class C:\n    __slots__ = ('xONE',)\ndef f(): return C.__slots__",
    "alias of a member": """
        import enum
        class C(enum.Enum):
            A = 1
            B = 2
            OTHER = ONE
        def f(): return C['OTHER']
    """,
    "attribute of a member": """
        import enum
        class C(enum.Enum):
            A = 1
        C.A.weight = ONE
        def f(): return C.A.weight
    """,
    "default of a named tuple": """
        from typing import NamedTuple
        class C(NamedTuple):
            x: int = ONE
        def f(): return C()
    """,
    "__class_getitem__": """
        class C:
            def __class_getitem__(cls, item): return ONE
        def f(): return C[0]
    """,
    "partial method": """
        import functools
        class C:
            def at(self, rate): return rate
            rate = functools.partialmethod(at, ONE)
        def f(): return C().rate()
    """,
    "single dispatch method": """
        import functools
        class C:
            @functools.singledispatchmethod
            def at(self, x): return 0
            @at.register
            def _(self, x: int): return ONE
        def f(): return C().at(1)
    """,
    "total ordering": """
        import functools
        @functools.total_ordering
        class C:
            def __lt__(self, other): return ONE == 1
            def __eq__(self, other): return False
        def f(): return C() >= C()
    """,
    "registered class": """
        import abc
        class Base(abc.ABC): pass
        class One: pass
        class Two: pass
        Base.register(One if ONE == 1 else Two)
        def f(): return issubclass(One, Base)
    """,
    "order of attributes": """
        class C:
            if ONE == 1:
                a, b = 1, 2
            else:
                b, a = 2, 1
        def f(): return list(vars(C))
    """,
    "default of a model": """
        import pydantic
        class C(pydantic.BaseModel):
            x: int = ONE
        def f(): return C().x
    """,
    "limit of a model": """
        import pydantic
        from typing import Annotated
        class C(pydantic.BaseModel):
            x: Annotated[int, pydantic.Field(gt=ONE)] = 0
        def f(): return C
    """,
    "validator of a model": """
        import pydantic
        class C(pydantic.BaseModel):
            x: int = 0
            @pydantic.field_validator('x', mode='before')
            @classmethod
            def of(cls, x): return ONE
        def f(): return C(x=0).x
    """,
    "computed field of a model": """
        import pydantic
        class C(pydantic.BaseModel):
            @pydantic.computed_field
            @property
            def x(self) -> int: return ONE
        def f(): return C().model_dump()
    """,
    "validated call": """
        import pydantic
        from typing import Annotated
        @pydantic.validate_call
        def g(x: Annotated[int, pydantic.Field(gt=ONE)]): return x
        def f(): return g(1)
    """,
    "adapter": """
        import pydantic
        from typing import Annotated
        A = pydantic.TypeAdapter(Annotated[int, pydantic.Field(gt=ONE)])
        def f(): return A.validate_python(1)
    """,
    "declared function of a library": """
        import ctypes
        LIBRARY = ctypes.CDLL('libm.so.6')
        LIBRARY.cos.restype = [None, ctypes.c_double, ctypes.c_float][ONE]
        def f(): return LIBRARY.cos(0)
    """,
    "new type": """
        from typing import NewType
        N = NewType('N', [None, int, float][ONE])
        def f(): return N.__supertype__
    """,
    "weak table": """
        import weakref
        class Key: pass
        kept = Key()
        class C:
            table = weakref.WeakKeyDictionary({kept: ONE})
        def f(): return list(C.table.values())
    """,
    "fields of a structure": """
        import ctypes
        class C(ctypes.Structure):
            _fields_ = [('a', ctypes.c_int * ONE)]
        def f(): return ctypes.sizeof(C)
    """,
    "memory of a class": "class C:\n    data = memoryview(b'ONE')\ndef f(): return C.data",
}


def keys_of(path, name, monkeypatch):
    """Return the key of the function before an edit, again in another module, and after it."""
    found = []
    for number, value in enumerate("112"):
        folder = path / str(number)
        folder.mkdir()
        text = textwrap.dedent(EDITED[name]).replace("ONE", value)
        (folder / "edited_class.py").write_text(text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            patch.delitem(sys.modules, "edited_class", raising=False)
            module = importlib.import_module("edited_class")
            try:
                found.append(KeyMaker().key(module.f, (), {}).digest)
            except UnfollowedReferencesError:
                found.append(None)
            del sys.modules["edited_class"]
    return found


@pytest.mark.parametrize("name", EDITED)
def test_edit_of_a_class_makes_another_key(name, tmp_path, monkeypatch):
    before, again, edited = keys_of(tmp_path, name, monkeypatch)
    assert before == again
    assert before != edited


def test_change_of_a_descriptor_with_a_lock_is_noticed():
    class Rated:
        def __init__(self):
            self.lock, self.rate = threading.Lock(), 1

    class Model:
        rated = Rated()

    def read():
        return Model.rated.rate

    maker = KeyMaker()
    before = maker.key(read, (), {}).digest
    assert maker.key(read, (), {}).digest == before
    Model.rated.rate = 2
    assert maker.key(read, (), {}).digest != before
