"""The files around the source agree with it and with each other."""

import pathlib
import re
import subprocess
import tomllib

import pytest

import edbatch
from edbatch import torch_insides

ROOT = pathlib.Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def section(heading):
    return CONTRIBUTING.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(heading):
    """The cells of the first columns of a section's table."""
    return [line.split("|")[1].strip() for line in section(heading).splitlines() if line.startswith("|")][2:]


def test_readme_links_to_contributing_in_one_line():
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if "](CONTRIBUTING.md)" in line]
    assert len(lines) == 1


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"])
def test_links_lead_somewhere(name):
    path = ROOT / name
    links = re.findall(r"\]\(([^)#]+)", path.read_text())
    assert all((path.parent / link).exists() for link in links if "://" not in link)


def test_rooms_are_listed_in_the_order_of_imports():
    (contract,) = [c for c in PROJECT["tool"]["importlinter"]["contracts"] if c["name"] == "imports go one way"]
    layers = [set(re.findall(r"`(\w+)(?:/|\.py)`", row)) for row in rows("The rooms")]
    assert layers == [set(layer.split(" | ")) for layer in contract["layers"]]


def test_paths_in_contributing_exist():
    """Also those that a room's line names by themselves."""
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", CONTRIBUTING))
    paths = [*(ROOT / "src").rglob("*"), *(ROOT / "tests").rglob("*")]
    files = [path.relative_to(ROOT).as_posix() + "/" * path.is_dir() for path in paths]
    assert [name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in files)] == []


def test_every_word_is_explained_once():
    words = [word for row in rows("Words") for word in row.split(", ")]
    assert len(words) == len(set(words)) > 40
    assert {"node", "type", "cell", "kernel", "body", "program", "piece", "plan", "row", "machine"} <= set(words)


def test_the_policy_of_contributing_runs():
    (code,) = re.findall(r"```python\n(.*?)```", CONTRIBUTING, flags=re.DOTALL)
    scope = {}
    exec(code, scope)
    assert scope["schedule"].batches == (("a", [0]), ("a", [1]), ("b", [2]))
    batched = edbatch.batch(lambda n: edbatch.cell(lambda x: x * 2)(n), policy=scope["InOrder"]())
    assert batched([1.0, 2.0]).tolist() == [2.0, 4.0]
    assert batched.stats.num_batches == 2


def test_versions_agree():
    (cited,) = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    assert PROJECT["project"]["version"] == edbatch.__version__ == cited


def test_what_is_not_python_is_in_the_package():
    """Also in rooms inside of rooms."""
    package = ROOT / "src" / "edbatch"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["edbatch"]
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    assert packed >= {*package.rglob("*.pyi"), *package.rglob("*.txt"), package / "py.typed"}


def test_the_oldest_torch_is_the_same_everywhere():
    """In the README, in the door to torch, and where the tests run with it."""
    (oldest,) = [d.removeprefix("torch>=") for d in PROJECT["project"]["dependencies"] if d.startswith("torch")]
    assert f"(any torch from {oldest} on)" in (ROOT / "README.md").read_text()
    assert f"torch {oldest}.0, " in torch_insides.__doc__
    command = ["make", "--dry-run", "--always-make", "test-oldest"]
    steps = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"'torch=={oldest}'" in steps


def test_the_licence_is_there():
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert PROJECT["project"]["license"] == "Apache-2.0"
