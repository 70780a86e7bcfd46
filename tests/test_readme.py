"""The README's first example runs as it stands."""

import pathlib
import re


def test_first_example(capsys):
    text = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0]
    scope: dict = {}
    exec(code, scope)
    assert scope["roots"].shape == (3, 64)
    assert scope["batched"].leaf.weight.grad is not None
    assert "lower bound" in capsys.readouterr().out
