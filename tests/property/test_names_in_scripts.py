"""Any accepted name and value reaches a real shell as one word, and no refused name is rendered."""

import shlex
import subprocess

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scalable.errors import ProviderError
from scalable.model import ComponentSpec, names
from scalable.providers.slurm.render import UNIT, JobTemplate, batch_script

NASTY = "aZ_09.-=;&|$`'\"\\#*?~ \t\n\r\x1b()<>{}[]!%@:/é\u202e"
texts = st.text(st.sampled_from(NASTY), max_size=12) | st.text(max_size=12)
tags = st.from_regex(names.TAG.pattern, fullmatch=True).filter(names.TAG.accepts)
variables = st.from_regex(names.VARIABLE.pattern, fullmatch=True).filter(names.VARIABLE.accepts)
#: No shell keeps a zero byte, and no encoding has surrogates.
values = st.text(st.sampled_from(NASTY) | st.characters(codec="utf-8", exclude_characters="\0"))
#: Variables that change how the shell of the test itself works.
OF_SHELLS = ("BASH", "ENV", "IFS", "LC_", "LANG", "LD_", "OPT", "PATH", "POSIX", "PS", "SLURM")


def shell(script, *options):
    done = subprocess.run(
        ["/bin/sh", *options],
        input=script.encode(),
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


@given(tag=tags, name=variables, value=values)
def test_an_accepted_name_is_one_word_of_the_script(tag, name, value):
    assume(name != "_" and not name.startswith(OF_SHELLS))
    show = shlex.join(["printf", "%s\\0", tag])
    template = JobTemplate(
        f"scalable-c.m-{tag}",
        ComponentSpec(tag),
        {},
        environment={name: value},
        prefix=f"{tag}-",
        command=f'{show} {UNIT} "${name}"',
    )
    script = batch_script(template)
    shell(script, "-n")
    assert shell(script).split("\0") == [tag, f"{tag}-0", value, ""]
    assert shlex.join([tag]) == tag


@given(name=texts)
def test_a_name_that_is_no_variable_is_never_rendered(name):
    assume(not names.VARIABLE.accepts(name))
    template = JobTemplate("n", ComponentSpec("a"), {}, environment={name: "1"})
    with pytest.raises(ProviderError):
        batch_script(template)


@given(value=texts, option=st.sampled_from(["account", "queue", "qos", "constraint"]))
def test_an_option_is_one_directive_or_refused(value, option):
    assume(value)
    template = JobTemplate("n", ComponentSpec("a"), {option: value})
    try:
        script = batch_script(template)
    except ProviderError:
        assert not names.ARGUMENT.accepts(value)
        return
    assert names.ARGUMENT.accepts(value)
    (line,) = [
        line
        for line in script.splitlines()
        if line.startswith("#SBATCH --" + {"queue": "partition"}.get(option, option))
    ]
    (word,) = shlex.split(line.removeprefix("#SBATCH "), comments=True)
    assert word.partition("=")[2] == value


@given(text=texts, rule=st.sampled_from([names.TARGET, names.TAG, names.CLUSTER, names.MANAGER]))
def test_a_name_of_a_place_is_one_part_of_a_path_and_no_option(text, rule):
    if rule.accepts(text):
        assert shlex.quote(text) == text
        assert "/" not in text
        assert not text.startswith(("-", "."))
    else:
        assert rule.fault(text).isprintable()
