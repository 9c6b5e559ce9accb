"""Calls of AWS that tests make without the package: plain boto3 on the test bed."""

import contextlib
import json
import time

import boto3

CLUSTER = "bed"
SOON = 60.0
LOGS = "/bed"
IMAGE = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"


def trust(service):
    """Return the policy that lets a service take on a role."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": service},
        "Action": "sts:AssumeRole",
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def allow(*actions):
    """Return a policy that allows actions on everything."""
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


class Client:
    """The clients of one user, in one region, and what his tasks need."""

    def __init__(self, bed, user="alice", region="us-east-1"):
        self.bed = bed
        self.variables = bed.environment(user, region)
        self.made = {}

    def __getattr__(self, service):
        if service.startswith("_"):
            raise AttributeError(service)
        if service not in self.made:
            self.made[service] = self.client(service)
        return self.made[service]

    def client(self, service, **options):
        """Return a new client."""
        found = self.variables
        return boto3.session.Session().client(
            service,
            endpoint_url=found["AWS_ENDPOINT_URL"],
            region_name=found["AWS_DEFAULT_REGION"],
            aws_access_key_id=found["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=found["AWS_SECRET_ACCESS_KEY"],
            **options,
        )

    def furnish(self):
        """Make a cluster, a role for tasks, a log group."""
        self.ecs.create_cluster(clusterName=CLUSTER, capacityProviders=["FARGATE", "FARGATE_SPOT"])
        self.make_logs()
        self.role = self.make_role("tasks")
        self.subnets = [entry["SubnetId"] for entry in self.ec2.describe_subnets()["Subnets"]]
        return self

    def make_logs(self):
        """Make the log group; another test may have made it."""
        with contextlib.suppress(self.logs.exceptions.ResourceAlreadyExistsException):
            self.logs.create_log_group(logGroupName=LOGS)

    def make_role(self, name, service="ecs-tasks.amazonaws.com"):
        """Make a role for a service, which may write logs; return its ARN."""
        found = self.iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust(service))
        self.iam.attach_role_policy(
            RoleName=name,
            PolicyArn="arn:aws:iam::aws:policy/service-role/AmazonECSTaskExecutionRolePolicy",
        )
        return found["Role"]["Arn"]

    def define(self, family, code, **fields):
        """Register a task definition that runs Python code; return its ARN."""
        options = {
            "awslogs-group": LOGS,
            "awslogs-region": "us-east-1",
            "awslogs-stream-prefix": "t",
        }
        container = {
            "name": "main",
            "image": "image",
            "command": ["/opt/venv/bin/python", "-c", code],
            "logConfiguration": {"logDriver": "awslogs", "options": options},
            **fields.pop("container", {}),
        }
        found = self.ecs.register_task_definition(
            **{
                "family": family,
                "networkMode": "awsvpc",
                "requiresCompatibilities": ["FARGATE"],
                "cpu": "256",
                "memory": "512",
                "executionRoleArn": self.role,
                "taskRoleArn": self.role,
                "containerDefinitions": [container],
                **fields,
            }
        )
        return found["taskDefinition"]["taskDefinitionArn"]

    def order(self, definition, **fields):
        """Return the parameters of RunTask for a definition."""
        network = {"subnets": self.subnets[:2], "assignPublicIp": "ENABLED"}
        if "capacityProviderStrategy" not in fields:
            fields.setdefault("launchType", "FARGATE")
        return {
            "cluster": CLUSTER,
            "taskDefinition": definition,
            "networkConfiguration": {"awsvpcConfiguration": network},
            **fields,
        }

    def furnish_instances(self):
        """Make an instance profile, a log group, and find an image."""
        self.make_logs()
        self.make_role("instances", "ec2.amazonaws.com")
        self.iam.create_instance_profile(InstanceProfileName="instances")
        self.iam.add_role_to_instance_profile(InstanceProfileName="instances", RoleName="instances")
        found = self.ssm.get_parameter(Name=IMAGE)
        self.image = found["Parameter"]["Value"]
        return self

    def launch(self, script, type_="t3.micro", **fields):
        """Launch one instance with user data; return its id."""
        answer = self.ec2.run_instances(
            **{
                "ImageId": self.image,
                "InstanceType": type_,
                "MinCount": 1,
                "MaxCount": 1,
                "UserData": script,
                "IamInstanceProfile": {"Name": "instances"},
                **fields,
            }
        )
        return answer["Instances"][0]["InstanceId"]

    def instance(self, name):
        """Return what DescribeInstances says of an instance."""
        (reservation,) = self.ec2.describe_instances(InstanceIds=[name])["Reservations"]
        return reservation["Instances"][0]

    def becomes(self, name, state):
        """Wait until an instance has a state; return its description."""
        return until(lambda: (i := self.instance(name))["State"]["Name"] == state and i, state)

    def console(self, name, text=""):
        """Wait until the console of an instance has a text; return all of it."""

        def found():
            console = self.bed.output(name).get("console", "")
            return text in console and console

        return until(found, f"{text!r} on the console")

    def run(self, definition, **fields):
        """Run one task; return its ARN."""
        answer = self.ecs.run_task(**self.order(definition, **fields))
        assert answer["failures"] == []
        return answer["tasks"][0]["taskArn"]

    def task(self, arn):
        """Return what DescribeTasks says of a task."""
        found = self.ecs.describe_tasks(cluster=CLUSTER, tasks=[arn], include=["TAGS"])
        return found["tasks"][0]

    def reaches(self, arn, status):
        """Wait until a task has a status; return its description."""
        return until(lambda: (t := self.task(arn))["lastStatus"] == status and t, status)

    def log(self, arn):
        """Return the lines of a task's log."""
        stream = f"t/main/{arn.rpartition('/')[2]}"
        with contextlib.suppress(self.logs.exceptions.ResourceNotFoundException):
            found = self.logs.get_log_events(
                logGroupName=LOGS, logStreamName=stream, startFromHead=True
            )
            return [event["message"] for event in found["events"]]
        return []


def until(condition, what=""):
    """Wait until a condition holds; return its answer."""
    deadline = time.monotonic() + SOON
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited {SOON} s in vain: {what}"
        time.sleep(0.05)
    return answer
