"""Gives a container its own file system, then runs its command; runs in new namespaces.

`python pod_root.py PLAN` is the first process of a mount, PID and UTS namespace that `unshare`
made. The plan (a JSON file) says which paths of this machine the container sees:

- `root`: an empty directory that becomes the new `/`;
- `mounts`: path in the container -> {"source": path on this machine, "read_only": bool};
  every other path shows what this machine has there;
- `hostname`, `environment`, `directory`, `command`.
"""

import ctypes
import json
import os
import socket
import sys

MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
MS_RELATIME = 1 << 21
MNT_DETACH = 2
libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind=None, flags=0, data=None):
    texts = [text.encode() if text else None for text in (source, target, kind)]
    if libc.mount(*texts, ctypes.c_ulong(flags), data.encode() if data else None):
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


def bind(source, target):
    """Show a file or a directory of this machine at another place."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT, 0o644))
    mount(source, target, None, MS_BIND | MS_REC)


def kept(path):
    """Return the flags of a mount that a user who is not root may not take away."""
    flags = os.statvfs(path).f_flag
    same = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME
    return flags & same | (MS_RELATIME if flags & os.ST_RELATIME else 0)


def build(root, path, mounts, ancestors):
    """Show what is in the directory `path`, with the mounts of the plan in their places."""
    os.makedirs(root + path, exist_ok=True)
    names = set()
    if os.path.isdir(path):
        names.update(os.listdir(path))
    for entry in [*mounts, *ancestors]:
        if entry != "/" and os.path.dirname(entry) == path:
            names.add(os.path.basename(entry))
    for name in sorted(names):
        child = os.path.join(path, name)
        target = root + child
        if child in mounts:
            continue
        if child in ancestors:
            build(root, child, mounts, ancestors)
        elif os.path.islink(child):
            os.symlink(os.readlink(child), target)
        elif os.path.exists(child) and child != "/proc":
            try:
                bind(child, target)
            except OSError as error:
                print(f"pod_root: {error}", file=sys.stderr)


def place(root, mounts):
    """Put the mounts of the plan, the outer ones first."""
    for path in sorted(mounts):
        wanted = mounts[path]
        bind(wanted["source"], root + path)
        if wanted.get("read_only"):
            mount(None, root + path, None, MS_BIND | MS_REMOUNT | MS_RDONLY | kept(root + path))


def enter(plan):
    """Make the new root and move into it."""
    root, mounts = plan["root"], plan["mounts"]
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", 0, "size=16m,mode=755")
    ancestors = {"/"}
    for path in mounts:
        above = os.path.dirname(path)
        while above != "/" and not any(
            above == other or above.startswith(other + "/") for other in mounts
        ):
            ancestors.add(above)
            above = os.path.dirname(above)
    build(root, "/", mounts, ancestors)
    place(root, mounts)
    os.makedirs(root + "/proc", exist_ok=True)
    mount("proc", root + "/proc", "proc")
    old = root + "/.old"
    os.makedirs(old)
    if libc.pivot_root(root.encode(), old.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"pivot_root: {os.strerror(number)}")
    os.chdir("/")
    if libc.umount2(b"/.old", MNT_DETACH):
        raise OSError(ctypes.get_errno(), "umount of the old root")
    os.rmdir("/.old")


def main():
    with open(sys.argv[1]) as file:
        plan = json.load(file)
    try:
        enter(plan)
        socket.sethostname(plan["hostname"][:63])
        os.makedirs(plan["directory"], exist_ok=True)
        os.chdir(plan["directory"])
        os.execvpe(plan["command"][0], plan["command"], plan["environment"])
    except OSError as error:
        print(f"failed to create the container: {error}", file=sys.stderr, flush=True)
        os._exit(128)


if __name__ == "__main__":
    main()
