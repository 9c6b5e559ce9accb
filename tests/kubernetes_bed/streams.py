"""Subresources of pods that are no JSON: logs, port-forward, eviction."""

import asyncio
import contextlib
import datetime as dt
import time
from pathlib import Path

from aiohttp import WSMsgType, web

from .errors import ApiError

#: Subprotocols of the websocket of a port-forward, as the API server names them.
PROTOCOLS = ("v4.channel.k8s.io", "portforward.k8s.io")


def moment_text(nanoseconds):
    """Return a time as the kubelet writes it."""
    whole = dt.datetime.fromtimestamp(nanoseconds // 10**9, dt.UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{nanoseconds % 10**9:09d}Z"


class Streams:
    """Answers for the kubelet what clients ask of a pod."""

    def __init__(self, store, kinds, kubelet):
        self.store = store
        self.kinds = kinds
        self.kubelet = kubelet
        self.tunnels = set()
        #: Path of a log -> time of each of its lines, in nanoseconds.
        self.stamps = {}

    async def answer(self, request, target):
        pod = self.store.get(target.kind, target.namespace, target.name)
        if target.part == "log":
            return await self.log(request, pod)
        if target.part == "portforward":
            if "*/*" not in request.headers.get("Accept", "*/*"):  # as the kubelet's route does
                raise ApiError(406, "406: Not Acceptable")
            return await self.port_forward(request, pod)
        if target.part == "eviction":
            grace = pod["spec"].get("terminationGracePeriodSeconds", 30)
            self.kubelet.disrupt(pod, "EvictionByEvictionAPI", "Eviction API: evicting")
            running = pod["spec"].get("nodeName")
            self.store.delete(target.kind, pod, grace if running else 0)
            status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
            return web.json_response(status, status=201)
        raise ApiError(405, f"the test bed does not serve pods/{target.part}")

    # Logs -----------------------------------------------------------------------------------------

    def container(self, pod, name):
        names = [container["name"] for container in pod["spec"]["containers"]]
        if name and name not in names:
            raise ApiError(400, f"container {name} is not valid for pod {pod['metadata']['name']}")
        if not name and len(names) > 1:
            raise ApiError(
                400,
                f"a container name must be specified for pod {pod['metadata']['name']}, choose one of: {names}",
            )
        return name or names[0]

    async def log(self, request, pod):
        query = request.query
        container = self.container(pod, query.get("container"))
        path = self.kubelet.log_path(pod, container, flag(query, "previous"))
        if path is None or not path.exists():
            reason = self.kubelet.waiting_reason(pod, container)
            name = pod["metadata"]["name"]
            raise ApiError(
                400, f'container "{container}" in pod "{name}" is waiting to start: {reason}'
            )
        text = await asyncio.to_thread(path.read_bytes)
        size = len(text)
        if flag(query, "timestamps") or "sinceTime" in query:
            text = self.stamped(path, text, query)
        if "tailLines" in query:
            count = int(query["tailLines"])
            text = b"".join(text.splitlines(keepends=True)[-count:]) if count else b""
        if "limitBytes" in query:
            text = text[: int(query["limitBytes"])]
        if not flag(query, "follow"):
            return web.Response(body=text, content_type="text/plain")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError):
            await response.write(text)
            await self.follow(response, pod, container, path, size)
        return response

    def stamped(self, path, text, query):
        """Return the lines of a log with their times: when they were seen first, for simplicity.

        As in Kubernetes, `sinceTime` counts in seconds.
        """
        lines = text.splitlines(keepends=True)
        stamps = self.stamps.setdefault(path, [])
        for _ in lines[len(stamps) :]:
            moment = max(time.time_ns(), stamps[-1] + 1 if stamps else 0)
            stamps.append(moment)
        since = query.get("sinceTime", "")
        words = [moment_text(stamp) for stamp in stamps]
        kept = [
            (word, line) for word, line in zip(words, lines, strict=True) if word[:19] >= since[:19]
        ]
        if not flag(query, "timestamps"):
            return b"".join(line for _, line in kept)
        return b"".join(word.encode() + b" " + line for word, line in kept)

    async def follow(self, response, pod, container, path, offset):
        """Send what is added to a log until its container has ended."""
        ended = False
        while True:
            with Path(path).open("rb") as file:
                file.seek(offset)
                text = file.read()
            offset += len(text)
            if text:
                await response.write(text)
            elif ended:
                return
            else:
                ended = not self.kubelet.runs(pod, container)
                await asyncio.sleep(0.05)

    # Port-forward ---------------------------------------------------------------------------------

    async def port_forward(self, request, pod):
        ports = [int(p) for text in request.query.getall("ports", []) for p in text.split(",")]
        if not ports:
            raise ApiError(400, "a port-forward names its ports: ?ports=8786")
        address = self.kubelet.address(pod)
        if address is None:
            phase = pod["status"].get("phase")
            raise ApiError(
                400, f"unable to forward port because pod is not running. Current status={phase}"
            )
        socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=0, compress=False)
        await socket.prepare(request)
        self.tunnels.add(socket)
        connections = {}
        tasks = []
        try:
            for index, port in enumerate(ports):
                for channel in (2 * index, 2 * index + 1):
                    await socket.send_bytes(bytes([channel]) + port.to_bytes(2, "little"))
                try:
                    reader, writer = await asyncio.open_connection(address, port)
                except OSError as error:
                    text = f"error forwarding port {port} to pod {pod['metadata']['uid']}: {error}"
                    await socket.send_bytes(bytes([2 * index + 1]) + text.encode())
                    return socket
                connections[2 * index] = writer
                tasks.append(asyncio.create_task(self.upward(socket, reader, 2 * index)))
            ended = asyncio.gather(*tasks)
            ended.add_done_callback(lambda _: asyncio.ensure_future(socket.close()))
            async for message in socket:
                if message.type != WSMsgType.BINARY or not message.data:
                    continue
                writer = connections.get(message.data[0])
                if writer is not None and len(message.data) > 1:
                    writer.write(memoryview(message.data)[1:])
                    await writer.drain()
        except ConnectionResetError:
            pass
        finally:
            self.tunnels.discard(socket)
            for task in tasks:
                task.cancel()
            for writer in connections.values():
                writer.close()
        return socket

    async def upward(self, socket, reader, channel):
        """Send to the client what the pod says."""
        prefix = bytes([channel])
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(2**18):
                await socket.send_bytes(prefix + data)

    def cut(self):
        """Cut each port-forward without a word; return how many there were."""
        count = len(self.tunnels)
        for socket in list(self.tunnels):
            with contextlib.suppress(AttributeError):
                socket._req.transport.abort()
        return count


def flag(query, name):
    """Whether a parameter of a request is true."""
    return query.get(name, "").lower() in {"true", "1"}
