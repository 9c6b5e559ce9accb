"""Watches: changes of objects as lines of JSON, until time is over or a fault ends them."""

import asyncio
import contextlib
import json
import time

from aiohttp import web

from .errors import ApiError
from .selecting import Selector

#: Seconds between two bookmarks of a watch.
BOOKMARKS = 1.0


async def watch(store, request, target):
    """Answer a watch: the objects that there are, if wanted, then each change."""
    query = request.query
    fields = query.get("fieldSelector", "")
    if target.name:
        fields = f"metadata.name={target.name}"
    selector = Selector(query.get("labelSelector"), fields)
    since = query.get("resourceVersion", "")
    initial = query.get("sendInitialEvents", "").lower() == "true"
    kind, namespace = target.kind, target.namespace
    first = [] if since not in {"", "0"} and not initial else store.list(kind, namespace, selector)
    fresh = initial or since in {"", "0"}
    failure = None
    queue = None
    try:
        queue = store.watch(store.version if fresh else int(since))
    except ApiError as error:
        failure = error
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    if failure is not None:
        await response.write(line("ERROR", failure.status()))
        return response
    for obj in first:
        await response.write(line("ADDED", obj))
    bookmarks = query.get("allowWatchBookmarks", "").lower() in {"1", "true"}
    if initial:
        await response.write(bookmark(store, kind, {"k8s.io/initial-events-end": "true"}))
    ends = time.monotonic() + float(query.get("timeoutSeconds") or 1800)
    with contextlib.suppress(ConnectionResetError):
        await follow(store, response, queue, target, selector, bookmarks, ends)
    return response


async def follow(store, response, queue, target, selector, bookmarks, ends):
    """Send what a watch asked for until it ends or is closed by a fault."""
    marked = time.monotonic()
    try:
        while (moment := time.monotonic()) < ends:
            if bookmarks and moment >= marked + BOOKMARKS:
                await response.write(bookmark(store, target.kind))
                marked = moment
            try:
                pause = min(ends, marked + BOOKMARKS) - moment
                event = await asyncio.wait_for(queue.get(), max(pause, 0.01))
            except TimeoutError:
                marked = marked if bookmarks else time.monotonic()
                continue
            if event is None:
                return
            if isinstance(event, ApiError):
                await response.write(line("ERROR", event.status()))
                return
            if sent := selected(event, target, selector):
                await response.write(event.line(sent))
    finally:
        store.watchers.discard(queue)


def bookmark(store, kind, annotations=None):
    metadata = {"resourceVersion": str(store.version), "creationTimestamp": None}
    if annotations:
        metadata["annotations"] = annotations
    return line(
        "BOOKMARK", {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
    )


def line(type_, obj):
    return json.dumps({"type": type_, "object": obj}).encode() + b"\n"


def selected(event, target, selector):
    """Return as which type a watch sees an event, None if it does not see it."""
    kind = event.kind
    if (kind.group, kind.plural) != (target.kind.group, target.kind.plural):
        return None
    if target.namespace and event.object["metadata"].get("namespace") != target.namespace:
        return None
    after = selector.matches(event.object)
    before = event.before is not None and selector.matches(event.before)
    if event.type == "MODIFIED" and after != before:
        return "ADDED" if after else "DELETED"
    return event.type if after or (event.type == "DELETED" and before) else None
