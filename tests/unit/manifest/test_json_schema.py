"""The JSON Schema itself; that it agrees with loading is asked by every test that loads."""

from scalable.manifest import json_schema


def test_it_describes_every_key(models):
    schema = json_schema(models)
    parts = [schema, *(schema["$defs"][k] for k in ("project", "component", "task", "Manager"))]
    parts += [schema["$defs"][f"target_{name}"] for name in models if name != "mine"]
    for part in parts:
        assert part["properties"]
        for name, described in part["properties"].items():
            assert described.get("description"), name
