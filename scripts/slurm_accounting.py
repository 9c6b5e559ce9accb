"""Accounting for a test bed: a private database (MariaDB) and slurmdbd.

The database listens on a socket in the test bed's directory alone. It checks no password: nobody
else can enter the directory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PROGRAMS = ("slurmdbd", "mariadbd", "sacct", "sacctmgr")
INSTALL = "apt-get install --no-install-recommends slurmdbd mariadb-server-core"
#: The account that every test bed has, the default of the user who started it.
ACCOUNT = "testbed"
#: Tables of users, without which MariaDB stores no procedures; slurmdbd needs some.
SYSTEM_TABLES = ("mysql_system_tables.sql", "mysql_system_tables_data.sql")
SHARED = Path("/usr/share/mysql")

#: Lines of slurm.conf, without accounting and with it.
NONE = "AccountingStorageType=accounting_storage/none"
STORAGE = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={directory}/run/munge.socket
AccountingStoreFlags=job_comment
AccountingStorageEnforce=associations,limits,qos"""

CONFIGURATION = """\
AuthType=auth/munge
AuthInfo=socket={directory}/run/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc=slurm_accounting
LogFile={directory}/log/slurmdbd.log
PidFile={directory}/run/slurmdbd.pid
"""


def write_configuration(directory: Path, port: int, user: str) -> str:
    """Write slurmdbd.conf beside slurm.conf; return the lines of slurm.conf that lead to it."""
    configuration = directory / "slurmdbd.conf"
    configuration.touch(mode=0o600)
    configuration.write_text(CONFIGURATION.format(directory=directory, port=port, user=user))
    return STORAGE.format(directory=directory, port=port)


def environment(directory: Path) -> dict[str, str]:
    """Return what leads the client library of slurmdbd to the private database."""
    return {"MYSQL_UNIX_PORT": str(_socket(directory))}


def start_database(
    directory: Path, user: str, variables: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Make an empty database and start its server; :func:`is_ready` says when it answers."""
    data = directory / "database"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(mode=0o700)
    tables = "\n".join((SHARED / name).read_text() for name in SYSTEM_TABLES)
    script = f"create database mysql;\nuse mysql;\n{tables}"
    command = [
        "mariadbd",
        "--no-defaults",
        f"--user={user}",
        f"--datadir={data}",
        "--skip-grant-tables",
        "--innodb-log-file-size=4M",
        "--innodb-buffer-pool-size=32M",
        "--innodb-temp-data-file-path=ibtmp1:4M:autoextend",
        "--innodb-flush-log-at-trx-commit=0",
    ]
    with (directory / "log" / "mariadbd.log").open("w") as log:
        subprocess.run(
            [*command, "--bootstrap"], input=script.encode(), env=variables, cwd=directory,
            stdout=log, stderr=log, timeout=60.0, check=True,
        )  # fmt: skip
        return subprocess.Popen(
            [*command, "--skip-networking", f"--socket={_socket(directory)}"],
            env=variables, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip


def is_ready(directory: Path) -> bool:
    """Return whether the database accepts connections."""
    return _socket(directory).exists()


def _socket(directory: Path) -> Path:
    return directory / "run" / "mysql.socket"


def missing_files() -> list[str]:
    """Return which files of MariaDB are missing."""
    return [str(SHARED / name) for name in SYSTEM_TABLES if not os.access(SHARED / name, os.R_OK)]
