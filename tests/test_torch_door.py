"""Private names of torch are used in one room only, `torch_insides`. What ruff cannot see of that is found here."""

from __future__ import annotations

import ast
import importlib
import io
import pathlib
import re
import tokenize

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import edbatch
from edbatch.torch_insides.modules import CALL

SOURCE = pathlib.Path(edbatch.__file__).parent
DOOR = SOURCE / "torch_insides"
FILES = sorted(path for path in SOURCE.rglob("*.py") if DOOR not in path.parents and "torch" in path.read_text())
OTHERS = {"_asdict", "_replace", "_fields", "_name_", "_exit"}  # of named tuples, enums and os


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_"


OF_TORCH = {  # the private attributes of objects of torch's that we meet
    name
    for thing in (
        nn.Module(), torch.empty(1), torch.UntypedStorage(), torch.ops.aten.add.Tensor, torch.ops.aten.add,
        TorchDispatchMode, torch.autograd.Function,
    )
    for name in dir(thing)
    if is_private(name)
} | {"_torchdynamo_disable", "_execution_engine", "_current_level", "_should_skip_dynamo"}  # fmt: skip


class Finder(ast.NodeVisitor):
    """Collects uses of private names of torch in one file."""

    def __init__(self, tree: ast.Module):
        self.found: list[tuple[int, str]] = []
        self.of_torch: set[str] = set()  # names that imports have bound to something of torch's
        self.own = {"self", "cls"}
        self.in_class_of_torch = [False]
        self.defined = set(OTHERS)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.defined |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                self.defined |= {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) if type(n.value) is str}
                self.defined |= {n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef)}
                own = [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and _root(n) in self.own]
                self.defined |= {n.attr for n in own}
        self.defined -= OF_TORCH
        self.visit(tree)

    def _complain(self, node: ast.AST, what: str) -> None:
        self.found.append((node.lineno, what))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            parts = alias.name.split(".")
            if parts[0] == "torch":
                self.of_torch.add(alias.asname or "torch")
                if any(map(is_private, parts)):
                    self._complain(node, f"import {alias.name}")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        parts = (node.module or "").split(".")
        is_door = parts[:2] == ["edbatch", "torch_insides"]
        for alias in node.names if parts[0] == "torch" or is_door else ():
            self.of_torch.add(alias.asname or alias.name)
            if any(map(is_private, [*parts, alias.name])):
                self._complain(node, f"from {node.module} import {alias.name}")

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.in_class_of_torch.append(any(_root(base) in self.of_torch for base in node.bases))
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and self.in_class_of_torch[-1] and method.name in OF_TORCH:
                self._complain(method, f"def {method.name} in a class of torch's")
        self.generic_visit(node)
        self.in_class_of_torch.pop()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        root, text = _root(node), ast.unparse(node)
        if is_private(node.attr) and not re.search(r"\b(aten|prim)\._\w+$", text):
            if root in self.own and text.count(".") == 1:
                is_wrong = self.in_class_of_torch[-1] and node.attr in OF_TORCH
            else:
                is_wrong = root in self.of_torch or node.attr not in self.defined
            if is_wrong:
                self._complain(node, text)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Names as strings, of getattr or in a table; and paths of libraries, symbols, modules and files."""
        value = node.value
        if not isinstance(value, str) or len(value) > 80:
            return
        if value in OF_TORCH or re.search(r"torch[./]_[a-z]|\blibtorch|\blibc10|^_ZN|^(cblas|mkl)_", value):
            self._complain(node, repr(value))


def _root(node: ast.AST) -> str | None:
    """The name with which a chain of attributes begins."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def private_uses(source: str) -> list[tuple[int, str]]:
    return Finder(ast.parse(source)).found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_private_name_of_torch_outside_the_door(path):
    assert private_uses(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "import torch.utils._pytree as pytree",
        "from torch.utils import _pytree as pytree",
        "from torch._ops import OpOverload",
        "from torch.nn.modules.batchnorm import _BatchNorm",
        "import torch\ntorch._C._set_grad_enabled(False)",
        "import torch\nx = torch._softmax",
        "import torch\ntorch.autograd.Variable._execution_engine.run_backward()",
        "from torch import nn\nisinstance(1, nn.modules.batchnorm._BatchNorm)",
        "from torch.autograd import forward_ad\nforward_ad._current_level",
        "def version(tensor):\n    return tensor._version",
        "def number(tensor):\n    return tensor.untyped_storage()._cdata",
        "def same(function):\n    return function._something_new",
        "def schema(op):\n    return getattr(op, '_schema', None)",
        "TABLES = ['_parameters', '_buffers']",
        "class Watch:\n    def look(self, module):\n        self._modules = module._modules",
        "from torch import nn\nclass Model(nn.Module):\n    def look(self):\n        return self._parameters",
        "from edbatch.torch_insides.modes import TorchDispatchMode\n"
        "class Mode(TorchDispatchMode):\n    @classmethod\n    def _should_skip_dynamo(cls): ...",
        "LIBRARY = 'libtorch_cpu.so'",
        "NAME = 'cblas_sgemm_batch'",
        "LOG = 'torch._subclasses.fake_tensor'",
    ],
)
def test_private_names_are_found(source):
    assert len(private_uses(source)) >= 1


@pytest.mark.parametrize(
    "source",
    [
        "import torch\naten = torch.ops.aten\nx = [aten._softmax.default, torch.ops.aten._to_copy.default]",
        "from torch import nn\nclass Model(nn.Module):\n    def __init__(self):\n        self._own = self.training",
        "class Watch:\n    def __init__(self, other):\n        self._modules, self._x = [], other._x",
        "def row(pair):\n    return pair._replace(a=1)._asdict()",
        "from edbatch.torch_insides.tensors import version_of\nversion_of(1)",
        "import os, torch\nFOLDER = os.path.dirname(torch.__file__)",
    ],
)
def test_what_is_public_or_ours_is_not_taken_for_private(source):
    assert private_uses(source) == []


def test_parts_in_c_name_nothing_of_torch_that_the_door_does_not_know():
    names = {name for path in SOURCE.rglob("*.c") for name in re.findall(r'"(_[a-z]\w*)"', path.read_text())}
    assert {name for name in names if not name.endswith("__")} & OF_TORCH == {CALL}


def _lines_with_a_reason(path: pathlib.Path) -> set[int]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    comments = [t for t in tokens if t.type == tokenize.COMMENT]
    return {t.start[0] for t in comments if not re.fullmatch(r"# type: ignore\S*", t.string)}


@pytest.mark.parametrize("path", sorted(DOOR.glob("*.py")), ids=lambda p: p.stem)
def test_every_name_of_the_door_says_what_it_is_for(path):
    """By a docstring, or a comment in its line or the line before."""
    said, silent = _lines_with_a_reason(path), []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            silent += [] if ast.get_docstring(node) else [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            is_public = not is_private(target) and target not in ("__all__", "T")
            silent += [target] if is_public and not said & {node.lineno - 1, node.lineno, node.end_lineno} else []
        elif isinstance(node, ast.ImportFrom) and any(map(is_private, node.module.split("."))):
            silent += [a.name for a in node.names if not {a.lineno, node.lineno} & said]
    assert silent == []


@pytest.mark.parametrize("path", sorted(DOOR.glob("[!_]*.py")), ids=lambda p: p.stem)
def test_every_name_of_the_door_is_used_and_tested(path):
    module = importlib.import_module(f"edbatch.torch_insides.{path.stem}")
    tree = ast.parse(path.read_text())
    made = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            made += [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
    made += getattr(module, "__all__", [])
    tests = "".join(p.read_text() for p in (pathlib.Path(__file__).parent / "torch_insides").glob("test_*.py"))
    source = "".join(p.read_text() for p in (*FILES, path))
    public = {name for name in made if not is_private(name) and name not in ("__all__", "T")}
    assert [n for n in public if len(re.findall(rf"\b{n}\b", source)) < 2] == []
    assert [n for n in public if not re.search(rf"\b{n}\b", tests)] == []
