"""Execution of a notebook by a real kernel."""

import json
import os
import sys

import pytest


def execute(directory, cells):
    """Execute cells, given by their names, in a directory; return the outputs by name."""
    import nbclient  # these take a second: not where tests are only collected
    import nbformat

    made = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source, id=name) for name, source in cells.items()]
    )
    client = nbclient.NotebookClient(
        made, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(directory)}}
    )
    with pytest.MonkeyPatch.context() as patch:
        kernels = directory / "kernels" / "python3"
        kernels.mkdir(parents=True)
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (kernels / "kernel.json").write_text(
            json.dumps({"argv": command, "display_name": "python3", "language": "python"})
        )
        patch.setenv("JUPYTER_PATH", str(directory))
        patch.setenv("XDG_STATE_HOME", str(directory / "state"))
        patch.setenv("IPYTHONDIR", str(directory / "ipython"))
        for name in [name for name in os.environ if name.startswith("SCALABLE_")]:
            patch.delenv(name)
        client.execute()
    if kept := os.environ.get("KEEP_NOTEBOOK"):
        nbformat.write(made, kept)
    return {cell.id: cell.outputs for cell in made.cells}


def said(outputs, stream="stdout"):
    """Return what a cell has printed."""
    return "".join(o.text for o in outputs if o.output_type == "stream" and o.name == stream)
