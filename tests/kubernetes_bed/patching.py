"""The kinds of PATCH: merge, strategic merge, JSON patch and apply."""

import copy

from .errors import ApiError

#: Lists that a strategic merge patch merges by a key instead of replacing them.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "port",
    "imagePullSecrets": "name",
    "ownerReferences": "uid",
    "conditions": "type",
}


def merge(target, patch):
    """Return a JSON merge patch (RFC 7396) applied."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic(target, patch, name=""):
    """Return a strategic merge patch applied; lists with a known key merge by it."""
    if isinstance(patch, dict):
        result = dict(target) if isinstance(target, dict) else {}
        for key, value in patch.items():
            if key == "$patch" or key.startswith("$setElementOrder"):
                continue
            if value is None:
                result.pop(key, None)
            else:
                result[key] = strategic(result.get(key), value, key)
        return result
    if isinstance(patch, list) and name == "finalizers":
        return list(dict.fromkeys([*(target or ()), *patch]))
    key = MERGE_KEYS.get(name)
    if isinstance(patch, list) and key and all(isinstance(e, dict) and key in e for e in patch):
        merged = {entry.get(key): entry for entry in target or ()}
        for entry in patch:
            if entry.get("$patch") == "delete":
                merged.pop(entry[key], None)
            else:
                merged[entry[key]] = strategic(merged.get(entry[key]), entry)
        return list(merged.values())
    return copy.deepcopy(patch)


def json_patch(target, operations):
    """Return a JSON patch (RFC 6902) applied."""
    result = copy.deepcopy(target)
    for operation in operations:
        verb, path = operation["op"], operation["path"]
        if verb in {"move", "copy"}:
            value = copy.deepcopy(at(result, operation["from"]))
            if verb == "move":
                change(result, operation["from"], "remove", None)
            verb = "add"
        else:
            value = operation.get("value")
        change(result, path, verb, value)
    return result


def parts(path):
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def at(document, path):
    for part in parts(path):
        try:
            document = document[int(part)] if isinstance(document, list) else document[part]
        except (KeyError, IndexError, ValueError, TypeError):
            raise ApiError(422, f"the path {path} of the patch does not exist") from None
    return document


def change(document, path, verb, value):
    *above, last = parts(path)
    parent = at(document, "".join(f"/{p.replace('~', '~0').replace('/', '~1')}" for p in above))
    if verb == "test":
        if at(document, path) != value:
            raise ApiError(422, f"the test of {path} in the patch failed")
        return
    if isinstance(parent, list):
        index = len(parent) if last == "-" else int(last)
        if verb == "add":
            parent.insert(index, value)
        elif verb == "replace":
            parent[index] = value
        else:
            del parent[index]
        return
    if verb in {"remove", "replace"} and last not in parent:
        raise ApiError(422, f"the path {path} of the patch does not exist")
    if verb == "remove":
        del parent[last]
    else:
        parent[last] = value


def apply_patch(content_type, target, patch):
    """Return the object after a PATCH with this content type."""
    content_type = content_type.split(";")[0]
    if content_type == "application/json-patch+json":
        if not isinstance(patch, list):
            raise ApiError(400, "a JSON patch is a list of operations")
        return json_patch(target, patch)
    if not isinstance(patch, dict):
        raise ApiError(400, f"the body of {content_type} is an object, not {type(patch).__name__}")
    if content_type == "application/merge-patch+json":
        return merge(target, patch)
    if content_type in {"application/strategic-merge-patch+json", "application/apply-patch+yaml"}:
        return strategic(target, patch)
    raise ApiError(415, f"the body of a patch cannot be {content_type}")
