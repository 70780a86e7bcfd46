"""One word, one meaning: no name of a class stands for two things."""

import ast
from collections import defaultdict
from pathlib import Path

import edbatch

SOURCE = Path(edbatch.__file__).parent
ROLES = {"Settings"}  # every benchmark has Settings, run and tables, and the command line asks each for these


def classes():
    found = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(str(path.relative_to(SOURCE)))
    return found


def test_classes_of_one_name_exist_once():
    twice = {name: places for name, places in classes().items() if len(places) > 1}
    assert all(place.startswith("bench/") for name in ROLES for place in twice.pop(name))
    assert twice == {}


def test_rooms_say_what_they_are_for():
    for folder in [SOURCE, *(path.parent for path in SOURCE.rglob("*/__init__.py"))]:
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
        assert text, f"{folder.name} has no docstring"


def test_no_room_is_crowded():
    for folder in {path.parent for path in SOURCE.rglob("*.py")}:
        files = [path for path in folder.iterdir() if path.suffix in (".py", ".c") and path.name != "__init__.py"]
        assert len(files) <= 15, f"{folder.relative_to(SOURCE)} has {len(files)} files"
