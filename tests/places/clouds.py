"""The test beds of clouds, as one interface for tests that hold for each cloud."""

import asyncio
from dataclasses import dataclass
from typing import Any

from scalable.providers.registry import get_provider
from scalable.providers.remote.cloud import CLUSTER, ROLE, TAG, MachineState

IMAGE = "site/scalable:1"


@dataclass
class CloudBed:
    """A cloud on this machine.

    Parameters
    ----------
    name
        Name of the kind of machine.
    provider
        Name of the provider.
    bed
        Test bed.
    target
        Options of a target of the manifest.
    """

    name: str
    provider: str
    bed: Any
    target: str

    def use(self, patch, user="alice"):
        """Set the variables of a user's shell, by pytest's monkeypatch."""
        for name, text in self.bed.environment(user).items():
            patch.setenv(name, text)
        if self.provider == "gcp":
            patch.setenv("GOOGLE_CLOUD_REGION", "us-central1")
            patch.setenv("GOOGLE_AUTH_TRUST_BOUNDARY_ENABLED", "false")

    def manifest(self, components, **options):
        """Return a manifest with the target ``there``."""
        more = "".join(f", {key}: {value}" for key, value in options.items())
        target = f"{{provider: {self.provider}, image: {IMAGE}, {self.target}{more}}}"
        return f"version: 1\nproject: {{name: harvest}}\ntargets:\n  there: {target}\n{components}"

    def machines(self, role="", tag="", cluster=""):
        """Return the living machines of the present user, as the provider sees them."""
        marks = {ROLE: role, TAG: tag, CLUSTER: cluster}

        async def look(cloud):
            own = {key: text for key, text in marks.items() if text}
            owner = await cloud.owner()
            found = await cloud.machines({"scalable-owner": owner, **own})
            return [m for m in found if m.state not in (MachineState.ENDED, MachineState.ENDING)]

        return self.asked(look)

    def files(self):
        """Return the names of all private files of the present user."""

        async def look(cloud):
            return [its.name for its in await cloud.files({"scalable-owner": await cloud.owner()})]

        return self.asked(look)

    # Faults, by the names of each test bed -----------------------------------------------------

    def lose_answers(self):
        """Lose the answers to the next requests of machines, after they were carried out."""
        if self.provider == "gcp":
            self.bed.lose_answers(count=2)
        else:
            self.bed.lose_answer("ecs:RunTask" if "fargate" in self.name else "ec2:CreateFleet", 2)

    def no_capacity(self):
        """Refuse all machines from now on."""
        if self.provider == "gcp":
            self.bed.exhaust()
        else:
            self.bed.no_capacity()

    def clear(self):
        """End all faults."""
        if self.provider == "gcp":
            self.bed.clear_faults()
        else:
            self.bed.clear()

    def deny(self, *, denied=True):
        """Take the right to start machines, or what they need, from alice; or give it back."""
        if self.provider == "gcp":
            self.bed.deny("compute.instances.create", denied=denied)
        else:
            self.bed.deny("alice", "iam:CreateRole", allow=not denied)

    def kill(self, machine):
        """Let a machine end without a notice; the bed knows it by its address."""
        told = self.bed.machines()
        rows = told.items() if isinstance(told, dict) else [(row["id"], row) for row in told]
        (name,) = [name for name, row in rows if row["address"] == machine.address]
        end = self.bed.lose if self.provider == "gcp" else self.bed.kill
        end(name)

    def wrong(self, patch, directory):
        """Give the shell credentials that the cloud does not know."""
        if self.provider == "gcp":
            path = directory / "key.json"
            path.write_text("{}")
            patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        else:
            patch.setenv("AWS_ACCESS_KEY_ID", "AKIAWRONG")

    def asked(self, question):
        """Ask the cloud something, in the way of the provider."""

        async def ask():
            provider = get_provider(self.provider)
            (place,) = provider.places()
            cloud = provider.cloud(place)
            try:
                return await question(cloud)
            finally:
                await cloud.close()

        return asyncio.run(ask())


def fargate(bed):
    return CloudBed("aws-fargate", "aws", bed, "cluster_type: fargate, region: us-east-1")


def ec2(bed):
    return CloudBed("aws-ec2", "aws", bed, "cluster_type: ec2, region: us-east-1")


def gce(bed):
    return CloudBed("gcp", "gcp", bed, "region: us-central1")


#: Kind of machine -> fixture of its test bed, and the function that makes the interface.
CLOUDS = {"aws-fargate": ("aws_bed", fargate), "aws-ec2": ("aws_bed", ec2), "gcp": ("gcp_bed", gce)}
