"""The first process of a machine: its console, its startup script, its shutdown.

`python machine_init.py` runs in the machine's own process namespace. Its standard output is the
machine's serial port. SIGTERM is ACPI's power button; `poweroff` sends SIGPWR. The environment has
GCP_BED_RUN, a directory with `startup-script` and `shutdown-script`, if there are such.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

RUN = Path(os.environ["GCP_BED_RUN"])
CONSOLES = ("/dev/ttyS0", "/dev/console")
started = time.monotonic()


class Console:
    """Writes what programs say to the serial port, line by line."""

    def __init__(self):
        self.sources = {}

    def say(self, text, program="systemd[1]"):
        stamp = time.strftime("%b %d %H:%M:%S", time.gmtime())
        line = f"{stamp} {socket.gethostname()} {program}: {text}\n"
        os.write(1, line.encode(errors="replace"))

    def add(self, descriptor, program, prefix=""):
        self.sources[descriptor] = [b"", program, prefix]

    def read(self, ready):
        """Copy what these sources have; remove those at their end."""
        for descriptor in ready:
            entry = self.sources.get(descriptor)
            if entry is None:
                continue
            try:
                data = os.read(descriptor, 65536)
            except OSError:
                data = b""
            *lines, entry[0] = (entry[0] + data).split(b"\n")
            if not data:
                lines, entry[0] = [*lines, *filter(None, [entry[0]])], b""
            for line in lines:
                text = line.decode(errors="replace").rstrip("\r")
                if entry[1]:
                    self.say(entry[2] + text, entry[1])
                else:
                    os.write(1, f"{text}\n".encode())
            if not data:
                del self.sources[descriptor]
                os.close(descriptor)


class Init:
    """Runs the machine until it is shut down."""

    def __init__(self):
        self.console = Console()
        self.scripts = {}
        self.ending = None
        self.wake, self.bell = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self.bell, False)

    def run(self):
        signal.set_wakeup_fd(self.bell, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self.shut_down)
        signal.signal(signal.SIGPWR, self.shut_down)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for path in CONSOLES:
            self.console.add(os.open(path, os.O_RDWR | os.O_NONBLOCK), "")
        self.console.say(f"Booting Container-Optimized OS on {socket.gethostname()}")
        self.start_script("startup-script")
        while True:
            self.step(None)
            if self.ending is not None:
                self.end()
                return

    def step(self, timeout):
        """Copy output until there is none for a moment or a signal comes; reap what has ended."""
        ready, _, _ = select.select([self.wake, *self.console.sources], [], [], timeout)
        if self.wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 4096)
        self.console.read(ready)
        self.reap()

    def flush(self):
        """Copy the output that is there now."""
        for _ in range(50):
            ready, _, _ = select.select(list(self.console.sources), [], [], 0)
            if not ready:
                return
            self.console.read(ready)

    def reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self.scripts:
                name = self.scripts.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                self.flush()  # what it wrote comes before the line about its end
                runner = f"google_metadata_script_runner[{pid}]"
                self.console.say(f"{name} exit status {code}", runner)
                kind = name.partition("-")[0]
                self.console.say(f"Finished running {kind} scripts.", runner)

    def start_script(self, name):
        path = RUN / name
        if not path.exists():
            self.console.say(
                f"No {name.replace('-', ' ')}s to run.", "google_metadata_script_runner"
            )
            return
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGPWR, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            os.close(reading)
            environment = {k: v for k, v in os.environ.items() if k != "GCP_BED_RUN"}
            os.execvpe("/bin/bash", ["/bin/bash", "-c", str(path)], environment)
        os.close(writing)
        self.scripts[pid] = name
        self.console.add(reading, f"google_metadata_script_runner[{pid}]", f"{name}: ")

    # Shutdown -------------------------------------------------------------------------------------

    def shut_down(self, number, _frame):
        if self.ending is None:
            self.ending = number

    def processes(self):
        """Return the processes of the machine itself: no first process of a container."""
        own = os.stat("/proc/self/ns/pid").st_ino
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in {1, *self.scripts_of_shutdown()}:
                try:
                    inside = os.stat(f"/proc/{name}/ns/pid").st_ino
                    command = Path(f"/proc/{name}/comm").read_text().strip()
                    state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
                except OSError:
                    continue
                if inside == own and command not in {"unshare", "setpriv"} and state != "Z":
                    found.append(int(name))
        return found

    def scripts_of_shutdown(self):
        return [pid for pid, name in self.scripts.items() if name == "shutdown-script"]

    def end(self):
        """Send SIGTERM to all processes, run the shutdown script, wait for their ends."""
        cause = (
            "Power key pressed." if self.ending == signal.SIGTERM else "System is powering down."
        )
        self.console.say(cause, "systemd-logind")
        asked = set(self.processes())
        self.start_script("shutdown-script")
        for pid in asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        while True:  # the test bed ends it when its time is over
            self.step(0.05)
            if not self.scripts_of_shutdown() and not asked & set(self.processes()):
                break
        self.flush()
        self.console.say("Reached target Power-Off.")
        sys.stdout.flush()


if __name__ == "__main__":
    Init().run()
