"""Rules of ECS for task definitions that botocore's model does not express."""

import json
import re

from .errors import AwsError

#: vCPU units -> MiB that Fargate has for them.
PAIRS = {
    256: [512, 1024, 2048],
    512: list(range(1024, 4096 + 1, 1024)),
    1024: list(range(2048, 8192 + 1, 1024)),
    2048: list(range(4096, 16384 + 1, 1024)),
    4096: list(range(8192, 30720 + 1, 1024)),
    8192: list(range(16384, 61440 + 1, 4096)),
    16384: list(range(32768, 122880 + 1, 8192)),
}
NAME = re.compile(r"[A-Za-z0-9_-]{1,255}")
STOP_TIMEOUT = 120
LARGEST = 64 * 1024
DRIVERS = {"awslogs", "splunk", "awsfirelens"}


def client_error(text):
    return AwsError("ClientException", text)


def check_tags(tags, code="InvalidParameterException"):
    """Refuse tags that ECS and EC2 do not take."""
    if len(tags) > 50:
        raise AwsError(code, f"{len(tags)} tags were given; a resource may have 50 at most.")
    keys = [tag.get("key", tag.get("Key", "")) for tag in tags]
    values = [tag.get("value", tag.get("Value")) or "" for tag in tags]
    if len(set(keys)) < len(keys):
        raise AwsError(code, "Duplicate tag keys found. Please note that Tag keys are unique.")
    for key, value in zip(keys, values, strict=True):
        if not 1 <= len(key) <= 128:
            raise AwsError(code, f"Tag key exceeds the maximum length of 128 characters: '{key}'")
        if len(value) > 256:
            raise AwsError(code, f"Tag value exceeds the maximum length of 256 characters: '{key}'")
        if key.lower().startswith("aws:"):
            raise AwsError(code, f"Tag keys starting with 'aws:' are reserved: '{key}'")
        if not re.fullmatch(r"[\w\s.:/=+\-@]*", key + value):
            raise AwsError(code, f"Some tags contain invalid characters: '{key}' = '{value}'")


def number(text, unit=1024):
    """Return CPU units or MiB from a text such as `256`, `.25 vCPU`, `2 GB`."""
    found = re.fullmatch(r"\s*([0-9.]+)\s*(vcpu|gb)?\s*", str(text or ""), re.IGNORECASE)
    if not found:
        raise client_error(f"Invalid setting for container. '{text}' is no number.")
    return int(float(found[1]) * (unit if found[2] else 1))


def check_pair(cpu, memory):
    """Refuse a size that Fargate does not have."""
    if cpu is None or memory is None:
        which = "cpu" if cpu is None else "memory"
        raise client_error(f"Fargate requires that '{which}' be defined at the task level.")
    units, size = number(cpu), number(memory)
    if size not in PAIRS.get(units, ()):
        raise client_error(
            f"No Fargate configuration exists for given values: {units} CPU, {size} memory. See the Amazon ECS documentation for the valid values."
        )


def check_definition(parameters, account):
    """Refuse a task definition as RegisterTaskDefinition would."""
    if not NAME.fullmatch(parameters["family"]):
        raise client_error(f"Family contains invalid characters: {parameters['family']}")
    if len(json.dumps(parameters)) > LARGEST:
        raise client_error(f"Actual length of the task definition exceeds {LARGEST} bytes.")
    containers = parameters["containerDefinitions"]
    if not containers:
        raise client_error("Container list cannot be empty.")
    if len(containers) > 10:
        raise client_error("A task definition may have 10 containers at most.")
    check_tags(parameters.get("tags") or [])
    for field in ("taskRoleArn", "executionRoleArn"):
        if parameters.get(field):
            account.check_role(parameters[field], "ClientException", "Role is not valid")
    check_names([entry.get("name", "") for entry in containers])
    if not any(entry.get("essential", True) for entry in containers):
        raise client_error("A task definition must have an essential container.")
    fargate = "FARGATE" in (parameters.get("requiresCompatibilities") or ())
    if fargate:
        check_fargate(parameters)
    for entry in containers:
        check_container(entry, parameters, fargate)


def check_names(names):
    for name in names:
        if not NAME.fullmatch(name):
            raise client_error(f"Container.name contains invalid characters: '{name}'")
    if len(set(names)) < len(names):
        raise client_error("Container names must be unique in a task definition.")


def check_fargate(parameters):
    if parameters.get("networkMode") != "awsvpc":
        raise client_error("Fargate only supports network mode 'awsvpc'.")
    check_pair(parameters.get("cpu"), parameters.get("memory"))
    storage = (parameters.get("ephemeralStorage") or {}).get("sizeInGiB", 21)
    if not 21 <= storage <= 200:
        raise client_error("Ephemeral storage must be between 21 and 200 GiB.")
    if parameters.get("placementConstraints"):
        raise client_error("Fargate does not support placement constraints.")


def check_container(entry, parameters, fargate):
    """Refuse one container definition."""
    name = entry["name"]
    if not entry.get("image"):
        raise client_error("Container.image should not be null or empty.")
    if not (parameters.get("memory") or entry.get("memory") or entry.get("memoryReservation")):
        raise client_error(
            f"Invalid setting for container '{name}'. At least one of 'memory' or 'memoryReservation' must be specified."
        )
    if fargate and entry.get("memory", 0) > number(parameters["memory"]):
        raise client_error(f"The memory of container '{name}' is larger than the task's.")
    if fargate and entry.get("cpu", 0) > number(parameters["cpu"]):
        raise client_error(f"The cpu of container '{name}' is larger than the task's.")
    if fargate and entry.get("privileged"):
        raise client_error("Fargate does not support privileged containers.")
    if fargate and entry.get("stopTimeout", 0) > STOP_TIMEOUT:
        raise client_error(f"stopTimeout is {STOP_TIMEOUT} seconds at most with Fargate.")
    if fargate and (entry.get("linuxParameters") or {}).get("sharedMemorySize"):
        raise client_error("Fargate does not support linuxParameters.sharedMemorySize.")
    secrets = [secret["name"] for secret in entry.get("secrets") or ()]
    if fargate and secrets and not parameters.get("executionRoleArn"):
        raise client_error(
            "Fargate requires task definition to have execution role ARN to support secrets."
        )
    doubled = set(secrets) & {one.get("name") for one in entry.get("environment") or ()}
    if doubled:
        raise client_error(
            f"The secret name must be unique and not shared with any new or existing environment variables set on the container, such as '{min(doubled)}'."
        )
    check_logs(entry.get("logConfiguration"), parameters, fargate)


def check_logs(configuration, parameters, fargate):
    if not configuration:
        return
    driver = configuration["logDriver"]
    options = configuration.get("options") or {}
    if fargate and driver not in DRIVERS:
        raise client_error(f"Fargate does not support the log driver {driver}.")
    if driver == "awslogs":
        for option in ("awslogs-group", "awslogs-region"):
            if not options.get(option):
                raise client_error(f"Log driver awslogs requires options: {option}")
        if fargate and not options.get("awslogs-stream-prefix"):
            raise client_error("Log driver awslogs requires options: awslogs-stream-prefix")
        if fargate and not parameters.get("executionRoleArn"):
            raise client_error(
                "Fargate requires task definition to have execution role ARN to support log driver awslogs."
            )
