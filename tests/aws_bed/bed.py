"""The test bed as tests hold it: a process that runs the account, and commands to it."""

import json
import os

from bed_process import BedProcess
from kubernetes_bed.container import unavailable

from .identities import REGION, USERS


class AwsBed(BedProcess):
    """An AWS account on this machine, in a process of its own.

    It ends with the process that made it, whatever way that ends, and so do all its machines.
    """

    name = "AWS test bed"
    program = "aws_bed.account"
    unavailable = staticmethod(unavailable)

    def variables(self):
        """Return the environment of the process, without that of AWS's libraries."""
        return {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}

    def started(self):
        """Read where it listens and the keys of its users."""
        told = json.loads((self.directory / "account.json").read_text())
        self.endpoint = told["endpoint"]
        self.secrets = told["secrets"]
        (self.directory / "empty").touch()

    def environment(self, user="alice", region=REGION):
        """Return the variables that a shell of a user has."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": USERS[user],
            "AWS_SECRET_ACCESS_KEY": self.secrets[user],
            "AWS_DEFAULT_REGION": region,
            **self.no_files(),
        }

    def no_files(self):
        """Return the variables that keep AWS's libraries from the files of the user."""
        empty = str(self.directory / "empty")
        return {
            "AWS_CONFIG_FILE": empty,
            "AWS_SHARED_CREDENTIALS_FILE": empty,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def session(self, user="alice", seconds=3600.0):
        """Return temporary credentials of a user, valid for some seconds, as variables."""
        found = self.ask("session", user=user, seconds=seconds)
        return {
            **self.environment(user),
            "AWS_ACCESS_KEY_ID": found["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": found["SecretAccessKey"],
            "AWS_SESSION_TOKEN": found["Token"],
        }

    # What happened --------------------------------------------------------------------------------

    def calls(self, reset=False):
        """Return how often each `service:Operation` was called."""
        return self.ask("calls", reset=reset)

    def things(self):
        """Return descriptions of all that a user of this package can have made, in all regions.

        Log groups are left out: they stay, with the output of clusters that have ended.
        """
        return self.ask("things")

    def machines(self):
        """Return all machines that are not ended: id, kind, state, address, pids."""
        return self.ask("machines")

    def output(self, identity):
        """Return the output of each container of a machine."""
        return self.ask("output", identity=identity)

    def reaches(self, source, target, port):
        """Whether security groups let a machine connect to a port of another.

        The source None is a machine outside: the target needs a public address.
        """
        return self.ask("reaches", source=source, target=target, port=port)

    def connections(self):
        """Return the TCP connections to machines: source (None: from outside), target, port, and
        whether security groups and public addresses let them through, as `allowed`.
        """
        return self.ask("connections")

    # Faults ---------------------------------------------------------------------------------------

    def throttle(self, operations="*", every=3, times=None):
        """Answer every n-th call of operations (a pattern such as `ecs:*`) with throttling."""
        return self.ask("fault", kind="throttle", operations=operations, every=every, times=times)

    def fail(self, operations, code, message="asked for by a test", status=400, times=None):
        """Answer calls with an error; return the number of the fault."""
        fields = {"code": code, "message": message, "status": status}
        return self.ask("fault", kind="error", operations=operations, times=times, **fields)

    def lose_answer(self, operations, times=1):
        """Cut the connection after calls were carried out."""
        return self.ask("fault", kind="lose", operations=operations, times=times)

    def kill_at(self, pid, call, operations="*"):
        """Kill a process, by SIGKILL, once the n-th call from now on has been carried out."""
        return self.ask("fault", kind="kill", operations=operations, times=1, every=call, pid=pid)

    def no_capacity(self, operations="*", times=None, **fields):
        """Refuse machines that match the patterns `zone`, `type`, `provider`.

        `provider` is FARGATE, FARGATE_SPOT, spot or on-demand; `reason` and `code` are those of the
        answer, such as `RESOURCE:MEMORY` of ECS and `Unsupported` of EC2.
        """
        return self.ask("fault", kind="capacity", operations=operations, times=times, **fields)

    def startup(self, pattern, times=None, **fields):
        """Let machines be slow (`delay`), stay down (`never`) or fail to start (`error`).

        The pattern is `ecs:FAMILY` of tasks and `ec2:TYPE` of instances. With `hollow` tasks wait
        in place of running their command, to measure calls with many of them.
        """
        return self.ask("fault", kind="startup", operations=pattern, times=times, **fields)

    def clear(self, number=None):
        """End one fault, or all."""
        self.ask("clear", number=number)

    def deny(self, user, pattern, allow=False):
        """Take from a user the right to call operations, or give it back with `allow`."""
        self.ask("deny", user=user, pattern=pattern, allow=allow)

    def settings(self, **values):
        """Set seconds: `delay` of each step of a start, `validity` of new credentials, `eventual`
        until calls find a new machine and services know a new role.
        """
        self.ask("settings", **values)

    def interrupt(self, identity, notice_s=None):
        """Take back a machine of spot capacity, with the notice of its kind or a shorter one."""
        self.ask("interrupt", identity=identity, notice_s=notice_s)

    def kill(self, identity):
        """Kill the processes of a machine."""
        self.ask("kill", identity=identity)
