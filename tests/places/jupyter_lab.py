"""A JupyterLab of its own over a given home, with the extension as an installation enables it.

A script takes a picture of the sidebar so::

    with JupyterLab(home) as lab, sync_playwright() as library:
        browser = library.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = lab.open(browser)
        page.wait_for_selector(".dask-ClusterListingItem")
        page.locator(CLUSTERS).screenshot(path="clusters.png")

The clusters that it shows are those of ``XDG_STATE_HOME``, in the environment.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What the wheel puts below the prefix of an environment.
INSTALLED = ROOT / "data" / "etc"
SIDEBAR = ".dask-DaskSidebar"
#: The part of it with the clusters, below the buttons of Dask's plots.
CLUSTERS = ".dask-DaskClusterManager"
START_S = 120.0
#: JupyterLab asks nobody elsewhere, and asks the user nothing.
NO_NEWS = '{"fetchNews": "false", "checkForUpdates": false}'


def needed():
    """Return why no JupyterLab can be started here, "" if it can."""
    try:
        import dask_labextension  # noqa: F401
        import ipykernel  # noqa: F401
        import jupyterlab  # noqa: F401
    except ImportError as error:
        return f"a JupyterLab needs the Python package {error.name}"
    return ""


class JupyterLab:
    """A JupyterLab on loopback, in a process of its own.

    Parameters
    ----------
    home
        Directory for everything that it writes; it starts in its folder ``work``.
    base_url
        Path of the server, as behind a hub.
    program
        Module to run: ``jupyter_server`` alone starts faster, and has no page to look at.
    **environment
        Variables for the server and its kernels.
    """

    def __init__(self, home, base_url="/", program="jupyterlab", **environment):
        self.home, self.base_url, self._program = Path(home), base_url, program
        self.token = secrets.token_urlsafe(16)
        self.log = self.home / "jupyter.log"
        self._given = environment
        self.process = None
        self.url = ""

    @property
    def work(self):
        """Directory of the notebooks."""
        return self.home / "work"

    def environment(self):
        """Return the variables of the server."""
        import dask_labextension

        # The prefix where the packages are: that of this environment, or of one that it looks into.
        prefix = Path(dask_labextension.__file__).parents[4]
        return {
            **os.environ,
            "HOME": str(self.home),
            "JUPYTER_RUNTIME_DIR": str(self.home / "runtime"),
            "JUPYTER_CONFIG_DIR": str(self.home / "config"),
            "JUPYTER_DATA_DIR": str(self.home / "data"),
            "JUPYTERLAB_SETTINGS_DIR": str(self.home / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(self.home / "workspaces"),
            "JUPYTERLAB_DIR": str(prefix / "share" / "jupyter" / "lab"),
            "JUPYTER_PATH": str(prefix / "share" / "jupyter"),
            "JUPYTER_CONFIG_PATH": f"{INSTALLED / 'jupyter'}:{prefix / 'etc' / 'jupyter'}",
            "IPYTHONDIR": str(self.home / "ipython"),
            "DASK_CONFIG": str(self.home / "dask"),
            **self._given,
        }

    def __enter__(self):
        self.work.mkdir(parents=True, exist_ok=True)
        dask = self.home / "dask"
        dask.mkdir(parents=True, exist_ok=True)
        for file in (INSTALLED / "dask").iterdir():
            (dask / file.name).write_text(file.read_text())
        command = [sys.executable, "-m", self._program, "--allow-root", "--no-browser"]
        command += ["--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"]
        command += [f"--ServerApp.root_dir={self.work}", "--ServerApp.log_level=DEBUG"]
        command += [f"--ServerApp.base_url={self.base_url}"]
        news = self.home / "settings" / "@jupyterlab" / "apputils-extension"
        news.mkdir(parents=True, exist_ok=True)
        (news / "notification.jupyterlab-settings").write_text(NO_NEWS)
        environment = {**self.environment(), "JUPYTER_TOKEN": self.token}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=self.work, env=environment, stdout=log, stderr=log
            )
        try:
            self.url = self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self):
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            for file in (self.home / "runtime").glob("jpserver-*.json"):
                url = json.loads(file.read_text())["url"]
                try:
                    with urllib.request.urlopen(f"{url}api", timeout=10):
                        return url
                except urllib.error.URLError:
                    pass
            time.sleep(0.2)
        raise AssertionError(f"no JupyterLab within {START_S:g} s: {self.log.read_text()[-3000:]}")

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(20)

    def request(self, path, method="GET", body=None, *, authorized=True, **headers):
        """Return status and text of an answer of the server."""
        if authorized:
            headers["Authorization"] = f"token {self.token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path.lstrip("/"), data=data, headers=headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def open(self, browser, path="lab"):
        """Return a page with the sidebar open, in a context of its own of the browser."""
        context = browser.new_context(viewport={"width": 1400, "height": 1000})
        page = context.new_page()
        page.goto(f"{self.url}{path}?token={self.token}")
        page.wait_for_selector("#jp-main-dock-panel", timeout=90_000)
        page.click('[data-id="dask-dashboard-launcher"]')
        page.wait_for_selector(SIDEBAR, timeout=30_000)
        return page
