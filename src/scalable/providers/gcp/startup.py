"""Scripts of a machine: start its container, report the exit code, power off.

They contain no secrets: anyone with read access to the project's instances can read them, and so
can each program on the machine.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

CONTAINER = "scalable"
#: Seconds that a program has after SIGTERM. A spot machine is preempted after 30.
GRACE_S, NOTICE_GRACE_S = 30, 25
#: Prefixes of lines on the serial console: the program's output, and our own.
OUTPUT, NOTE = "scalable| ", "scalable: "
#: Namespace of the guest attributes, and their keys: exit code and last output of the program.
ATTRIBUTES, END, TAIL = "scalable", "end", "tail"
OUT_OF_MEMORY = "out-of-memory"
#: Registries for which the machine's account is used.
REGISTRIES = ("gcr.io", "pkg.dev")

_GPU = """\
note "installing the driver of the GPUs"
cos-extensions install gpu >"$console" 2>&1 || finish 1
mount --bind /var/lib/nvidia /var/lib/nvidia
mount -o remount,exec /var/lib/nvidia
options+=(--volume /var/lib/nvidia/lib64:/usr/local/nvidia/lib64)
options+=(--volume /var/lib/nvidia/bin:/usr/local/nvidia/bin)
for device in /dev/nvidia*; do [ -c "$device" ] && options+=(--device "$device"); done
"""

_LEAVE = """\
  # A machine whose account may not delete it stays, powered off, until somebody lists machines.
  [ "$1" = 0 ] && delete_this_machine && sleep 60
"""

_SCRIPT = """\
#!/bin/bash
# Starts the container of this machine, tells its end, and powers the machine off.
exec </dev/null
console=/dev/ttyS0
[ -w "$console" ] || console=/dev/stdout
export HOME=/var/lib/scalable
mkdir -p "$HOME"
metadata=http://${{GCE_METADATA_HOST:-metadata.google.internal}}/computeMetadata/v1
flavor='Metadata-Flavor: Google'
note() {{ printf '{note}%s\\n' "$1" >"$console"; }}
ask() {{ curl -sS -m 10 --retry 3 -H "$flavor" "$metadata/$1"; }}
tell() {{
  curl -sS -m 10 --retry 3 -X PUT -H "$flavor" --data-binary @- \\
    "$metadata/instance/guest-attributes/{attributes}/$1" >/dev/null 2>&1
}}
delete_this_machine() {{
  local zone project name token
  zone=$(ask instance/zone) project=$(ask project/project-id) name=$(ask instance/name)
  token=$(ask instance/service-accounts/default/token |
    sed -n 's/.*"access_token" *: *"\\([^"]*\\)".*/\\1/p')
  printf 'header = "Authorization: Bearer %s"\\n' "$token" |
    curl -sS -f -m 20 --retry 2 -K - -X DELETE >/dev/null 2>&1 \\
      "https://compute.googleapis.com/compute/v1/projects/$project/zones/${{zone##*/}}/instances/$name"
}}
finish() {{
  note "the program ended with exit code $1 $2"
  docker logs --tail 40 {container} 2>&1 | tail -c 3000 | tell {tail}
  printf '%s' "$1 $2" | tell {end}
{leave}  poweroff
  exit
}}
iptables -w -A INPUT -p tcp -j ACCEPT
image={image}
registry=${{image%%/*}}
case $registry in
  {registries}) docker-credential-gcr configure-docker --registries="$registry" >/dev/null 2>&1 ;;
esac
for pause in 2 5 10 20 40 0; do
  fault=$(docker pull -q "$image" 2>&1) && break
  note "image $image: $fault"
  [ "$pause" = 0 ] && finish 125
  sleep "$pause"
done
# The system of the machine keeps a part of the memory, so that only the container runs out of it.
while read -r key size _; do [ "$key" = MemTotal: ] && total=$size; done </proc/meminfo
memory=$((total - 200000))k
options=(--memory "$memory" --memory-swap "$memory")
{gpus}docker rm -f {container} >/dev/null 2>&1
note "starting the program"
fault=$(docker run -d --name {container} --init --network host --stop-timeout {grace} \\
  --log-driver json-file --log-opt max-size=50m --ulimit nofile=1048576:1048576 \\
  "${{options[@]}}" {environment}"$image" \\
  {command} 2>&1) || {{ code=$?; note "$fault"; finish "$code"; }}
docker logs -f {container} 2>&1 | sed -u 's/^/{output}/' >"$console" &
code=$(docker wait {container})
for _ in 1 2 3 4 5 6 7 8 9 10; do jobs %% >/dev/null 2>&1 || break; sleep 0.2; done
killed=
[ "$(docker inspect -f '{{{{.State.OOMKilled}}}}' {container})" = true ] && killed={out_of_memory}
finish "$code" "$killed"
"""


def startup_script(
    image: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    gpus: int = 0,
    leaves: bool = False,
) -> str:
    """Return the startup script of a machine, without secrets.

    With ``leaves``, a machine whose program has exited with code 0 deletes itself if it may. Others
    stay powered off, so that the exit code is available.
    """
    variables = (f"-e {shlex.quote(f'{key}={text}')} " for key, text in environment.items())
    return _SCRIPT.format(
        note=NOTE,
        output=OUTPUT,
        attributes=ATTRIBUTES,
        end=END,
        tail=TAIL,
        out_of_memory=OUT_OF_MEMORY,
        container=CONTAINER,
        grace=GRACE_S,
        registries="|".join(f"*{name}" for name in REGISTRIES),
        image=shlex.quote(image),
        environment="".join(variables),
        command=shlex.join(command),
        gpus=_GPU if gpus else "",
        leave=_LEAVE if leaves else "",
    )


def shutdown_script() -> str:
    """Return the script that runs when a machine is stopped or preempted."""
    return f"#!/bin/bash\ndocker stop -t {NOTICE_GRACE_S} {CONTAINER}\n"


def program_output(console: str) -> str:
    """Return the program's lines and ours from the output of a serial console."""
    lines = []
    for line in console.splitlines():
        _, mark, text = line.partition(OUTPUT)
        if not mark:
            _, mark, text = line.partition(NOTE)
            text = f"[machine] {text}"
        if mark:
            lines.append(text.rstrip("\r"))
    return "".join(f"{line}\n" for line in lines)


def parse_end(text: str) -> tuple[int | None, bool]:
    """Return the exit code, and whether memory ran out, from the guest attribute ``end``."""
    code, _, killed = text.strip().partition(" ")
    return (int(code) if code.lstrip("-").isdigit() else None), killed.strip() == OUT_OF_MEMORY
