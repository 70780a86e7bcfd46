"""`edbatch learn` and `edbatch policy show`: a workload's name or a saved policy comes in, files and tables go out.

What is learned is a machine, a policy that decides which recorded calls run together. The workload's model is recorded
on the first examples of its training data. There are three groups of mini-batches: a machine learns from "training",
"held out" chooses the best of the machines found meanwhile, "unseen" is only for the final comparison. If learning
fails or is interrupted, no file is left behind.
"""

from __future__ import annotations

import shlex
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

import edbatch
from edbatch.datasets.files import DatasetError, data_folder
from edbatch.errors import PolicyError
from edbatch.report.output import output_folder, progress_bar, say, write_files
from edbatch.report.pictures import draw_curve, draw_machine
from edbatch.report.words import MEANING_OF, SEEN_BY, counted, marks_of, rule_lines, shortened, why_no_states
from edbatch.scheduling.fsm import Fsm, MachineState
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.learning import learn_policy
from edbatch.scheduling.learning_record import Evaluation, QLearning, Training
from edbatch.scheduling.policies import BoundGreedy, Learned, from_name
from edbatch.scheduling.policy_file import load_policy
from edbatch.scheduling.schedule import Policy, Schedule
from edbatch.workloads.registry import GENERATED, find

FILES = ("policy.json", "curve.svg", "curve.png", "machine.svg", "machine.png")
SHOWN_TYPES = 8

Groups = dict[str, list[Graph]]


@dataclass(frozen=True)
class LearnSettings:
    """What to learn from and how: the numbers and the size of mini-batches, and how long to learn."""

    workload: str
    graphs: int = 4
    held_out: int = 2
    unseen: int = 5
    batch_size: int = 32
    encoding: str = "signs"
    seed: int = 0
    episodes: int = QLearning.episodes
    data: Path | None = None
    output: Path | None = None
    hidden: int | None = None  # it matters, since sizes of values are part of a type's name

    @property
    def folder(self) -> Path:
        return self.output or Path(f"{self.workload}-policy")


def run(settings: LearnSettings, console: Console | None = None) -> None:
    """Learns, compares with the other policies, writes policy and pictures, and says how to use them."""
    console = console or Console()
    groups = mini_batches(settings)
    with output_folder(settings.folder, FILES):
        policy = learn(settings, groups)
        table = compare(policy, groups, settings)
        pictures = {f"curve.{kind}": data for kind, data in draw_curve(policy, settings.workload).items()}
        pictures |= {f"machine.{kind}": data for kind, data in draw_machine(policy, settings.workload).items()}
        console.print(table)
        say(console, _explanation(policy, groups, settings))
        write_files(settings.folder, {"policy.json": policy.save, **pictures})
    say(console, f"Wrote {', '.join(FILES)} into {settings.folder}")
    path = settings.folder / "policy.json"
    say(console, f"Use it:\n  edbatch run {settings.workload} --policy {shlex.quote(str(path))}{_hidden(settings)}")
    say(console, "A model of your own learns by itself, and saves what it learned:")
    say(console, '  batched = edbatch.batch(model); batched(examples); batched.policy.save("model.policy.json")')
    say(console, f"Look at it:\n  edbatch policy show {shlex.quote(str(path))}")


def mini_batches(settings: LearnSettings) -> Groups:
    """The graphs of mini-batches by group; empty groups are left out."""
    numbers = {"training": settings.graphs, "held out": settings.held_out, "unseen": settings.unseen}
    total, size = sum(numbers.values()), settings.batch_size
    workload = find(settings.workload)
    corpus = workload.load(settings.data, settings.seed, total * size)
    if len(corpus.train) < total * size:
        raise DatasetError(
            f"{total} mini-batches of {size} need {total * size} examples, and there are {len(corpus.train)} in "
            f"{corpus.source}; ask for fewer"
        )
    batched = edbatch.batch(workload.make(corpus, settings.hidden, settings.seed))
    graphs = []
    with progress_bar("recording", total) as update:
        for number in range(total):
            graphs.append(edbatch.record(batched, corpus.train[number * size : (number + 1) * size]))
            update(number + 1, "")
    rest = iter(graphs)
    return {name: list(islice(rest, number)) for name, number in numbers.items() if number}


def learn(settings: LearnSettings, groups: Groups) -> Fsm:
    """Learns a machine, with a progress bar."""
    bound = _bound(groups["training"])
    with progress_bar("learning", settings.episodes) as update:

        def show(evaluation: Evaluation) -> None:
            quality = f"{evaluation.batches:,} batches, {evaluation.batches / bound:.2f}× the lower bound"
            update(evaluation.episode, quality)

        return learn_policy(
            groups["training"], settings.encoding, settings.seed, held_out=groups.get("held out", ()),
            settings=QLearning(episodes=settings.episodes), progress=show,
        )  # fmt: skip


def compare(policy: Fsm, groups: Groups, settings: LearnSettings) -> Table:
    """Batches of each policy on each group of mini-batches, against the lower bound."""
    table = Table(title=f"{settings.workload}: batches, and × the lower bound")
    table.add_column("policy")
    for name, graphs in groups.items():
        table.add_column(f"{name} ({len(graphs)})", justify="right", no_wrap=True)
    bound_of = {name: _bound(graphs) for name, graphs in groups.items()}
    table.add_row("lower bound", *(f"{bound:,} 1.00×" for bound in bound_of.values()), end_section=True)
    contenders = _contenders(policy, groups)
    with progress_bar("comparing", len(contenders)) as update:
        for number, (label, contender) in enumerate(contenders.items()):
            update(number, label)
            schedules = {name: [contender.run(graph) for graph in graphs] for name, graphs in groups.items()}
            sums = {name: sum(s.num_batches for s in found) for name, found in schedules.items()}
            table.add_row(label, *(f"{sums[name]:,} {sums[name] / bound_of[name]:.2f}×" for name in groups))
            if label == "fsm":
                unseen = [_unseen_share(found) for found in schedules.values()]
    table.add_section()
    table.add_row("unseen states", *unseen)
    return table


def show(path: Path, limit: int, console: Console | None = None) -> None:
    """Prints a saved policy for people."""
    console = console or Console()
    try:
        policy = load_policy(path)
    except OSError as error:
        raise PolicyError(f"cannot read {path}: {error.strerror}; give a file that policy.save wrote") from error
    say(console, f"{path}: {counted(policy.num_states, 'state')} over {counted(len(policy.types), 'type')}")
    say(console, f"encoding  {policy.encoding}: a state is {SEEN_BY[policy.encoding]}")
    say(console, f"types     {', '.join(map(str, policy.types))}")
    say(console, f"crowd     {policy.crowd:g}: how much a type's ready nodes together count for the rule")
    for head, line in _record(policy).items():
        say(console, f"{head:<9} {line}")
    states = policy.states()
    if not states:
        say(console, "\n".join([why_no_states(policy), *rule_lines(policy.crowd)]))
        return
    console.print(_state_table(states, limit))
    if len(states) > limit:
        say(console, f"… and {len(states) - limit:,} more; --limit {len(states)} shows all")
    for mark in marks_of(policy.encoding):
        say(console, f"{mark}: {MEANING_OF[mark]}")
    say(console, "In a state that is not here the rule decides.")


def _contenders(policy: Fsm, groups: Groups) -> dict[str, Policy]:
    names = ("depth", "agenda", "agenda-remaining", "ratio-greedy", "ratio-greedy-backward", "bound-greedy")
    new = _new_types(policy, groups)
    machine = policy.with_types(new)
    nothing = QLearning(episodes=0, demonstrate=False)
    rule = learn_policy(groups["training"], held_out=groups.get("held out", ()), settings=nothing)
    return {name: from_name(name) for name in names} | {
        "bound-greedy, beam 4": BoundGreedy(beam=4),
        "rule alone": rule.with_types(new),
        "fsm": machine,
        "learned": Learned(machine),
    }


def _new_types(policy: Fsm, groups: Groups) -> list[Hashable]:
    """Types of nodes that the machine has not seen in training or held-out mini-batches, each once."""
    found = [name for graphs in groups.values() for graph in graphs for name in policy.unknown_types(graph)]
    return list(dict.fromkeys(found))


def _explanation(policy: Fsm, groups: Groups, settings: LearnSettings) -> str:
    lines = [
        f"In brackets how many mini-batches of {settings.batch_size} are summed; examples: {_source(settings)}.",
        "fsm: the machine alone. learned: the shorter of its schedule and bound greedy's.",
        "rule alone: what fsm does without its table. unseen states: launches of fsm that the rule decided.",
    ]
    if not policy.num_states:
        lines.append(f"fsm has no states. {why_no_states(policy)}")
    new = _new_types(policy, groups)
    if new:
        lines.append(f"New to fsm in the unseen mini-batches: {counted(len(new), 'type')} ({_listed(new)}).")
    return "\n".join(lines)


def _hidden(settings: LearnSettings) -> str:
    return f" --hidden {settings.hidden}" if settings.hidden else ""


def _source(settings: LearnSettings) -> str:
    folder = data_folder(settings.data)
    return "generated" if folder is None or find(settings.workload).data == GENERATED else f"from {folder}"


def _bound(graphs: list[Graph]) -> int:
    return sum(graph.lower_bound() for graph in graphs)


def _unseen_share(schedules: list[Schedule]) -> str:
    return f"{sum(s.unseen_states for s in schedules) / sum(s.num_batches for s in schedules):.1%}"


def _record(policy: Fsm) -> dict[str, str]:
    """How the machine was learned, and how good it was, and its rule without any states; empty if that is unknown."""
    training = policy.training
    if not training.num_graphs:
        return {}
    source = f"{counted(training.num_graphs, 'graph')} of {training.num_nodes:,} nodes"
    lines = {"learned": f"from {source} in {counted(training.episodes, 'episode')}, seed {training.seed}"}
    if training.curve:
        lines["rule"] = f"alone: {_result(training, training.curve[0])}"
    if 0 < training.chosen < len(training.curve):
        chosen = training.curve[training.chosen]
        lines["chosen"] = f"after {counted(chosen.episode, 'episode')}: {_result(training, chosen)}"
    return lines


def _result(training: Training, evaluation: Evaluation) -> str:
    text = _against(evaluation.batches, training.lower_bound)
    if training.held_out_lower_bound:
        text += f"; held out {_against(evaluation.held_out_batches, training.held_out_lower_bound)}"
    return text


def _against(batches: int, bound: int) -> str:
    return f"{counted(batches, 'batch', 'batches')} ({batches / max(bound, 1):.2f}× the bound {bound:,})"


def _state_table(states: list[MachineState], limit: int) -> Table:
    total = max(1, sum(state.visits for state in states))
    table = Table("visits", "share", "ready", "launch")
    for column in table.columns[:2]:
        column.justify = "right"
    for state in states[:limit]:
        ready = ", ".join(f"{name} ({mark})" if mark else str(name) for name, mark in state.ready)
        table.add_row(f"{state.visits:,}", f"{state.visits / total:.1%}", Text(ready), Text(str(state.launch)))
    return table


def _listed(names: Iterable[Hashable]) -> str:
    texts = [shortened(name) for name in names]
    more = f" and {len(texts) - SHOWN_TYPES} more" if len(texts) > SHOWN_TYPES else ""
    return ", ".join(texts[:SHOWN_TYPES]) + more
