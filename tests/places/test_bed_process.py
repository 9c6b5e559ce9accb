"""The processes of test beds end with whoever started them."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")
from bed_process import BedProcess

PLACE = """
import sys
sys.path.insert(0, {tests!r})
from bed_program import serve

class Place:
    def __init__(self, directory):
        self.directory = directory

    async def start(self):
        pass

    async def close(self):
        pass

    async def do_double(self, number):
        return 2 * number

serve(Place, {directory!r})
"""


def start(directory):
    directory.mkdir()
    code = PLACE.format(tests=str(Path(__file__).parents[1]), directory=str(directory))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", code], **pipes)


def test_a_bed_whose_parent_ends_while_it_starts_ends_too(tmp_path):
    with start(tmp_path / "bed") as process:
        process.stdout.close()  # nobody reads that it is ready
        process.stdin.close()
        assert process.wait(60) == 0
    assert not (tmp_path / "bed").exists()


def test_commands_are_answered_and_errors_are_told(tmp_path):
    class Bed(BedProcess):
        name = "bed of this test"
        program = "none"

        @staticmethod
        def unavailable():
            return ""

    bed = Bed()
    bed.directory.rmdir()
    bed.directory = tmp_path / "bed"
    bed.process = start(bed.directory)
    assert bed.process.stdout.readline() == b"ready\n"
    assert bed.ask("double", number=4) == 8
    with pytest.raises(RuntimeError, match="triple of the bed of this test: no such command"):
        bed.ask("triple", number=4)
    with pytest.raises(RuntimeError, match="unexpected keyword"):
        bed.ask("double", count=4)
    bed.stop()
    assert bed.process.returncode == 0


@pytest.mark.parametrize("place", ["kubernetes", "aws", "gcp"])
def test_a_script_names_the_packages_that_are_missing_in_one_line(place):
    script = Path(__file__).parents[2] / "scripts" / f"{place}-testbed"
    # Without the packages of the environment that runs the tests.
    command = [sys.executable, "-I", "-S", str(script)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "aiohttp" in done.stderr
    assert "pip 25.1 or newer" in done.stderr
