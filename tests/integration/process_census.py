"""What a process keeps: entries of containers by their owner, objects by class; asked by a signal.

A process of ours writes its census when it gets SIGUSR1, if its interpreter has loaded this file as
``sitecustomize``: no code of the process takes part.
"""

import functools
import gc
import json
import os
import signal
import sys
import time
from collections import Counter, deque
from pathlib import Path
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

#: Directory of the censuses; processes write none without it.
DIRECTORY = "PROCESS_CENSUS"
#: Programs that write a census.
PROGRAMS = ("scalable.clusters.programs.scheduler", "scalable.clusters.programs.manager")
CONTAINERS = (dict, list, set, frozenset, tuple, deque)
WEAK = (WeakKeyDictionary, WeakSet, WeakValueDictionary)
#: Packages whose objects are looked into.
LOOKED_INTO = ("scalable", "distributed", "dask", "tornado", "asyncio", "concurrent")


def entries(value):
    """Return the number of entries of a container, and of containers in it; 0 for other objects.

    A queue with a limit of its own counts nothing.
    """
    if isinstance(value, WEAK):
        return len(value)
    if not isinstance(value, CONTAINERS) or getattr(value, "maxlen", None) is not None:
        return 0
    inner = value.values() if isinstance(value, dict) else value
    more = (len(v) for v in list(inner) if isinstance(v, CONTAINERS) and not hasattr(v, "maxlen"))
    return len(value) + sum(more)


def attributes(thing):
    """Yield name and value of each attribute that an object itself has."""
    yield from list(getattr(thing, "__dict__", {}).items())
    for cls in type(thing).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(thing, name):
                yield name, getattr(thing, name)


def reachable():
    """Return all objects that are known to the collector or that these, or modules, refer to."""
    seen, open_ends = {}, [sys.modules, *gc.get_objects()]
    while open_ends:
        thing = open_ends.pop()
        if id(thing) not in seen:
            seen[id(thing)] = thing
            open_ends += gc.get_referents(thing)
    return list(seen.values())


def parts(thing):
    """Yield name and value of each part of a module, or of a class or object that is looked into."""
    if type(thing) is type(sys):
        owner, kept = f"module {thing.__name__}", vars(thing).items()
    elif isinstance(thing, type):
        owner = f"class {thing.__module__}.{thing.__qualname__}"
        kept = vars(thing).items() if str(thing.__module__).startswith(LOOKED_INTO) else ()
    else:
        owner = class_name(thing)
        kept = attributes(thing) if owner.startswith(LOOKED_INTO) else ()
    for name, value in list(kept):
        if name != "__builtins__":
            yield f"{owner}.{name}", value


def class_name(thing):
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def census():
    """Return the memory in bytes, entries by owner and attribute, and numbers of objects by class.

    What waits to be collected is collected first: a scheduler does so seldom.
    """
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    sizes, instances = Counter(), Counter()
    for thing in reachable():
        name = class_name(thing)
        if name == "_asyncio.Task":
            name = f"task {thing.get_coro().__qualname__}"
        if name.startswith((*LOOKED_INTO, "task ")):
            instances[name] += 1
        if isinstance(thing, functools._lru_cache_wrapper):
            if thing.cache_info().maxsize is None:
                sizes[f"cache {getattr(thing, '__qualname__', '')}"] += thing.cache_info().currsize
            continue
        for key, value in parts(thing):
            sizes[key] += entries(value)
    memory = pages * os.sysconf("SC_PAGE_SIZE")
    return {"memory": memory, "sizes": dict(+sizes), "instances": dict(instances)}


def write_census(*_):
    text = json.dumps(census())
    path = Path(os.environ[DIRECTORY]) / str(os.getpid())
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


def asked(pid, directory, timeout_s=120.0):
    """Return the census of a process that answers, by asking it."""
    path = Path(directory) / str(pid)
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        assert time.monotonic() < deadline, f"process {pid} writes no census"
        time.sleep(0.1)
    return json.loads(path.read_text())


if __name__ == "sitecustomize" and not {*PROGRAMS}.isdisjoint(sys.orig_argv):
    signal.signal(signal.SIGUSR1, write_census)
