"""Each kind of fault: its code, its place, its path and the way out."""

import pytest

from scalable.errors import ManifestError
from scalable.manifest import Manifest

HEAD = "version: 1\nproject: {name: p}\n"  # lines 1 and 2
LOCAL = "targets: {local: {provider: local}}\n"  # line 3
TAIL = "components: {a: , b: }\n"  # line 4


def target(lines):
    """A manifest whose target ``t`` starts on line 4 with its provider."""
    return f"{HEAD}targets:\n  t:\n{lines}components: {{a: }}\n"


def local(option):
    """A manifest with one option of a local target on line 6."""
    return target(f"    provider: local\n    {option}\n")


def slurm(option):
    return target(f"    provider: slurm\n    {option}\n")


def component(key):
    """A manifest with one key of a component on line 6."""
    return f"{HEAD}{LOCAL}components:\n  a:\n    {key}\n"


def task(key):
    """A manifest with one key of a task on line 8."""
    return f"{HEAD}{LOCAL}components: {{a: }}\ntasks:\n  t:\n    component: a\n    {key}\n"


CASES = {
    "no version": (f"project: {{name: p}}\n{LOCAL}{TAIL}", "E_MISSING_KEY@1:1 version"),
    "no project": (f"version: 1\n{LOCAL}{TAIL}", "E_MISSING_KEY@1:1 project"),
    "no name": (f"version: 1\nproject: {{}}\n{LOCAL}{TAIL}", "E_MISSING_KEY@2:1 project.name"),
    "name without value": (
        f"version: 1\nproject:\n  name:\n{LOCAL}{TAIL}",
        "E_MISSING_KEY@2:1 project.name",
    ),
    "no targets": (f"{HEAD}{TAIL}", "E_MISSING_KEY@1:1 targets"),
    "empty targets": (f"{HEAD}targets: {{}}\n{TAIL}", "E_MISSING_KEY@3:1 targets"),
    "no components": (f"{HEAD}{LOCAL}", "E_MISSING_KEY@1:1 components"),
    "components without value": (f"{HEAD}{LOCAL}components:\n", "E_MISSING_KEY@4:1 components"),
    "no provider": (target("    queue: short\n"), "E_MISSING_KEY@4:3 targets.t.provider"),
    "no component of a task": (
        f"{HEAD}{LOCAL}{TAIL}tasks:\n  t:\n",
        "E_MISSING_KEY@6:3 tasks.t.component",
    ),
    "version 2": (f"version: 2\nproject: {{name: p}}\n{LOCAL}{TAIL}", "E_BAD_VERSION@1:10 version"),
    "version in quotes": (
        f"version: '1'\nproject: {{name: p}}\n{LOCAL}{TAIL}",
        "E_BAD_VERSION@1:10 version",
    ),
    "version true": (
        f"version: true\nproject: {{name: p}}\n{LOCAL}{TAIL}",
        "E_BAD_VERSION@1:10 version",
    ),
    "top key": (f"{HEAD}{LOCAL}{TAIL}task: {{}}\n", "E_UNKNOWN_TOP_KEY@5:1 task"),
    "top key in overlay": (
        f"{HEAD}{LOCAL}{TAIL}overlays:\n  o:\n    version: 1\n",
        "E_UNKNOWN_TOP_KEY@7:5 overlays.o.version",
    ),
    "project key": (
        f"version: 1\nproject: {{name: p, nam: q}}\n{LOCAL}{TAIL}",
        "E_BAD_OPTION@2:20 project.nam",
    ),
    "component key": (component("cpu: 1"), "E_UNKNOWN_COMPONENT_KEY@6:5 components.a.cpu"),
    "key of a key of a component": (
        component("workers: {maximun: 1}"),
        "E_BAD_OPTION@6:15 components.a.workers.maximun",
    ),
    "task key": (task("repeat: 3"), "E_BAD_OPTION@8:5 tasks.t.repeat"),
    "target option": (local("queue: short"), "E_UNKNOWN_TARGET_OPTION@6:5 targets.t.queue"),
    "key of adaptive": (local("adaptive: {min: 1}"), "E_BAD_OPTION@6:16 targets.t.adaptive.min"),
    "provider": (target("    provider: locale\n"), "E_UNKNOWN_PROVIDER@5:15 targets.t.provider"),
    "overlay": (local("overlay: o"), "E_UNKNOWN_OVERLAY@6:14 targets.t.overlay"),
    "component of a task": (
        f"{HEAD}{LOCAL}{TAIL}tasks:\n  t: {{component: c}}\n",
        "E_TASK_COMPONENT_REF@6:18 tasks.t.component",
    ),
    "task of after": (task("after: [x]"), "E_BAD_OPTION@8:13 tasks.t.after[0]"),
    "after itself": (task("after: [t]"), "E_BAD_OPTION@8:13 tasks.t.after[0]"),
    "duplicate key": (f"{HEAD}{LOCAL}{TAIL}project: {{name: q}}\n", "E_DUPLICATE_KEY@5:1 project"),
    "duplicate deep key": (
        component("cpus: 1\n    cpus: 2"),
        "E_DUPLICATE_KEY@7:5 components.a.cpus",
    ),
    "duplicate key in a list": (
        f"{HEAD}{LOCAL}{TAIL}managers:\n- target: local\n- target: local\n  target: local\n",
        "E_DUPLICATE_KEY@8:3 managers[1].target",
    ),
    "number as key": (f"{HEAD}{LOCAL}components:\n  1:\n", "E_SYNTAX@5:3 components"),
    "tag": (component("cpus: !!int '4'"), "E_SYNTAX@6:11 components.a.cpus"),
    "adaptive bounds": (
        local("adaptive: {minimum: 3, maximum: 2}"),
        "E_BAD_OPTION@6:5 targets.t.adaptive",
    ),
    "worker bounds": (
        component("workers: {minimum: 3, maximum: 2}"),
        "E_BAD_OPTION@6:5 components.a.workers",
    ),
    "more workers than can be planned": (
        component("workers: 99999999999"),
        "E_BAD_OPTION@6:14 components.a.workers",
    ),
    "component without map": (
        f"{HEAD}{LOCAL}components:\n  a: 4\n",
        "E_BAD_OPTION@5:6 components.a",
    ),
    "components without map": (f"{HEAD}{LOCAL}components: [a]\n", "E_BAD_OPTION@4:1 components"),
    "name of a component": (
        f"{HEAD}{LOCAL}components:\n  a b: \n",
        "E_BAD_OPTION@5:3 components.a b",
    ),
    "policy of managers": (
        f"{HEAD}{LOCAL}{TAIL}managers: {{policy: best}}\n",
        "E_BAD_OPTION@5:20 managers.policy",
    ),
    "places of managers": (
        f"{HEAD}{LOCAL}{TAIL}managers: {{policy: cheapest, places: {{target: local}}}}\n",
        "E_BAD_OPTION@5:30 managers.places",
    ),
    "target of a place of managers": (
        f"{HEAD}{LOCAL}{TAIL}managers: {{policy: cheapest, places: [{{target: hpc}}]}}\n",
        "E_BAD_OPTION@5:48 managers.places[0].target",
    ),
    "managers as map": (
        f"{HEAD}{LOCAL}{TAIL}managers: {{local: {{}}}}\n",
        "E_BAD_OPTION@5:12 managers.local",
    ),
    "target of a manager": (
        f"{HEAD}{LOCAL}{TAIL}managers:\n- target: hpc\n",
        "E_BAD_OPTION@6:11 managers[0].target",
    ),
    "tag of a limit": (
        f"{HEAD}{LOCAL}{TAIL}managers:\n- {{target: local, limits: {{c: 1}}}}\n",
        "E_BAD_OPTION@6:28 managers[0].limits.c",
    ),
    "limit": (
        f"{HEAD}{LOCAL}{TAIL}managers:\n- {{target: local, limits: {{a: -1}}}}\n",
        "E_BAD_OPTION@6:31 managers[0].limits.a",
    ),
    "key of a manager": (
        f"{HEAD}{LOCAL}{TAIL}managers:\n- {{target: local, prio: 1}}\n",
        "E_BAD_OPTION@6:19 managers[0].prio",
    ),
    "target of an overlay": (
        f"{HEAD}{LOCAL}{TAIL}overlays:\n  o:\n    targets:\n      x: {{provider: local}}\n",
        "E_BAD_OPTION@8:7 overlays.o.targets.x",
    ),
    "overlay of an overlay": (
        f"{HEAD}{LOCAL}{TAIL}overlays:\n  o:\n    targets:\n      local: {{overlay: o}}\n",
        "E_BAD_OPTION@8:24 overlays.o.targets.local.overlay",
    ),
    "overlay without map": (
        f"{HEAD}{LOCAL}{TAIL}overlays:\n  o: 3\n",
        "E_BAD_OPTION@6:6 overlays.o",
    ),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_one_fault_is_found_where_it_is(faults, text, expected):
    assert faults(text) == [expected]


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "4.0", "'4'", "true", "'x'", "[1]", "many"])
def test_max_workers(diagnose, value):
    # To a schema 4.0 is an integer.
    (found,) = diagnose(local(f"max_workers: {value}"), in_schema=value != "4.0")
    assert (found.code, found.line, found.dotted_path) == (
        "E_BAD_MAX_WORKERS",
        6,
        "targets.t.max_workers",
    )
    assert found.message.startswith("max_workers must be a positive integer, not ")
    assert found.hint


BAD_VALUES = [
    *(local(f"threads_per_worker: {v}") for v in ("0", "'2'", "true", "1.5", "[]")),
    *(local(f"processes: {v}") for v in ("yes", "'true'", "1", "no")),
    *(local(f"containers: {v}") for v in ("podmann", "true", "Docker")),
    *(local(f"idle_timeout: {v}") for v in ("soon", "0", "-5", "true", "10 parsecs", "0s")),
    *(local(f"price_per_core_hour: {v}") for v in ("-1", "'1'", ".inf", ".nan")),
    *(local(f"adaptive: {v}") for v in ("3", "{minimum: -1}", "{maximum: '2'}", "[1]")),
    *(slurm(f"walltime: {v}") for v in ("soon", "0", "'00:00'", "1.5", "true", "1:2:3:4")),
    *(slurm(f"queue: {v}") for v in ("true", "[a]", "''", '"a\\nb"', "{a: 1}")),
    *(slurm(f"scheduler_port: {v}") for v in ("-1", "65536", "'80'")),
    *(slurm(f"worker_port_range: {v}") for v in ("'5:1'", "a", "0", "70000", "'1:2:3'")),
    *(slurm(f"scheduler: {v}") for v in ("laptop",)),
    *(slurm(f"directives: {v}") for v in ("--x", "[true]", "[[a]]")),
    *(component(f"cpus: {v}") for v in ("0", "-1", "'2'", "true", "two", ".inf")),
    *(component(f"memory: {v}") for v in ("0", "20X", "-1", "true", "[1]", "lots", "0G")),
    *(component(f"gpus: {v}") for v in ("-1", "1.5", "'1'", "true")),
    *(component(f"slots: {v}") for v in ("0", "'1'")),
    *(component(f"workers: {v}") for v in ("-1", "'3'", "true", "1.5", "{minimum: x}", "[1]")),
    *(component(f"mounts: {v}") for v in ("[a]", "{a: true}", "{a: [b]}", "/a")),
    *(component(f"env: {v}") for v in ("[a]", "{A: [b]}", "A=b", "{A: {B: c}}")),
    *(component(f"tags: {v}") for v in ("a", "{a: b}", "[true]", "[~]")),
    *(component(f"image: {v}") for v in ("true", "[a]", "''")),
    *(component(f"runtime: {v}") for v in ("rkt", "1")),
    *(task(f"count: {v}") for v in ("0", "'3'", "1.5")),
    *(task(f"cache: {v}") for v in ("yes", "1", "'true'")),
    *(task(f"retries: {v}") for v in ("-1", "'3'", "1.5", "true", "[3]", "{count: -1}")),
    *(task(f"retries: {{count: 3, {v}}}") for v in ("backoff: 0", "on: OSError", "on: [OsError]")),
    *(task(f"retries: {{count: 3, on: [{v}]}}") for v in ("int", "a b.C", "KeyboardInterrupt", "1")),
    *(task(f"memory_on_retry: {v}") for v in ("1", "0.5x", "x", "true", "[2]", "2y")),
    *(task(f"duration: {v}") for v in ("long", "0", "-1s")),
    *(task(f"outputs: {v}") for v in ("a", "[1]", "{a: 1}", "3")),
    *(task(f"after: {v}") for v in ("t", "{t: 1}")),
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_VALUES)
def test_every_bad_value_is_a_bad_option_with_its_path(diagnose, text):
    found = diagnose(text)
    last = max(i for i, line in enumerate(text.splitlines(), 1) if line.startswith("    "))
    key = text.splitlines()[last - 1].split(":")[0].strip()
    assert {(d.code, d.line) for d in found} == {("E_BAD_OPTION", last)}
    for diagnostic in found:
        assert f".{key}" in diagnostic.dotted_path
        assert key in diagnostic.message
        assert diagnostic.hint


@pytest.mark.parametrize(("text", "hint"), [
    (component("cpu: 1"), "did you mean 'cpus'?"),
    (component("cores: 1"), "did you mean 'cpus'?"),
    (component("RAM: 1G"), "did you mean 'memory'?"),
    (component("replicas: 2"), "did you mean 'workers'?"),
    (task("retries: {count: 1, on: [OsError]}"), "did you mean 'OSError'?"),
    (task("retries: {count: 1, on: [HTTPError]}"), "write other classes as module.Name"),
    (task("retries: {count: 1, backof: 1s}"), "did you mean 'backoff'?"),
    (component("zzz: 1"), "known: image, runtime, cpus"),
    (local("max_worker: 1"), "did you mean 'max_workers'?"),
    (local("adaptve: {}"), "did you mean 'adaptive'?"),
    (local("overlay: o"), "none is defined"),
    (target("    provider: Slrum\n"), "did you mean 'slurm'?"),
    (local("containers: dokcer"), "did you mean 'docker'?"),
    (local("threads_per_worker: '2'"), "write 2 without quotes"),
    (local("processes: 'true'"), "write true without quotes"),
    (local("processes: yes"), "write true or false"),
    (slurm("queue: true"), 'write "true" in quotes'),
    (task("after: [T]"), "did you mean 't'?"),
    (f"{HEAD}{LOCAL}{TAIL}task: {{}}\n", "did you mean 'tasks'?"),
    (component("workers: {maximun: 1}"), "did you mean 'maximum'?"),
    (component("memory: 20X"), "such as 20G"),
])  # fmt: skip
def test_a_fault_shows_the_way_out(diagnose, text, hint):
    (found,) = diagnose(text)
    assert hint in found.hint


def test_all_faults_come_at_once_in_the_order_of_the_file(diagnose):
    found = diagnose("""\
        version: 3
        projekt: {name: p}
        targets:
          a: {provider: local, max_workers: 0, wat: 1}
          b:
            provider: slrm
            idle_timeout: never
        components:
          x: {memory: 1X, cpus: "1"}
          x: {}
        tasks:
          t: {component: y, count: "3", after: [u]}
          u: {component: x, after: [t], foo: 1}
          v:
            component: ${UNSET}
        """)
    assert [f"{d.code}@{d.line}:{d.column}" for d in found] == [
        "E_MISSING_KEY@1:1", "E_BAD_VERSION@1:10", "E_UNKNOWN_TOP_KEY@2:1",
        "E_BAD_MAX_WORKERS@4:37", "E_UNKNOWN_TARGET_OPTION@4:40", "E_UNKNOWN_PROVIDER@6:15",
        "E_BAD_OPTION@7:19", "E_BAD_OPTION@9:15", "E_BAD_OPTION@9:25", "E_DUPLICATE_KEY@10:3",
        "E_TASK_COMPONENT_REF@12:18", "E_BAD_OPTION@12:28", "E_BAD_OPTION@13:29",
        "E_BAD_OPTION@13:33", "E_BAD_OPTION@15:16",
    ]  # fmt: skip


def test_a_fault_prints_place_excerpt_path_and_hint(diagnose):
    (found,) = diagnose(component("memory: 20X"))
    assert found.render() == (
        "m.yaml:6:13: error E_BAD_OPTION: memory: '20X' is not an amount of memory: write, for "
        "example, 20G or 512MiB [components.a.memory]\n"
        "        memory: 20X\n"
        "                ^\n"
        "  hint: memory: Memory of one worker, such as 20G."
    )


def test_long_lines_are_shown_around_the_fault(diagnose):
    (found,) = diagnose(component("env: {" + "LONG: " + "y" * 500 + ", B: [1]}"))
    line, caret = found.excerpt.splitlines()
    assert len(line) <= 120
    assert line[caret.index("^") :].startswith("B: [1]")


def test_a_cycle_is_reported_once_with_the_tasks_in_it(diagnose):
    (found,) = diagnose(f"""{HEAD}{LOCAL}{TAIL}tasks:
  one: {{component: a, after: [three]}}
  two: {{component: a, after: [one]}}
  three: {{component: a, after: [two]}}
  four: {{component: a, after: [one, two]}}
""")
    assert found.message == "tasks wait for each other: one -> three -> two -> one"
    assert (found.line, found.column) == (7, 31)


def test_a_long_chain_of_tasks_is_no_recursion(load):
    tasks = "".join(f"  t{i}: {{component: a, after: [t{i + 1}]}}\n" for i in range(3000))
    manifest = load(f"{HEAD}{LOCAL}{TAIL}tasks:\n{tasks}  t3000: {{component: a}}\n")
    assert len(manifest.resolve("local").spec.tasks) == 3001


def test_a_fault_of_an_alias_is_reported_where_it_was_written(faults):
    text = f"{HEAD}{LOCAL}components:\n  a: &x\n    cpus: no\n  b: *x\n"
    assert faults(text) == [
        "E_BAD_OPTION@6:11 components.a.cpus",
        "E_BAD_OPTION@6:11 components.b.cpus",
    ]


def test_a_section_that_is_no_map_brings_no_further_faults(faults):
    text = f"{HEAD}{LOCAL}components: [a]\ntasks: {{t: {{component: a}}}}\n"
    assert faults(text) == ["E_BAD_OPTION@4:1 components"]


def test_a_mapping_has_faults_without_places(models):
    data = {"version": 1, "project": {"name": "p"}, "targets": {"t": {"provider": "locl"}}}
    with pytest.raises(ManifestError) as caught:
        Manifest.from_mapping(data | {"components": {"a": {"memory": object()}}}, models)
    assert [(d.code, d.path) for d in caught.value.diagnostics] == [
        ("E_BAD_OPTION", ("components", "a", "memory"))
    ]
    with pytest.raises(ManifestError) as caught:
        Manifest.from_mapping(data | {"components": {"a": {"cpus": 0}}}, models)
    assert [(d.code, d.line) for d in caught.value.diagnostics] == [
        ("E_UNKNOWN_PROVIDER", None),
        ("E_BAD_OPTION", None),
    ]
