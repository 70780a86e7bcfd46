"""The whole flow on one screen: examples → Recording → Recording → Schedule → Plan → Compiled → tensors.

    record     recording/    every cell call and torch function on lazy values becomes a node; or replay/, by keys
                             calls of functions that record the same again and again become one node each
    rewrite    rewriting/    what need not wait for a recurrence runs ahead of it
    schedule   scheduling/   a policy decides which nodes run together, and when
    plan       layout/       where values lie in memory, which rows each batch reads
    compile    cells/        for every type of node its kernels, made once
    run        runtime/      batch after batch; backward in reverse

What lasts from call to call is kept here: the kernels of the function's cells, the cells that were found, what is known
of types that occur together, the pieces of examples that are known by their keys, and the pool of memory. Errors raised
deeper down state a local fact; which example and which line it was is added here.
"""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import chain, compress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from edbatch.cells.kernel import Kernel
from edbatch.errors import BatchError, LeakedValueError
from edbatch.layout.layout import Ints
from edbatch.paying import Estimate, Ways, estimate
from edbatch.recording.calls.names import Names
from edbatch.recording.interception import Shortcuts, recording
from edbatch.recording.kept import hand_over, survivors, with_kept
from edbatch.recording.program.paths import Paths
from edbatch.recording.recorder import Recorder
from edbatch.recording.results import Results
from edbatch.recording.types.kernel_cache import KernelCache
from edbatch.recording.types.recording import Origin, Recording
from edbatch.recording.types.type_set import TypeSet, TypeSets
from edbatch.recording.values.refusals import explained, refuse_tangents
from edbatch.replay.example_recorder import PieceRecorder
from edbatch.replay.joining import join
from edbatch.replay.known_examples import LEAVES_VALUES, KnownExamples
from edbatch.rewriting.rewrite import rewrite
from edbatch.runtime.arena import Pool
from edbatch.runtime.backward import BatchedFunction, is_distributed
from edbatch.runtime.compilation import compile_plan
from edbatch.runtime.execution import Execution
from edbatch.runtime.needs import needs_of_results, with_wanted_gradients
from edbatch.runtime.plan import make_plan
from edbatch.scheduling.schedule import Policy
from edbatch.stats import Stats, Stopwatch
from edbatch.switches import Switches
from edbatch.torch_insides import pytree
from edbatch.torch_insides.modes import DisableAutocast, num_dispatch_modes
from edbatch.torch_state.modules import buffers_of, modules_of, parameters_of
from edbatch.torch_state.surroundings import Made, Surroundings, inside

if TYPE_CHECKING:
    from edbatch.rewriting.find_cells import WithFoundCells


_HERE = (os.path.dirname(__file__), os.path.dirname(torch.__file__))


class Pipeline:
    """Runs one function on mini-batches."""

    def __init__(
        self,
        function: Callable[..., Any],
        switches: Switches,
        key: Callable[..., Hashable] | None = None,
        *,
        debug: bool = False,
    ):
        self.function = function
        owner = getattr(function, "__self__", function)
        self.root = owner if isinstance(owner, nn.Module) else None
        self.paths = Paths(function)
        self.kernels = KernelCache(self.paths)
        self.shortcuts = Shortcuts(self.root)
        self.type_sets = TypeSets()
        from edbatch.rewriting.find_cells import FoundCells  # at first use: it imports what captures cells

        self.found = FoundCells()
        self.pool = Pool()
        self.ways = Ways()
        self.switches = switches
        self.known = None if key is None else KnownExamples(key, self.root, debug=debug)
        self._last_types: TypeSet | None = None
        self.last_origin: Origin | None = None  # where the nodes of the last call were recorded

    def runs_alone(self, columns: Sequence[Any]) -> Estimate | None:
        """Why the call that begins now runs one by one; None if it is batched."""
        return self.ways.runs_alone(self._kind_of_call(columns)) if self._may_run_alone else None

    @property
    def _may_run_alone(self) -> bool:
        """Not where ranks call the same collectives, where known examples are to be checked, or where a mode sees
        every op."""
        is_checked = self.known is not None and self.known.debug
        is_watched = num_dispatch_modes() > 0
        return self.switches.may_run_alone and not (is_distributed() or is_checked or is_watched)

    def _kind_of_call(self, columns: Sequence[Any]) -> Hashable:
        """What calls have in common for which batching pays or does not: modes, and about how many examples."""
        is_column = bool(columns) and hasattr(columns[0], "__len__") and not _is_number(columns[0])
        number = len(columns[0]) if is_column else 0
        is_training = self.root is not None and self.root.training
        return number.bit_length(), torch.is_grad_enabled(), is_training

    def _judge(self, columns: Sequence[Any], execution: Execution, generator: bytes) -> None:
        """Whether calls like this one pay. One that has drawn random numbers does, as others would be drawn alone."""
        if generator == _generator_state():
            found = estimate(execution.plan, trains=execution.needs is not None, has_numbers=self.kernels.gives_numbers)
            self.ways.judge(self._kind_of_call(columns), found)

    def __call__(
        self, columns: Sequence[Any], keywords: dict[str, Any], policy: Policy, stack: bool | str
    ) -> tuple[Any, Stats]:
        return inside((Surroundings(),), self._call, columns, keywords, policy, stack)

    def _call(
        self, columns: Sequence[Any], keywords: dict[str, Any], policy: Policy, stack: bool | str
    ) -> tuple[Any, Stats]:
        stopwatch = Stopwatch()
        is_asked = self._may_run_alone and self.ways.is_asked(self._kind_of_call(columns))
        generator = _generator_state() if is_asked else None
        execution, results = self.prepare(columns, keywords, policy, stopwatch)
        with stopwatch("run"):
            gathered = inside((Made(DisableAutocast),), _run, execution, results)
        if generator is not None:
            self._judge(columns, execution, generator)
        stats = Stats.of(execution.plan, execution.lease.num_bytes, stopwatch.seconds)
        if execution.needs is None:
            execution.lease.release()
        else:
            gathered = self._connect(execution, results, gathered, stopwatch)
        if results.kept:
            hand_over(results, gathered, (self.function, columns, keywords))
        return results.assemble(gathered, stack), stats

    def prepare(
        self, columns: Sequence[Any], keywords: dict[str, Any], policy: Policy, stopwatch: Stopwatch
    ) -> tuple[Execution, Results]:
        """Everything before the first number is computed."""
        with stopwatch("record"):
            recorded, results = self.record_examples(columns, keywords)
            if (report := self.kernels.growth.end_call()) is not None:
                warnings.warn(report, RuntimeWarning, stacklevel=2)
            refuse_tangents(chain(recorded.outside, (t for kind in recorded.node_types for t in kind.shared)))
            recorded = with_wanted_gradients(recorded)
        with stopwatch("rewrite"):
            recorded, results = rewrite(recorded, results, self.switches)
        self._last_types = recorded.type_set
        with stopwatch("schedule"):
            order = policy.run(recorded.graph)
        with stopwatch("plan"):
            plan = make_plan(recorded, order, self.switches)
            needs, results = needs_of_results(recorded, results)
        with stopwatch("compile"):
            compiled = inside((Made(DisableAutocast),), compile_plan, plan, needs, self.switches)
        with stopwatch("run"):
            return Execution(plan, self.pool, needs, compiled), results

    @property
    def kernel_of(self) -> dict[str, Kernel]:
        """The kernel of each type of the last call, by its name."""
        types = self._last_types
        return {} if types is None else dict(zip(types.names, types.kernels, strict=True))

    def record_examples(self, columns: Sequence[Any], keywords: dict[str, Any]) -> tuple[Recording, Results]:
        """Record the function on every example of a mini-batch that is not known by its key."""
        examples = zip_columns(columns)
        self.last_origin = None
        found = None if self.known is None else self._record_unknown(self.known, examples, keywords)
        return found or self._record_all(examples, keywords)

    def _record_all(self, examples: list[Any], keywords: dict[str, Any]) -> tuple[Recording, Results]:
        recorder = Recorder(*self._surroundings(keywords))
        every = range(len(examples))
        results, kept = recording(recorder, self.shortcuts, self._recorded, recorder, examples, every, keywords)
        return self._finished(recorder, results, kept)

    def _recorded(self, recorder: Recorder, *args: Any) -> tuple[Results, list[Any]]:
        results = Results.collect(self._run(recorder, *args), recorder)
        return results, survivors(recorder)

    def _finished(self, recorder: Recorder, results: Results, kept: list[Any]) -> tuple[Recording, Results]:
        results = with_kept(results, recorder, kept) if kept else results
        recorded = replace(recorder.finish(), type_sets=self.type_sets)
        self.last_origin = recorded.origin
        merged = self._find_cells(recorded, results.refs)
        return (recorded, results) if merged is None else (merged.recording, results.moved(merged.moved.refs))

    def _find_cells(self, recorded: Recording, results: Ints) -> WithFoundCells | None:
        """The recording with the cells that nobody marked; None if there are none."""
        return self.found.merge(recorded, results) if self.switches.find_cells else None

    def _record_unknown(
        self, known: KnownExamples, examples: list[Any], keywords: dict[str, Any]
    ) -> tuple[Recording, Results] | None:
        """The same by pieces, those of known examples and new ones; None when keys cannot be used here."""
        call = known.look_up(examples, keywords)
        if call is None:
            return None
        if call.unknown:
            recorder = PieceRecorder(*self._surroundings(keywords), structures=known.structures)
            try:
                outputs, kept = recording(
                    recorder, self.shortcuts, self._recorded_alone, recorder, examples, call.unknown, keywords
                )
            except LeakedValueError:  # perhaps of an example that was known, and so has no values in this call
                if len(call.unknown) == len(examples):
                    raise
                known.give_up()
                return None
            if kept:
                known.give_up(LEAVES_VALUES)
            if kept or not known.take(call, recorder, examples, self._find_cells):
                all_recorded = len(call.unknown) == len(examples)
                results = Results.collect(outputs, recorder) if all_recorded else None
                return None if results is None else self._finished(recorder, results, kept)
        return join(call.bank, call.numbers, examples, self.type_sets, call.world.joined)

    def _recorded_alone(self, recorder: Recorder, *args: Any) -> tuple[list[Any], list[Any]]:
        outputs = self._run(recorder, *args)
        return outputs, survivors(recorder)

    def _surroundings(self, keywords: dict[str, Any]) -> tuple[Any, ...]:
        """What a recorder needs; the tensors are those that all examples share although they are no parameters."""
        modules = [] if self.root is None else modules_of([self.root])
        device, shared = _device(parameters_of(modules)), buffers_of(modules)
        shared += [leaf for leaf in pytree.tree_leaves(keywords) if isinstance(leaf, Tensor)]
        codes = self.found.codes if self.switches.find_cells else None
        return self.kernels, Names(self.paths, keywords, device), device, shared, codes

    def _run(self, recorder: Recorder, examples: list[Any], numbers: Sequence[int], keywords: Any) -> list[Any]:
        outputs = []
        for i in numbers:
            values = recorder.begin(examples[i])
            try:
                outputs.append(recorder.end(self.function(*values, **keywords)))
            except Exception as error:
                clear = explained(error)
                clear.add_note(_where(i, error) + _hint(len(examples), keywords))
                recorder.close()
                if clear is error:
                    raise
                raise clear from error
        return outputs

    def _connect(
        self, execution: Execution, results: Results, gathered: list[Tensor], stopwatch: Stopwatch
    ) -> list[Tensor]:
        """Give the results a grad_fn that leads to everything they depend on."""
        recorded, needs = execution.plan.recording, execution.needs
        assert needs is not None
        is_reached = [any(outs) for outs in needs.outs]
        reached = compress(recorded.node_types, is_reached)
        tensors = [t for node_type in reached for t in node_type.shared]
        tensors += needs.reached_outside(recorded, needs.outs, results.groups)
        if self.root is not None and is_distributed():
            tensors += parameters_of(modules_of([self.root]))
        inputs = list({id(t): t for t in tensors if t.requires_grad}.values())
        return list(BatchedFunction.apply(execution, results.groups, gathered, stopwatch, *inputs))  # type: ignore[no-untyped-call]


def _generator_state() -> bytes:
    """The state of torch's own generator of random numbers."""
    state: bytes = torch.get_rng_state().numpy().tobytes()
    return state


def _run(execution: Execution, results: Results) -> list[Tensor]:
    with torch.no_grad():
        execution.run()
        return [execution.gather(group) for group in results.groups]


def zip_columns(columns: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The examples of a mini-batch: one value of every column each."""
    if not columns:
        raise BatchError(
            "a batched function needs at least one positional argument: a column with one entry per example"
        )
    for i, column in enumerate(columns):
        if not hasattr(column, "__len__") or isinstance(column, str | dict) or _is_number(column):
            raise BatchError(
                f"positional argument {i} is of type {type(column).__name__}, but positional arguments are columns, "
                "with one entry per example; give what all examples share by keyword"
            )
        if isinstance(column, Tensor) and column.is_nested:
            raise BatchError(f"positional argument {i} is a nested tensor; give the list of its tensors, by unbind()")
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise BatchError(
            f"the columns have different lengths ({', '.join(map(str, lengths))}), but need one entry per example "
            "each; give what all examples share by keyword"
        )
    if lengths[0] == 0:
        raise BatchError("the mini-batch is empty, so the shape of its results is unknown; skip empty mini-batches")
    return list(zip(*[c.unbind(0) if isinstance(c, Tensor) else c for c in columns], strict=True))


def _device(parameters: Sequence[Tensor]) -> torch.device:
    """Where numbers that become tensors go: to the function's parameters."""
    devices = {p.device for p in parameters}
    if len(devices) > 1:
        raise BatchError(
            f"the parameters of the model are on several devices ({', '.join(sorted(map(str, devices)))}), "
            "but a mini-batch runs on one; move the model with model.to(device)"
        )
    return devices.pop() if devices else torch.device("cpu")


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 0


def _is_column(value: Any) -> bool:
    return isinstance(value, list | tuple | Tensor) and not _is_number(value)


def _where(example: int, error: Exception) -> str:
    """Which example of the mini-batch raised an error, and which of the user's lines."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_HERE)]
    line = f", at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
    return f"while recording example {example} of the mini-batch{line}"


def _hint(num_examples: int, keywords: dict[str, Any]) -> str:
    """What is often the reason for an error: a column given by keyword."""
    like_columns = [k for k, v in keywords.items() if _is_column(v) and len(v) == num_examples]
    if not like_columns:
        return ""
    return f". Keywords ({', '.join(like_columns)}) are shared by all examples; give columns by position"
