"""Quantities as Kubernetes writes them: `500m`, `2`, `1.5Gi`."""

import re

SUFFIXES = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15} | {
    f"{letter}i": 1024**power for power, letter in enumerate("KMGTP", 1)
}
QUANTITY = re.compile(r"([+-]?[0-9.]+)(?:([eE][+-]?[0-9]+)|([a-zA-Z]*))")


def amount(text):
    """Return a quantity as a float; ValueError if it is none."""
    found = QUANTITY.fullmatch(str(text))
    if not found or (found[3] or "") not in SUFFIXES:
        raise ValueError(f"quantities must match the regular expression, not {text!r}")
    return float(found[1] + (found[2] or "")) * SUFFIXES[found[3] or ""]


def total(resources, pods, field="requests"):
    """Return how much of each of `resources` the containers of pods ask for."""
    sums = dict.fromkeys(resources, 0.0)
    for pod in pods:
        for container in pod["spec"]["containers"]:
            asked = container.get("resources") or {}
            limits = asked.get("limits") or {}
            wanted = limits if field == "limits" else limits | (asked.get("requests") or {})
            for key in sums:
                sums[key] += amount(wanted.get(key, 0))
    return sums
