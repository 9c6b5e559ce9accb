"""What has changed between two manifests."""

from scalable.session.detached import differences


def test_each_value_that_differs_is_named_and_secrets_are_not_shown():
    before = {
        "targets": {"local": {"provider": "local", "max_workers": 4}},
        "components": {
            "a": {"cpus": 1, "memory": "2G", "env": {"TOKEN": "one"}},
            "b": {"cpus": 1, "env": {"X": "secret"}},
        },
        "tasks": {"grow": {"component": "a", "after": ["sow"]}},
    }
    after = {
        "targets": {"local": {"provider": "local", "max_workers": 4, "processes": True}},
        "components": {"a": {"cpus": 2, "memory": "4G", "env": {"TOKEN": "two"}}},
        "tasks": {"grow": {"component": "a", "after": []}},
    }
    assert differences(before, before) == []
    assert differences(before, after) == [
        "targets.local.processes: (not set) -> true",
        "components.a.cpus: 1 -> 2",
        "components.a.memory: 2G -> 4G",
        "components.a.env.TOKEN: changed",
        "components.b.cpus: 1 -> (not set)",
        "components.b.env.X: changed",
        'tasks.grow.after: ["sow"] -> []',
    ]
