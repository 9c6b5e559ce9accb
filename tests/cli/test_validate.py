"""``scalable validate``."""

import json

import pytest

FAULTY = """\
version: 1
project: {name: climate}
targets:
  local: {provider: local, max_workers: 0}
components:
  model: {cpu: 2}
"""
FAULTY_TEXT = """\
scalable.yaml:4:41: error E_BAD_MAX_WORKERS: max_workers must be a positive integer, not 0 \
[targets.local.max_workers]
"""


def test_a_manifest_without_faults_is_one_line(invoke, project):
    result = invoke("validate")
    assert (result.code, result.err) == (0, "")
    assert result.out == "scalable.yaml is valid for targets local, other, cluster\n"
    chosen = invoke("validate", "--target", "other")
    assert chosen.out == "scalable.yaml is valid for target other\n"
    assert json.loads(invoke("validate", "--format", "json").out) == {
        "version": 1,
        "ok": True,
        "manifest": "scalable.yaml",
        "targets": ["local", "other", "cluster"],
        "errors": [],
        "warnings": [],
    }
    assert invoke("validate", "--format", "quiet") == type(result)(code=0, out="", err="")


def test_every_fault_is_reported_with_its_place(invoke, project):
    (project / "scalable.yaml").write_text(FAULTY)
    result = invoke("validate")
    assert (result.code, result.err) == (2, "")
    lines = result.out.splitlines()
    assert result.out.startswith(FAULTY_TEXT)
    assert any(
        line.startswith("scalable.yaml:6:11: error E_UNKNOWN_COMPONENT_KEY") for line in lines
    )
    assert lines[-1] == "scalable.yaml cannot be used: 2 errors"
    value = json.loads(invoke("validate", "--format", "json").out)
    assert (value["version"], value["ok"], value["warnings"]) == (1, False, [])
    assert [set(error) for error in value["errors"]] == [
        {"code", "path", "message", "hint", "file", "line", "column"}
    ] * 2
    assert value["errors"][0]["code"] == "E_BAD_MAX_WORKERS"
    assert value["errors"][0]["message"] == "max_workers must be a positive integer, not 0"
    assert (value["errors"][1]["path"], value["errors"][1]["line"]) == ("components.model.cpu", 6)


def test_quiet_shows_the_faults_on_standard_error(invoke, project):
    (project / "scalable.yaml").write_text(FAULTY)
    result = invoke("validate", "--format", "quiet")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(FAULTY_TEXT)


def test_faults_of_the_provider_and_the_bounds_are_reported(invoke, project):
    file = project / "scalable.yaml"
    text = file.read_text().replace("max_workers: 3", "max_workers: 1")
    file.write_text(text.replace("cpus: 1\n", "cpus: 1\n    preload_script: none.py\n"))
    result = invoke("validate", "--target", "local")
    assert result.code == 2
    assert "scalable.yaml:7:18: error E_BAD_OPTION: max_workers 1 is less than" in result.out
    assert "hint: the smallest value that works is 3" in result.out
    # Both local targets say so of the component: it is said once.
    assert result.out.count("preload_script needs a separate process") == 1
    assert invoke("validate").out.count("hint: set processes: true on target 'local'") == 1
    # Only the local targets have these faults.
    assert invoke("validate", "--target", "cluster").code == 0
    assert invoke("validate").code == 2


def test_warnings_are_shown_and_are_no_faults(invoke, project):
    file = project / "scalable.yaml"
    file.write_text(file.read_text().replace("memory: 100M", "memory: 900T"))
    result = invoke("validate")
    assert result.code == 0
    assert result.out.count("warning W_LARGER_THAN_MACHINE") == 1
    last = "scalable.yaml is valid for targets local, other, cluster (1 warning)"
    assert result.out.splitlines()[-1] == last
    value = json.loads(invoke("validate", "--format", "json").out)
    assert value["ok"]
    assert [warning["line"] for warning in value["warnings"]] == [19]


def test_an_unknown_target_is_a_fault_that_lists_the_targets(invoke, project):
    result = invoke("validate", "--target", "moon")
    assert result.code == 2
    assert "no target is called 'moon'" in result.out
    assert "local, other, cluster" in result.out


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.touch()])
def test_a_file_that_is_not_a_manifest_is_a_fault(make, invoke, project):
    make(project / "odd.yaml")
    result = invoke("validate", "odd.yaml", "--format", "json")
    value = json.loads(result.out)
    assert (result.code, value["ok"], value["manifest"]) == (2, False, "odd.yaml")
    assert len(value["errors"]) == 1


def test_the_manifest_is_the_argument_then_the_environment(invoke, project, monkeypatch):
    (project / "scalable.yaml").rename(project / "named.yaml")
    assert invoke("validate").code == 2
    monkeypatch.setenv("SCALABLE_MANIFEST", "named.yaml")
    assert invoke("validate").out.startswith("named.yaml is valid")
    monkeypatch.setenv("SCALABLE_MANIFEST", "none.yaml")
    assert invoke("validate", "named.yaml").code == 0


def test_findings_go_to_a_file(invoke, project):
    (project / "scalable.yaml").write_text(FAULTY)
    result = invoke("validate", "--output", "found.json")
    assert (result.code, result.out, result.err) == (2, "", "wrote found.json\n")
    assert len(json.loads((project / "found.json").read_text())["errors"]) == 2


@pytest.mark.parametrize("provider", ["aws", "gcp", "kubernetes"])
def test_a_remote_target_without_image_is_an_error(invoke, project, provider):
    text = f"version: 1\nproject: {{name: p}}\ntargets:\n  far: {{provider: {provider}}}\n"
    (project / "scalable.yaml").write_text(f"{text}components: {{model: {{}}}}\n")
    for verb in ("validate", "plan"):
        result = invoke(verb)
        assert result.code == 2
        said = "scalable.yaml:4:3: error E_MISSING_KEY: the scheduler of a {} target has no image"
        assert said.format(provider) in result.out + result.err


def test_worker_sizes_of_an_aws_target_are_defaults(invoke, project):
    (project / "scalable.yaml").write_text("""\
version: 1
project: {name: p}
targets:
  far: {provider: aws, region: us-east-1, image: site/model, worker_cpu: 4096, worker_mem: 8192}
components:
  model: {}
  small: {cpus: 1, memory: 2G}
""")
    result = invoke("plan", "--format", "json")
    assert result.code == 0
    found = json.loads(result.out)["plan"]["scale_plan"]["resources_by_tag"]
    assert {tag: (own["cpus"], own["memory"]) for tag, own in found.items()} == {
        "model": (4, "8192MiB"),
        "small": (1, "2G"),
    }


WITHOUT_EFFECT = """\
version: 1
project: {name: climate}
targets:
  cluster: {provider: slurm, walltime: 1h}
  cloud: {provider: aws, image: site/model, instance_type: m6i.large}
components:
  model: {mounts: {/data: /data}}
"""


@pytest.mark.parametrize(
    ("target", "texts"),
    [
        (
            "cluster",
            [
                "warning W_NOT_APPLIED: the mounts have no effect: the component has no image",
                "[components.model.mounts]",
            ],
        ),
        (
            "cloud",
            [
                "instance_type has no effect: tasks of Fargate have no instances",
                "[targets.cloud.instance_type]",
            ],
        ),
    ],
)
def test_settings_without_effect_are_warned_of(invoke, project, target, texts):
    (project / "scalable.yaml").write_text(WITHOUT_EFFECT)
    result = invoke("validate", "--target", target)
    assert result.code == 0
    for text in texts:
        assert text in result.out + result.err


@pytest.mark.parametrize(
    ("mounts", "text"),
    [
        ("{data: /data}", "host path 'data' is not absolute"),
        ("{/data: data}", "container path 'data' is not absolute"),
    ],
)
def test_a_mount_that_no_machine_can_make_is_no_valid_mount(invoke, project, mounts, text):
    manifest = WITHOUT_EFFECT.replace("{mounts: {/data: /data}}", f"{{image: x, mounts: {mounts}}}")
    (project / "scalable.yaml").write_text(manifest)
    result = invoke("validate", "--target", "cluster")
    assert result.code == 2
    assert text in result.out + result.err


def test_a_storage_that_workers_do_not_see_is_a_warning(invoke, project):
    manifest = project / "scalable.yaml"
    text = manifest.read_text()

    def warnings(url, target):
        manifest.write_text(
            text.replace("name: climate", f"name: climate\n  default_storage: {url}")
        )
        value = json.loads(invoke("validate", "--target", target, "--format", "json").out)
        assert value["ok"]
        return [(w["line"], w["message"]) for w in value["warnings"] if "storage" in str(w["path"])]

    text = text.replace(
        "  other:\n    provider: local\n", "  other:\n    provider: kubernetes\n    image: x\n"
    )
    assert warnings("results", "local") == warnings("results", "cluster") == []
    assert warnings("memory://x", "local") == []
    ((line, message),) = warnings("results", "other")
    assert (line, message) == (
        4,
        f"file://{project}/results is a directory of this machine, which workers see only through a mount",
    )
    ((_, message),) = warnings("memory://x", "cluster")
    assert message.startswith("memory://x is the memory of one process")
    assert warnings("s3://bucket/x", "other") == []


def test_a_check_names_the_target_that_was_asked(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scalable.yaml").write_text(
        "version: 1\nproject: {name: p}\n"
        "targets: {local: {provider: local}, other: {provider: local}}\n"
        "components: {a: {cpus: 1}}\n"
    )
    result = invoke("validate", "--check")
    assert result.code == 0
    assert "Only local was checked live: to check another one, use --check --target\n" in result.out
    assert "was checked live" not in invoke("validate", "--check", "--target", "other").out
    assert "was checked live" not in invoke("validate").out
    value = json.loads(invoke("validate", "--check", "--format", "json").out)
    assert (value["targets"], value["checked"]) == (["local", "other"], "local")
