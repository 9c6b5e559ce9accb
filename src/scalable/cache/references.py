"""Names that a code object refers to, and its behaviour as values, both read from its bytecode."""

from __future__ import annotations

import ast
import dis
import linecache
import random
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from importlib.util import resolve_name
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from scalable.cache.packages import MAIN, is_project
from scalable.protocol.code import read_source

_T = TypeVar("_T")

_GLOBALS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
#: Instructions without an effect: which of them there are may depend on where lines end.
_IDLE: Final = frozenset({"CACHE", "EXTENDED_ARG", "NOP"})
#: Names that a class body sets for documentation and tools.
_DOCUMENTING: Final = frozenset({"__doc__", "__firstlineno__", "__static_attributes__"})
#: Two accesses to local variables in one instruction, which Python makes only within a line.
_PAIR: Final = re.compile(r"((?:LOAD|STORE)_FAST)(?:_BORROW)?_((?:LOAD|STORE)_FAST)(?:_BORROW)?")
_JUMPS: Final = frozenset({*dis.hasjrel, *dis.hasjabs})
_HAS_DOCSTRING: Final = 0x4000000
_OPTIMIZED: Final = 0x1


class Place(NamedTuple):
    """End of an expression in a source file. Columns are counted in bytes, as ``ast`` does."""

    file: str
    line: int
    column: int


class Step(NamedTuple):
    """One effect of a code object."""

    name: str
    #: The constant, the name, the number of the step to jump to, or the instruction's argument.
    value: Any
    place: Place


@lru_cache(maxsize=1024)
def steps(code: types.CodeType) -> tuple[Step, ...]:
    """Return the effects of a code object. They do not depend on docstrings and line breaks."""
    return _read(code)[0]


def _read(code: types.CodeType) -> tuple[tuple[Step, ...], dict[int, int]]:
    """Return the effects of a code object, and the number of the effect at each offset."""
    found: list[Step] = []
    numbers: dict[int, int] = {}
    jumps: list[int] = []
    for one in dis.get_instructions(code):
        numbers[one.offset] = len(found)
        if one.opname in _IDLE:
            continue
        at = one.positions
        place = Place(
            code.co_filename, at.end_lineno or 0 if at else 0, at.end_col_offset or 0 if at else 0
        )
        pair = _PAIR.fullmatch(one.opname)
        if pair is not None and isinstance(one.argval, tuple):
            found += [
                Step(name, value, place)
                for name, value in zip(pair.groups(), one.argval, strict=True)
            ]
        elif one.opname == "STORE_NAME" and one.argval in _DOCUMENTING and not _is_module(code):
            if found and found[-1].name == "LOAD_CONST":
                found.pop()
        elif one.opcode in _JUMPS:
            jumps.append(len(found))
            found.append(Step(one.opname, one.argval, place))
        elif one.opname in ("LOAD_SMALL_INT", "LOAD_COMMON_CONSTANT"):
            found.append(Step("LOAD_CONST", one.argval, place))
        elif one.opname == "RETURN_CONST":
            found.append(Step("LOAD_CONST", one.argval, place))
            found.append(Step("RETURN_VALUE", None, place))
        else:
            named = one.opcode in dis.hasconst or isinstance(one.argval, str)
            value = one.argval if named else one.arg
            found.append(Step(one.opname.removesuffix("_BORROW"), value, place))
    for number in jumps:
        found[number] = found[number]._replace(value=numbers.get(found[number].value, -1))
    return tuple(found), numbers


def behaviour(code: types.CodeType, source: ModuleSource | None = None) -> list[Any]:
    """Return the behaviour of a code object as values, without docstrings, file and lines.
    With the ``source`` of its module, it does not depend on line breaks, which decide about some
    of Python's optimizations.
    """
    if source is not None:
        code = source.flat.get(code, code)
    found, numbers = _read(code)
    written: list[str] = []
    constants: list[Any] = []
    for step in found:
        if step.name == "LOAD_CONST" or isinstance(step.value, tuple | frozenset):
            written.append(f"{step.name} #{len(constants)}")
            constants.append(
                behaviour(step.value) if isinstance(step.value, types.CodeType) else step.value
            )
        else:
            written.append(f"{step.name} {step.value}")
    handlers = [
        [*(numbers.get(offset, -1) for offset in (one.start, one.target)), one.depth, one.lasti]
        for one in dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    ]
    ends = [_number_at(numbers, one.end) for one in dis.Bytecode(code).exception_entries]  # type: ignore[attr-defined]
    return [
        "\n".join(written),
        constants,
        [code.co_name, code.co_varnames, code.co_freevars, code.co_cellvars],
        [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount],
        code.co_flags & ~_HAS_DOCSTRING,
        [handlers, ends],
    ]


def _number_at(numbers: dict[int, int], offset: int) -> int:
    """Return the number of the first effect at an offset or behind it, or -1 at the end."""
    return next((number for at, number in numbers.items() if at >= offset), -1)


def _is_module(code: types.CodeType) -> bool:
    return code.co_name == "<module>"


# References ---------------------------------------------------------------------------------------

Chain = tuple[str, ...]


@dataclass(frozen=True)
class Import:
    """An import at run time."""

    #: Number of leading dots; 0 is absolute.
    level: int
    module: str
    #: Names taken from the module. Empty for ``import module``.
    taken: tuple[str, ...]
    #: What is used of each bound name, as chains from the module that is bound: of ``module``'s
    #: first part if nothing is taken. ``("g", "h")`` stands for ``module.g.h``.
    chains: tuple[Chain, ...]
    #: True if the import runs when a function runs, False if it ran with its module.
    runs: bool


@dataclass(frozen=True)
class References:
    """Names used by a code object and the code objects within it."""

    #: Global names with attributes, such as ``("np", "random", "rand")``, and where functions use
    #: them. Uses by statements of a module, which have run already, have no place.
    globals: dict[Chain, tuple[Place, ...]]
    imports: tuple[Import, ...]
    #: Attributes of other objects that functions read, and where.
    attributes: dict[str, tuple[Place, ...]]
    #: All names that functions use, and the strings by which ``getattr`` may find others.
    names: frozenset[str]


@lru_cache(maxsize=1024)
def references(code: types.CodeType) -> References:
    """Return the names used by a code object and its nested ones, each once, in order."""
    chains: dict[Chain, dict[Place, None]] = {}
    imports: dict[Import, None] = {}
    attributes: dict[str, dict[Place, None]] = {}
    names: set[str] = set()
    for part, runs in _with_nested(code, runs=not _is_module(code)):
        found = steps(part)
        if runs:
            names.update(part.co_names)
            if names & _BY_TEXT:
                names.update(c for c in part.co_consts if isinstance(c, str) and c.isidentifier())
        # In the body of a class, a name may be that of another member.
        own = frozenset() if _is_module(part) or part.co_flags & _OPTIMIZED else _stored(found)
        behind = 0  # the number of the step behind the last chain
        for number, step in enumerate(found):
            if step.name in _GLOBALS and step.value not in own:
                chain = (str(step.value), *_attributes(found, number + 1))
                behind = number + len(chain)
                places = chains.setdefault(chain, {})
                if runs:
                    places[found[behind - 1].place] = None
            elif step.name in _ATTRIBUTES and number >= behind and runs:
                attributes.setdefault(str(step.value), {})[step.place] = None
            elif step.name == "IMPORT_NAME":
                imports[_import(found, number, runs=runs)] = None
    return References(
        {chain: tuple(places) for chain, places in chains.items()},
        tuple(imports),
        {name: tuple(places) for name, places in attributes.items()},
        frozenset(names),
    )


#: Functions by which code uses attributes whose names are strings.
_BY_TEXT: Final = frozenset({"getattr", "attrgetter", "methodcaller", "hasattr", "vars"})


def with_nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and the code objects of functions, classes, comprehensions in it."""
    return (part for part, _ in _with_nested(code, runs=True))


def _with_nested(code: types.CodeType, *, runs: bool) -> Iterator[tuple[types.CodeType, bool]]:
    """Yield a code object and the ones in it, and whether they run when a function runs."""
    yield code, runs
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_nested(constant, runs=runs or bool(constant.co_flags & _OPTIMIZED))


def _stored(found: tuple[Step, ...]) -> frozenset[str]:
    return frozenset(str(step.value) for step in found if step.name == "STORE_NAME")


def _attributes(found: tuple[Step, ...], number: int) -> Chain:
    """Return the attributes that are read one after the other from a step on."""
    chain: list[str] = []
    while number < len(found) and found[number].name in _ATTRIBUTES:
        chain.append(str(found[number].value))
        number += 1
    return tuple(chain)


def _import(found: tuple[Step, ...], number: int, *, runs: bool) -> Import:
    level, taken = (found[number - n].value for n in (2, 1))
    module = str(found[number].value)
    taken = tuple(taken or ())
    chains: list[Chain] = []
    if not taken:
        # ``import a.b as c`` takes names as well, but binds a module that is not the first part.
        bound = _used(found, number + 1)
        chains = [()] if bound is None else list(bound)
    for name in taken:
        place = number + 1
        while place < len(found) and found[place][:2] != ("IMPORT_FROM", name):
            place += 1
        bound = _used(found, place + 1)
        chains += [(name,)] if bound is None else [(name, *chain) for chain in bound]
    return Import(int(level or 0), module, taken, tuple(dict.fromkeys(chains)), runs)


def _used(found: tuple[Step, ...], number: int) -> list[Chain] | None:
    """Return the attributes used of what a step binds to a local name, or None if unknown."""
    if number >= len(found) or found[number].name != "STORE_FAST":
        return None
    name, chains = found[number].value, []
    for place, step in enumerate(found):
        if step.value != name or not isinstance(step.name, str) or "_FAST" not in step.name:
            continue
        if step.name.startswith("LOAD_FAST"):
            chain = _attributes(found, place + 1)
            if not chain:
                return None  # passed on, or given another name
            chains.append(chain)
        elif place != number and step.name == "STORE_FAST":
            return None
    return chains or None


# Sources ------------------------------------------------------------------------------------------

#: Functions that return a place for files of the task itself, or a file in memory.
_OWN_FILES: Final = frozenset(
    {"checkpoint", "mkdtemp", "mkstemp", "mktemp", "gettempdir", "StringIO", "BytesIO"}
    | {"TemporaryDirectory", "NamedTemporaryFile", "TemporaryFile", "SpooledTemporaryFile"}
)
#: Modes in which ``open`` reads nothing that was in a file before.
_WRITING: Final = frozenset("".join((m, *rest)) for m in "wax" for rest in ("", "b", "t")) | {
    *("w+", "wb+", "w+b", "x+", "xb+", "x+b", "wt+", "w+t"),
}


def reads(place: Place, *, is_method: bool) -> bool:
    """Return whether the call of a function that opens files reads one that others may change.
    ``place`` is the end of the function's expression. An unknown call reads.
    """
    calls = _calls(place.file, _text(place.file))
    call, own = calls.get(place[1:], (None, frozenset[str]()))
    if call is None:
        return True
    if any(_is_own(node, own) for node in ast.walk(call)):
        return False
    given = [one.value for one in call.keywords if one.arg == "mode"]
    given += call.args[(0 if is_method else 1) :][:1]
    return not any(
        (isinstance(one, ast.Constant) and one.value in _WRITING) or "O_WRONLY" in ast.dump(one)
        for one in given
    )


def _text(file: str) -> str:
    linecache.checkcache(file)
    return "".join(linecache.getlines(file))


_Calls = dict[tuple[int, int], tuple[ast.Call, frozenset[str]]]


@lru_cache(maxsize=64)
def _calls(_file: str, text: str) -> _Calls:
    """Return each call by the end of its function, with the names of the task's own files there."""
    found: _Calls = {}
    with suppress(SyntaxError, ValueError):
        _find_calls(_alone(ast.parse, text), None, found)
    return found


def _find_calls(node: ast.AST, own: frozenset[str] | None, found: _Calls) -> None:
    if own is None and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        own = _own_files(node)
    if isinstance(node, ast.Call):
        place = node.func.end_lineno or 0, node.func.end_col_offset or 0
        found[place] = node, own or frozenset()
    for child in ast.iter_child_nodes(node):
        _find_calls(child, own, found)


def _own_files(function: ast.AST) -> frozenset[str]:
    """Return the names in a function of its checkpoints, temporary files and parts of them."""
    names: frozenset[str] = frozenset()
    while True:
        found = set(names)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                targets, value = [node.target], node.value
            elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                targets, value = [node.optional_vars], node.context_expr
            else:
                continue
            if any(_is_own(part, names) for part in ast.walk(value)):
                found |= {
                    part.id
                    for target in targets
                    for part in ast.walk(target)
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
                }
        if found == names:
            return names
        names = frozenset(found)


def _is_own(node: ast.AST, names: frozenset[str]) -> bool:
    if isinstance(node, ast.Call):
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        return name in _OWN_FILES
    if isinstance(node, ast.Constant):
        return node.value == ":memory:"
    return isinstance(node, ast.Name) and node.id in names


# What code reads or runs that no name in it shows ------------------------------------------------


class Outside(NamedTuple):
    """Use of something that a key does not cover."""

    #: What code does with it, as a verb with its object, without the name.
    does: str
    #: True if it is harmless for a task that gets a ``File``: the task declares what it reads.
    is_file: bool = False


_BY_NAME: Final = Outside("reaches code by name with")
_RUNS: Final = Outside("runs a program with")
_ENVIRONMENT: Final = Outside("reads environment variables with")
_COMMAND: Final = Outside("reads the command line with")
_DRAWS: Final = Outside("draws from global random state with")
_LOCALE: Final = Outside("reads the locale with")
_READS: Final = Outside("reads files with", is_file=True)

#: Names in Python's own modules and in packages, by module. Functions that draw random numbers are
#: methods of one object.
_OUTSIDE: Final[tuple[tuple[Outside, dict[str, str]], ...]] = (
    (_BY_NAME, {
        "builtins": "eval exec compile globals __import__",
        "importlib": "import_module reload __import__",
        "importlib.machinery": "SourceFileLoader SourcelessFileLoader ExtensionFileLoader "
        "PathFinder FileFinder",
        "importlib.metadata": "entry_points EntryPoint EntryPoints",
        "importlib.util": "module_from_spec spec_from_file_location spec_from_loader LazyLoader",
        "inspect": "getsource getsourcelines getcomments findsource",
        "ctypes": "CDLL PyDLL cdll pydll LibraryLoader",
        "pkgutil": "resolve_name walk_packages iter_modules find_loader get_loader",
        "pydoc": "locate safeimport importfile",
        "runpy": "run_module run_path",
        "sys": "modules meta_path path_hooks",
        "zipimport": "zipimporter",
    }),
    (_RUNS, {
        "subprocess": "run call check_call check_output Popen getoutput getstatusoutput",
        "os": "system popen execl execle execlp execlpe execv execve execvp execvpe posix_spawn "
        "posix_spawnp spawnl spawnle spawnlp spawnlpe spawnv spawnve spawnvp spawnvpe startfile",
        "asyncio": "create_subprocess_exec create_subprocess_shell",
        "asyncio.subprocess": "create_subprocess_exec create_subprocess_shell",
        "pty": "spawn",
    }),
    (_ENVIRONMENT, {
        "os": "environ environb getenv getenvb",
        "os.path": "expandvars",
        "posixpath": "expandvars",
    }),
    (_COMMAND, {"sys": "argv orig_argv stdin", "fileinput": "input", "builtins": "input"}),
    (_DRAWS, {"random": "seed", "numpy.random": "seed set_state"}),
    (_LOCALE, {"locale": "getlocale getdefaultlocale localeconv nl_langinfo currency str "
        "format_string atof atoi strcoll strxfrm getpreferredencoding getencoding"}),
    (_READS, {
        "builtins": "open",
        "io": "open open_code FileIO",
        "os": "open listdir scandir walk fwalk stat lstat",
        "os.path": "getsize getmtime",
        "genericpath": "getsize getmtime",
        "glob": "glob iglob",
        "fileinput": "FileInput",
        "linecache": "getline getlines",
        "codecs": "open",
        "gzip": "open GzipFile",
        "bz2": "open BZ2File",
        "lzma": "open LZMAFile",
        "tarfile": "open TarFile",
        "zipfile": "ZipFile Path",
        "shelve": "open",
        "dbm": "open",
        "sqlite3": "connect",
        "wave": "open",
        "pkgutil": "get_data",
        "importlib.resources": "files open_text open_binary read_text read_binary path contents",
        "scalable": "File",
        "numpy": "load loadtxt genfromtxt fromfile fromregex memmap",
        "netCDF4": "Dataset MFDataset",
        "h5py": "File",
        "scipy.io": "loadmat readsav mmread netcdf_file",
        "joblib": "load",
        "torch": "load",
    }),
)  # fmt: skip
_TABLE: Final = {
    (module, name): outside
    for outside, modules in _OUTSIDE
    for module, names in modules.items()
    for name in names.split()
}
#: Those that are not functions.
_OBJECTS: Final = frozenset(
    {*(("os", one) for one in ("environ", "environb"))}
    | {("sys", one) for one in _OUTSIDE[3][1]["sys"].split()}
    | {("sys", one) for one in _OUTSIDE[0][1]["sys"].split()}
)
_MODULES: Final = frozenset(module for module, _ in _TABLE)
#: Names of functions with which packages read files.
_READER: Final = re.compile(r"(?:read|open)(?:_[a-z0-9_]+)?|scan_[a-z0-9_]+|imread")
#: Attributes by which code reaches other code that is known only at run time.
HIDDEN: Final = frozenset(
    {"__builtins__", "__globals__", "__loader__", "__spec__", "__subclasses__", "f_globals"}
    | {"f_builtins", "f_locals", "load_module", "exec_module"}
)
#: Attributes of objects of any type by which code reads something.
READING: Final = {
    **dict.fromkeys(("read_text", "read_bytes", "open", "iterdir", "rglob"), _READS),
    **dict.fromkeys(("parse_args", "parse_known_args"), _COMMAND),
}
#: Names of functions that read docstrings.
READING_TEXTS: Final = frozenset({"__doc__", "getdoc"})


def outside(module: str, name: str, value: Any = None) -> tuple[Outside, str] | None:
    """Return what a name in a module of Python or a package stands for, if a key does not cover it.
    The second value is the name for messages. ``value`` is the named object, if it is known.
    """
    found = _TABLE.get((module, name))
    if found is not None:
        return found, _label(module, name)
    if value is None:
        is_stdlib = module.partition(".")[0] in sys.stdlib_module_names
        is_reader = not is_stdlib and _READER.fullmatch(name) is not None
        return (_READS, _label(module, name)) if is_reader else None
    return outside_value(value)


def _label(module: str, name: str) -> str:
    called = "" if (module, name) in _OBJECTS else "()"
    return f"{name}{called}" if module == "builtins" else f"{module}.{name}{called}"


_CALLABLE = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, type),
    type(lru_cache(int)),
)


def outside_value(value: Any) -> tuple[Outside, str] | None:
    """Return what a value of Python or a package does that a key does not cover."""
    if value is sys.modules or value is sys.argv:
        return (_BY_NAME, "sys.modules") if value is sys.modules else (_COMMAND, "sys.argv")
    # Other objects may have any attributes, or raise any error for them.
    name = getattr(value, "__name__", None) if isinstance(value, _CALLABLE) else None
    if not isinstance(name, str):
        return None
    owner = getattr(value, "__self__", None)
    if not isinstance(owner, type | types.ModuleType | type(None)):
        drawn = isinstance(owner, random.Random) or type(owner).__name__ == "RandomState"
        return (_DRAWS, _label(_random(owner), name)) if drawn and _is_global(owner) else None
    for place in _MODULES:
        if (place, name) in _TABLE and getattr(sys.modules.get(place), name, None) is value:
            return outside(place, name)
    module = str(getattr(value, "__module__", None) or "")
    top = module.partition(".")[0]
    if top not in sys.stdlib_module_names and top != "scalable" and _READER.fullmatch(name):
        return None if is_project(module) else (_READS, _label(top, name))
    return None


def _random(owner: Any) -> str:
    return "random" if isinstance(owner, random.Random) else "numpy.random"


def _is_global(owner: Any) -> bool:
    """Return whether a random generator is the one of a module."""
    numpy = sys.modules.get("numpy.random")
    return owner in (
        getattr(random, "_inst", None),
        getattr(getattr(numpy, "mtrand", None), "_rand", None),
    )


def is_draw(found: Outside) -> bool:
    """Return whether something is a use of global random state."""
    return found is _DRAWS


def outside_of(module: str, names: frozenset[str]) -> tuple[Outside, str] | None:
    """Return the first thing outside a key that code may reach through a module and some names."""
    for (place, name), found in _TABLE.items():
        if name in names and (place == module or place.startswith(f"{module}.")):
            return found, _label(place, name)
    if module == "random" or (module.startswith("numpy") and "random" in (*names, module[6:])):
        space = sys.modules.get("random" if module == "random" else "numpy.random")
        for name in sorted(names):
            drawn = outside_value(getattr(space, name, None))
            if drawn is not None and drawn[0] is _DRAWS:
                return drawn
    return None


# Modules ------------------------------------------------------------------------------------------

#: Decorators that register nothing.
_HARMLESS: Final = frozenset(
    {"abstractmethod", "attrs", "cache", "cached", "cached_property", "classmethod", "dataclass"}
    | {"asynccontextmanager", "contextmanager", "define", "delayed", "final", "frozen", "wraps"}
    | {"guvectorize", "jit", "lru_cache", "njit", "overload", "override", "property", "unique"}
    | {"runtime_checkable", "singledispatch", "staticmethod", "total_ordering", "vectorize"}
)
_OF_TESTS: Final = frozenset({"pytest", "hypothesis", "given"})
_REGISTERING: Final = re.compile(r"regist|accessor|plug_?in|hook|patch", re.IGNORECASE)


@dataclass(frozen=True)
class ModuleSource:
    """Content of a module that concerns its code and its import."""

    code: types.CodeType
    #: Each code object in the module, and what it would be if the module had a single line.
    flat: Mapping[types.CodeType, types.CodeType]
    #: Imports of the module itself: level, module and the names taken.
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    #: Statements that may change other objects when the module is imported, or None.
    effects: types.CodeType | None
    #: These statements as a string, without comments and positions.
    effects_text: str
    #: Each statement as such a string, with the names that it binds.
    statements: tuple[tuple[frozenset[str], str], ...]


_trees = threading.RLock()
#: Attempts to make a syntax tree while other code of the process makes some too.
_ATTEMPTS: Final = 5


def _alone(make: Callable[..., _T], *given: Any) -> _T:
    """Call what makes syntax trees, in one thread at a time.
    Before 3.13, Python counts the depth of all threads' trees together: it raises SystemError.
    """
    with _trees:
        for _ in range(_ATTEMPTS - 1):
            with suppress(SystemError):
                return make(*given)
        return make(*given)


def module_source(module: types.ModuleType) -> ModuleSource | None:
    """Return what the source of a module says, or None if it is not readable Python."""
    path = getattr(module, "__file__", None)
    if not isinstance(path, str) or not path.endswith(".py"):
        return None
    with suppress(OSError):
        status = Path(path).stat()
        package = str(getattr(module, "__package__", None) or "")
        return _alone(_module_source, path, package, status.st_mtime_ns, status.st_size)
    return None


@lru_cache(maxsize=512)
def _module_source(path: str, package: str, _modified: int, _size: int) -> ModuleSource | None:
    source = read_source(path)
    if source is None:
        return None
    try:
        tree = ast.parse(source)
        code = compile(tree, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    own = set(_own_names(tree, package))
    effects = [one for one in tree.body if _has_effect(one, own)]
    for node in ast.walk(tree):  # columns stay different, so that equal lambdas are not merged
        if isinstance(node, ast.expr | ast.stmt | ast.excepthandler | ast.pattern):
            node.col_offset += node.lineno * _WIDTH
            node.end_col_offset = (node.end_col_offset or 0) + (node.end_lineno or 0) * _WIDTH
            node.lineno = node.end_lineno = 1
    on_one_line = compile(tree, path, "exec", dont_inherit=True)
    flat = dict(zip(with_nested(code), with_nested(on_one_line), strict=False))
    made = None
    if effects:
        body = ast.Module(effects, [])
        made = compile(body, path, "exec", dont_inherit=True)
    texts = {one: ast.dump(one) for one in tree.body}
    return ModuleSource(
        code,
        flat,
        tuple(_imports(tree)),
        made,
        "".join(texts[one] for one in effects),
        tuple((_bound(one), text) for one, text in texts.items()),
    )


#: Columns of a line when all lines of a module are put into one.
_WIDTH: Final = 1000
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _own_names(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the names of functions and classes that come from the project."""
    for one in tree.body:
        if isinstance(one, _DEFINITIONS):
            yield one.name
        elif isinstance(one, ast.ImportFrom):
            with suppress(ImportError):
                module = resolve_name("." * one.level + (one.module or ""), package)
                if is_project(module):
                    yield from (name.asname or name.name for name in one.names)


def _imports(node: ast.AST) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((0, one.name, ()) for one in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield child.level, child.module or "", tuple(one.name for one in child.names)
        elif isinstance(child, ast.ClassDef) or not isinstance(child, (*_DEFINITIONS, ast.Lambda)):
            yield from _imports(child)


def _has_effect(statement: ast.stmt, own: set[str]) -> bool:
    """Return whether a statement of a module may change something that no name in it shows.
    ``own`` contains the names of functions and classes of the project. What these register in
    containers of the project is seen in the containers.
    """
    if isinstance(statement, _DEFINITIONS):
        return any(_registers(one, own) for one in statement.decorator_list)
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass):
        return False
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        changes = any(isinstance(one, ast.Attribute | ast.Subscript) for one in targets)
        return changes or _REGISTERING.search(ast.dump(statement)) is not None
    inner = [child for child in ast.walk(statement) if isinstance(child, ast.stmt)][1:]
    if isinstance(statement, ast.If):
        test = ast.dump(statement.test)
        if "'TYPE_CHECKING'" in test or ("'__name__'" in test and "'__main__'" in test):
            inner = statement.orelse
    return any(_has_effect(one, own) for one in inner)


def _registers(decorator: ast.expr, own: set[str]) -> bool:
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if isinstance(function, ast.Name) and name in own:
        return _REGISTERING.search(name) is not None
    root = function
    while isinstance(root, ast.Attribute | ast.Call):
        root = root.func if isinstance(root, ast.Call) else root.value
    return name not in _HARMLESS and getattr(root, "id", "") not in _OF_TESTS


def module_digest(module: str) -> str | None:
    """Return the digest of a module's source without comments and positions, or None."""
    return _digest(module, None)


def binding_digest(module: str, name: str) -> str | None:
    """Return the digest of a module's statements that bind a name, or None without a source.
    On a worker, the name's value comes from these statements, not from assignments here.
    """
    return None if module in MAIN else _digest(module, name)


def _digest(module: str, name: str | None) -> str | None:
    loaded = sys.modules.get(module)
    source = None if loaded is None else module_source(loaded)
    if source is None:
        return None
    texts = [text for names, text in source.statements if name is None or name in names]
    return blake2b("".join(texts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _bound(statement: ast.stmt) -> frozenset[str]:
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return frozenset(names)
