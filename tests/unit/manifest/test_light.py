import subprocess
import sys


def test_the_room_loads_no_engine():
    code = (
        "import sys, scalable.manifest, scalable.manifest.fields\n"
        "heavy = {'dask', 'distributed', 'bokeh', 'pandas', 'jsonschema', 'tornado'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
