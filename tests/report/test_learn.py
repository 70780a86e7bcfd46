"""`edbatch learn` and its pictures: what is written, that the same seed writes the same, and what failures leave."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from rich.console import Console

import edbatch
from edbatch.report import learn, pictures, words
from edbatch.report.learn import FILES, LearnSettings
from edbatch.report.output import OutputError
from edbatch.scheduling.fsm import MARKS, Fsm
from edbatch.scheduling.learning_record import Evaluation, Training
from edbatch.workloads import WorkloadError

SMALL = LearnSettings("tree-lstm-2type", graphs=2, held_out=1, unseen=2, batch_size=4, seed=3, episodes=60, hidden=4)
NOTHING = edbatch.policies.QLearning(episodes=0, demonstrate=False)
POLICIES = ("depth", "agenda", "agenda-remaining", "ratio-greedy", "ratio-greedy-backward", "bound-greedy")


@pytest.fixture(autouse=True)
def generated_data(monkeypatch):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)


def run(folder: Path, **changes) -> str:
    """What it prints; the files are in the folder."""
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        learn.run(replace(SMALL, output=folder, **changes), console)
        return console.export_text()


def row(printed: str, policy: str) -> list[str]:
    """The numbers of a policy's row in the table."""
    (line,) = [line for line in printed.splitlines() if re.match(rf"│ {policy} +│", line)]
    return [cell.strip() for cell in line.split("│")[2:-1]]


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def machine(num_states: int = 1, encoding: str = "base", types: tuple = ("a",), ready: int = 1) -> Fsm:
    """A made-up machine: every state has the first types ready and launches the first."""
    symbols = np.tile(MARKS * np.arange(ready), num_states)
    visits = np.arange(num_states, 0, -1)
    curve = Evaluation(0, 4, 0, 0), Evaluation(0, 3, 0, num_states)
    training = Training(num_graphs=1, lower_bound=2, chosen=1, curve=curve)
    starts = ready * np.arange(num_states + 1)
    return Fsm(types, encoding, symbols, starts, np.zeros(num_states, np.int64), visits, 0.5, training)


def text_in(picture: dict[str, bytes]) -> list[str]:
    """The texts of an SVG: matplotlib draws glyphs and says in comments what they spell."""
    return re.findall(r"<!-- (.*?) -->", picture["svg"].decode())


def test_writes_files_that_can_be_read(tmp_path):
    folder = tmp_path / "made" / "on the way"
    printed = run(folder)
    assert set(files_in(folder)) == set(FILES)
    policy = edbatch.load_policy(folder / "policy.json")
    assert policy.encoding == "signs"
    assert policy.training.seed == 3
    assert policy.training.num_graphs == 2
    for name in ("curve", "machine"):
        assert ElementTree.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    svg = (folder / "machine.svg").read_text()
    assert all(f"<!-- {words.shortened(name)}" in svg for name in policy.types)
    assert f"edbatch run tree-lstm-2type --policy '{folder}/policy.json' --hidden 4" in printed
    assert f"edbatch policy show '{folder}/policy.json'" in printed


def test_table_has_the_sums_of_every_policy(tmp_path):
    printed = run(tmp_path)
    groups = list(learn.mini_batches(SMALL).values())
    assert list(map(len, groups)) == [2, 1, 2]
    bounds = [sum(graph.lower_bound() for graph in group) for group in groups]
    fsm = edbatch.load_policy(tmp_path / "policy.json")
    rule = edbatch.learn_policy(groups[0], held_out=groups[1], settings=NOTHING)
    policies = {name: name for name in POLICIES}
    policies |= {
        "bound-greedy, beam 4": edbatch.policies.BoundGreedy(beam=4),
        "rule alone": rule,
        "fsm": fsm,
        "learned": edbatch.policies.Learned(fsm),
    }
    assert rule.num_states == 0
    assert rule.crowd == fsm.crowd
    assert row(printed, "lower bound") == [f"{bound} 1.00×" for bound in bounds]
    for label, policy in policies.items():
        sums = [sum(edbatch.schedule(graph, policy).num_batches for graph in group) for group in groups]
        expected = [f"{number} {number / bound:.2f}×" for number, bound in zip(sums, bounds, strict=True)]
        assert row(printed, label) == expected
    unseen = [fsm.run(graph) for graph in groups[2]]
    share = sum(s.unseen_states for s in unseen) / sum(s.num_batches for s in unseen)
    assert row(printed, "unseen states")[2] == f"{share:.1%}"


def test_same_seed_writes_the_same_in_another_process(tmp_path):
    run(tmp_path / "here")
    program = f"""
import sys
from pathlib import Path
from edbatch.report.learn import LearnSettings, run
settings = {SMALL!r}
run(LearnSettings(**{{**settings.__dict__, "output": Path({str(tmp_path / "there")!r})}}))
assert "matplotlib.pyplot" not in sys.modules
"""
    environment = os.environ | {"PYTHONHASHSEED": "7", "NO_COLOR": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert files_in(tmp_path / "here") == files_in(tmp_path / "there")


def test_overwrites_its_own_files_only(tmp_path):
    for name in ("notes.txt", "policy.json", "curve.svg"):
        (tmp_path / name).write_text("mine")
    run(tmp_path)
    assert set(files_in(tmp_path)) == {*FILES, "notes.txt"}
    assert (tmp_path / "notes.txt").read_text() == "mine"
    edbatch.load_policy(tmp_path / "policy.json")


def test_without_held_out_and_unseen_mini_batches(tmp_path):
    printed = run(tmp_path, held_out=0, unseen=0, episodes=0)
    assert len(row(printed, "fsm")) == 1
    assert edbatch.load_policy(tmp_path / "policy.json").training.held_out_lower_bound == 0
    assert "<!-- held out -->" not in (tmp_path / "curve.svg").read_text()


def test_types_that_only_unseen_mini_batches_have(tmp_path):
    printed = run(tmp_path, workload="module-net", graphs=1, held_out=0, unseen=2, batch_size=1)
    assert re.search(r"New to fsm in the unseen mini-batches: \d+ types \(library", printed)
    known = edbatch.load_policy(tmp_path / "policy.json").types
    settings = replace(SMALL, workload="module-net", graphs=1, held_out=0, unseen=0, batch_size=1)
    assert set(known) == set(learn.mini_batches(settings)["training"][0].type_names)
    assert len(row(printed, "rule alone")) == 2


@pytest.mark.parametrize("encoding", ["base", "max", "sort"])
def test_other_encodings(tmp_path, encoding):
    printed = run(tmp_path, encoding=encoding)
    policy = edbatch.load_policy(tmp_path / "policy.json")
    assert policy.encoding == encoding
    assert policy.num_states
    assert "fsm has no states" not in printed


def test_rule_alone_decides(tmp_path, monkeypatch):
    def refuse_tables(graphs, *_, held_out=(), **__):
        rule = edbatch.learn_policy(graphs, held_out=held_out, settings=NOTHING)
        return replace(rule, training=replace(rule.training, chosen=0))

    monkeypatch.setattr(learn, "learn_policy", refuse_tables)
    printed = run(tmp_path)
    reason = "The rule alone decides, because no table was better on the held-out mini-batches."
    assert f"fsm has no states. {reason}" in printed
    assert row(printed, "fsm") == row(printed, "rule alone")
    assert set(row(printed, "unseen states")) == {"100.0%"}
    assert edbatch.load_policy(tmp_path / "policy.json").num_states == 0
    assert f"<!-- {reason} -->" in (tmp_path / "machine.svg").read_text()


def test_progress_only_on_a_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    run(tmp_path)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    run(tmp_path)
    bar = capsys.readouterr().err
    assert "learning" in bar
    assert "× the lower bound" in bar


def test_refuses_what_it_cannot_write_before_learning(tmp_path, monkeypatch):
    monkeypatch.setattr(learn, "learn_policy", lambda *_, **__: pytest.fail("learned in vain"))
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match=f"cannot write into the folder {folder}: .*; give another one"):
            run(folder)
    (tmp_path / "folder" / "curve.svg").mkdir(parents=True)
    with pytest.raises(OutputError, match=r"cannot write .*curve.svg: it is a folder"):
        run(tmp_path / "folder")

    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(OutputError, match="Permission denied"):
        run(tmp_path / "not" / "there")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}
    assert (tmp_path / "file").read_text() == "mine"


def test_unknown_workload_leaves_nothing(tmp_path):
    with pytest.raises(WorkloadError, match=r"no workload is called 'trees'; choose one of tree-lstm, .*, module-net"):
        run(tmp_path / "new", workload="trees")
    assert not list(tmp_path.iterdir())


def test_interrupt_leaves_nothing_half_written(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "policy.json").write_text("mine")
    for target, name in ((learn, "learn_policy"), (learn, "draw_machine"), (Path, "write_bytes")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, interrupt)
            for folder in (tmp_path / "old", tmp_path / "new" / "folder"):
                with pytest.raises(KeyboardInterrupt):
                    run(folder)
        assert [path.name for path in tmp_path.iterdir()] == ["old"]
        assert files_in(tmp_path / "old") == {"policy.json": b"mine"}


def test_pictures_do_not_depend_on_the_style_and_leave_it_alone():
    policy = machine()
    first = pictures.draw_curve(policy, "w") | pictures.draw_machine(policy, "w")
    with matplotlib.rc_context({"font.size": 30.0, "axes.facecolor": "red", "svg.fonttype": "none"}):
        assert pictures.draw_curve(policy, "w") | pictures.draw_machine(policy, "w") == first
        assert matplotlib.rcParams["font.size"] == 30.0


CURVE = (Evaluation(0, 30, 8, 0), Evaluation(0, 31, 9, 1), Evaluation(50, 25, 6, 1), Evaluation(100, 24, 7, 1))


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [(2, ["chosen: 25 batches, 1.25×", "chosen: 6 batches, 1.50×"]), (0, 2 * ["chosen: the rule alone"])],
)
def test_curve_marks_what_was_chosen_and_the_rule_alone(chosen, expected):
    training = Training(num_graphs=1, lower_bound=20, held_out_lower_bound=4, chosen=chosen, curve=CURVE)
    texts = text_in(pictures.draw_curve(replace(machine(), training=training), "chains"))
    assert [text for text in texts if text.startswith("chosen")] == expected
    for text in ("chains: batches while learning", "lower bound", "rule alone: 30 batches, 1.50×",
                 "rule alone: 8 batches, 2.00×"):  # fmt: skip
        assert text in texts


def test_rule_alone_is_no_point_of_the_curve():
    training = Training(num_graphs=1, lower_bound=20, chosen=1, curve=CURVE)
    axes = pictures._curve(replace(machine(), training=training), "chains").axes[0]
    line_of = {line.get_label(): line for line in axes.get_lines()}
    assert list(line_of["training"].get_xdata()) == [0, 50, 100]
    assert list(line_of["training"].get_ydata()) == [31 / 20, 25 / 20, 24 / 20]
    assert set(line_of["rule alone: 30 batches, 1.50×"].get_ydata()) == {30 / 20}


@pytest.mark.parametrize(
    ("training", "reason"),
    [
        (Training(curve=CURVE), "no table was better"),
        (Training(curve=CURVE[:2], chosen=1), "no state was learned"),
        (Training(), "no state was learned"),
    ],
)
@pytest.mark.parametrize("crowd", [0.0, 0.5])
def test_machine_without_states(training, reason, crowd):
    texts = text_in(pictures.draw_machine(replace(machine(0), crowd=crowd, training=training), "none"))
    assert f"The rule alone decides, because {reason}." in texts
    assert "launch" not in texts
    crowded = "•  0.5 × the logarithm of the ways to go of its ready nodes together"
    assert (crowded in texts) == (crowd > 0)


def test_machine_of_one_state_and_a_long_odd_name():
    name = "encoder.layers.12.$x_1$<b>.attention(f32[64], f32[64]) \n词"
    texts = text_in(pictures.draw_machine(machine(types=(name,)), "one"))
    assert "1 state over 1 type. A state is the ready types." in texts
    assert "In a state that it does not know the rule decides, with crowd 0.5." in texts
    assert texts.count(words.shortened(name)) == 2
    assert not any("more state" in text for text in texts)


def test_machine_of_many_states_and_types():
    types = tuple(f"module {i}" for i in range(40))
    texts = text_in(pictures.draw_machine(machine(22, types=types, ready=30), "many"))
    assert "… and 2 more states, 1.2% of the visits" in texts
    assert any(re.fullmatch(r"\+ \d\d more", text) for text in texts)
    assert sum(text.startswith("module 0") for text in texts) == 2 * pictures.SHOWN_STATES


@pytest.mark.parametrize("encoding", edbatch.scheduling.fsm.ENCODINGS)
def test_legend_has_the_marks_of_the_encoding(encoding):
    texts = text_in(pictures.draw_machine(machine(encoding=encoding), "w"))
    for mark, meaning in words.MEANING_OF.items():
        shown = any(text.endswith(f"{mark}: {meaning}") for text in texts)
        assert shown == (mark in words.marks_of(encoding))
