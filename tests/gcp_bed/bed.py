"""The test bed as tests hold it: a process that runs it, and commands to it."""

from pathlib import Path

from bed_process import BedProcess
from kubernetes_bed.container import unavailable

from .identities import PROJECT, email_of


class GcpBed(BedProcess):
    """A Google Cloud on this machine, in a process of its own.

    It ends with the process that made it, whatever way that ends, and so do all its machines.
    """

    name = "Google Cloud test bed"
    program = "gcp_bed.service"
    unavailable = staticmethod(unavailable)
    project = PROJECT

    def started(self):
        """Read where it listens."""
        self.endpoint = (self.directory / "endpoint").read_text()

    def environment(self, user="alice"):
        """Return the variables of a user's shell; users: alice, bob, viewer, nobody, stranger.

        The key of `stranger` is not valid.
        """
        return {
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.key(user)),
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "SCALABLE_GCP_ENDPOINT": self.endpoint,
        }

    def key(self, user="alice"):
        """Return the path of the key of a user's service account."""
        return Path(self.ask("key", user=user))

    @staticmethod
    def email(user="alice"):
        """Return the e-mail address of a user's service account."""
        return email_of(user)

    # What there is --------------------------------------------------------------------------------

    @property
    def calls(self):
        """How often each method was called, such as `compute.instances.insert`."""
        return self.ask("calls")

    def reset_calls(self):
        """Return how often each method was called, and count from 0 again."""
        return self.ask("calls", reset=True)

    def machines(self):
        """Return name -> zone, type, status, spot, address, labels, pids of each instance."""
        return self.ask("machines")

    def things(self):
        """Return descriptions of the instances, secrets and rules that users have made."""
        return self.ask("things")

    def console(self, name):
        """Return the output of a machine's serial port."""
        return self.ask("console", name=name)

    def set(self, **settings):
        """Change settings (seconds, see SETTINGS in service.py); return what they were."""
        return self.ask("set", **settings)

    # Troubles -------------------------------------------------------------------------------------

    def preempt(self, name):
        """Take a machine back: a notice now, its end `notice` seconds later."""
        self.ask("preempt", name=name)

    def kill(self, name):
        """Kill what runs on a machine; the machine goes on."""
        self.ask("kill", name=name)

    def lose(self, name):
        """Let a machine end at once, without a notice."""
        self.ask("lose", name=name)

    def throttle(self, method="*", every=3, status=403):
        """Refuse every n-th call of methods that match: 403 rateLimitExceeded, or 429; 0 ends it."""
        self.ask("throttle", method=method, every=every, status=status)

    def break_calls(self, method="*", count=1, status=503):
        """Answer so many calls with an error before anything is done."""
        self.ask("break_calls", method=method, count=count, status=status)

    def lose_answers(self, method="compute.instances.insert", count=1):
        """Cut the connection of so many calls after the work was done."""
        self.ask("lose_answers", method=method, count=count)

    def exhaust(self, zone="*", machine_type="*", code="ZONE_RESOURCE_POOL_EXHAUSTED"):
        """Let new machines fail for want of capacity; code "" ends it.

        The other code is `ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS`.
        """
        self.ask("exhaust", zone=zone, machine_type=machine_type, code=code)

    def without_type(self, zone="*", machine_type="*", missing=True):
        """Let a zone not have a machine type."""
        self.ask("without_type", zone=zone, machine_type=machine_type, missing=missing)

    def quota(self, metric, limit, region="us-central1"):
        """Set the limit of a region; return what it was."""
        return self.ask("quota", metric=metric, limit=limit, region=region)

    def never_boot(self, pattern="*", count=1):
        """Let so many of the next machines whose names match never run anything."""
        self.ask("never_boot", pattern=pattern, count=count)

    def without_image(self, pattern):
        """Let images that match not be in their registry, for machines that start from now on."""
        self.ask("without_image", pattern=pattern)

    def kill_at(self, pid, call):
        """Kill a process, by SIGKILL, once the n-th call from now on has been carried out."""
        self.ask("kill_at", pid=pid, call=call)

    def disable(self, service="secretmanager", disabled=True):
        """Let a service be switched off in the project."""
        self.ask("disable", service=service, disabled=disabled)

    def deny(self, permission, user="alice", denied=True):
        """Take a permission, such as `compute.instances.create`, from a user."""
        self.ask("deny", user=user, permission=permission, denied=denied)

    def expire_tokens(self):
        """Let all access tokens be invalid; new ones can be had at once."""
        self.ask("expire_tokens")

    def clear_faults(self):
        """End all faults, and set settings and quotas back."""
        self.ask("clear_faults")

    def clear(self):
        """End and forget all instances, secrets, networks and rules."""
        self.ask("clear")
