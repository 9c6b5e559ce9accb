"""The log driver `awslogs`: lines of a container's output become events of CloudWatch."""

import asyncio
import time

#: Seconds between two looks at a container's output.
PERIOD = 0.2
#: Bytes of one event and of one read at most.
LONGEST = 256 * 1024
MOST = 2**20


class LogStream:
    """Follows the output of one container and writes it into moto's CloudWatch."""

    def __init__(self, backend, lock, group, stream, path):
        self.backend = backend
        self.lock = lock
        self.group = group
        self.stream = stream
        self.path = path
        self.position = 0
        self.rest = b""

    def open(self, create_group=False):
        """Make the stream; raise LookupError if its group does not exist."""
        with self.lock:
            if create_group:
                self.backend.ensure_log_group(self.group)
            if self.group not in self.backend.groups:
                raise LookupError(f"The specified log group does not exist: {self.group}")
            self.backend.ensure_log_stream(self.group, self.stream)

    async def follow(self):
        """Copy until cancelled."""
        while True:
            await asyncio.sleep(PERIOD)
            self.copy()

    def copy(self, last=False):
        """Write what is new; with `last`, a line without its end too."""
        if not self.path.exists():
            return
        while True:
            with self.path.open("rb") as file:
                file.seek(self.position)
                data = file.read(MOST)
            self.position += len(data)
            *lines, self.rest = (self.rest + data).split(b"\n")
            if last and not data and self.rest:
                lines, self.rest = [self.rest], b""
            self.write(lines)
            if not data:
                return

    def write(self, lines):
        moment = int(time.time() * 1000)
        events = [
            {"timestamp": moment, "message": line.decode(errors="replace")[:LONGEST]}
            for line in lines
            if line
        ]
        if events:
            with self.lock:
                if self.group in self.backend.groups:
                    self.backend.ensure_log_stream(self.group, self.stream)
                    self.backend.put_log_events(self.group, self.stream, events)
