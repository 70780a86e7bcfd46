"""What random programs are made of besides operations: modules, blocks, hooks, changes between calls, options.

Lines are written as in `operations.py`; `{M}` is the module, `{p}` a parameter or tensor that examples share.
"""

from __future__ import annotations

# Features and parts of lines that are not drawn -> what would happen.
EXCLUDED: dict[str, str] = {
    "hardsigmoid": "torch's own derivative is off by 1e-8 where it is vectorised",
    "checkpoints": "of parameters alone: torch's error about the number of saved tensors",
}

# The constructor of a module, and ways to call it.
MODULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("nn.Linear(3, 3)", ("{M}({F})", "{M}({v})", "torch.tanh({M}({v}))", "{M}({M}({v}))", "{M}({f} + {s})")),
    ("nn.Linear(3, 4, bias=False)", ("{M}({F})", "{M}({v})")),
    ("nn.Linear(3, 3).requires_grad_(False)", ("{M}({F})",)),
    ("nn.LayerNorm(3)", ("{M}({F})", "{M}({v})")),
    ("nn.Embedding(5, 3)", ("{M}(torch.tensor({K}))", "{M}({i}.remainder(5))", "{M}(torch.tensor([{K}, 0]))")),
    ("nn.Embedding(5, 3, padding_idx=0)", ("{M}(torch.tensor([{K}, 0])).sum(0)", "{M}(torch.tensor({K}))")),
    ("edbatch.cell(nn.Embedding(5, 3))", ("{M}({K})", "{M}({i}.remainder(5))", "{M}({K}) + {M}({K} + 1)")),
    ("nn.LSTMCell(3, 3)", ("{t0}, {t1} = {M}({v})", "{t0}, {t1} = {M}({v}, ({v}, {v}))", "{M}({v}, ({v}, {v}))[0]")),
    ("nn.GRUCell(3, 3)", ("{M}({v}, {v})", "{M}({v})", "{M}({v}, {M}({v}, {v}))")),
    ("nn.RNNCell(3, 3)", ("{M}({v}, {v})", "{M}({v})")),
    ("nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))", ("{M}({F})", "{M}[0]({v})")),
    ("nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.ReLU()).eval()", ("{M}({F})",)),
    ("nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))", ("{M}({f} * 2)", "{M}({f})")),
    ("nn.MultiheadAttention(3, 1)", ("{M}({m}, {m}, {m})[0]", "{t0}, {t1} = {M}({m}, {m}, {m})")),
    ("nn.LSTM(3, 3)", ("{M}({m})[0]", "{M}({m})[1][0]")),
    ("nn.GRU(3, 3)", ("{M}({m})[0]", "{M}(torch.stack({X}))[0][-1]")),
    ("nn.Conv1d(3, 3, 1)", ("{M}({m})", "{M}({m}[None])")),
    ("nn.Bilinear(3, 3, 2)", ("{M}({v}, {v})",)),
    ("nn.Identity()", ("{M}({f})", "{M}({a})")),
    ("nn.Dropout(0.5).eval()", ("{M}({f})", "{M}({f}) + {f}")),
    ("nn.ReLU()", ("{M}({f})",)),
    ("nn.ReLU(inplace=True)", ("{M}({f})", "{M}({f} + 1)")),
    ("nn.PReLU()", ("{M}({F})",)),
    ("nn.GELU()", ("{M}({f})",)),
    ("nn.Softmax(-1)", ("{M}({F})",)),
    ("nn.BatchNorm1d(3).eval()", ("{M}({m})",)),
    ("nn.BatchNorm1d(3)", ("{M}({m})",)),
    ("nn.GroupNorm(1, 3)", ("{M}({m}[None])",)),
    ("nn.EmbeddingBag(5, 3)", ("{M}(torch.tensor([[0, {K}]]))",)),
    ("nn.CosineSimilarity(dim=0)", ("{M}({v}, {v})",)),
    ("nn.CrossEntropyLoss()", ("{M}({v}, torch.tensor({K}))",)),
    ("nn.MSELoss()", ("{M}({f}, {s})",)),
    ("nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])", ("{M}[{K} % 2]({v})", "{M}[0]({v}) + {M}[1]({v})")),
    ("nn.ParameterList([torch.ones(3), torch.ones(3)])", ("{M}[{K} % 2] * {f}", "sum({M})")),
    ("Alike(2.0)", ("{M}({f})",)),
    ("Alike(3.0)", ("{M}({f})",)),
    ("edbatch.cell(Alike(-1.0))", ("{M}({f})",)),
    ("Residual(nn.Linear(3, 3))", ("{M}({v})", "{M}({M}({v}))", "torch.stack([{M}(v) for v in {X}]).sum(0)")),
    ("edbatch.cell(Residual(nn.Linear(3, 3)))", ("{M}({v})", "{M}({M}({v}))", "sum({M}(v) for v in {X})")),
    ("torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))", ("{M}({v})",)),
    ("nn.TransformerEncoderLayer(3, 1, 4, dropout=0.0, batch_first=True)", ("{M}({m}[None])[0]",)),
    ("nn.Embedding(5, 3, max_norm=0.5)", ("{M}(torch.tensor({K}))",)),
)  # fmt: skip

PARAMETERS = (
    "nn.Parameter(randn(3, seed={seed}))", "nn.Parameter(randn(3, seed={seed}))",
    "nn.Parameter(randn(3, 3, seed={seed}))", "nn.Parameter(randn(4, 3, seed={seed}))",
    "nn.Parameter(randn(seed={seed}))", "nn.Parameter(randn(1, seed={seed}))",
    "nn.Parameter(randn(3, seed={seed}), requires_grad=False)", "nn.Parameter(randn(3, seed={seed}))",
)  # fmt: skip
TENSORS = (
    "randn(3, seed={seed})", "randn(3, 3, seed={seed})", "randn(seed={seed})",
    "randn(3, seed={seed}).requires_grad_()", "torch.tensor([0, 2, 1])", "torch.tensor([True, False, True])",
    "randn(0, seed={seed})", "randn(0, 3, seed={seed})", "randn(3, seed={seed}, dtype=torch.float32)",
    "torch.tensor(2)", "randn(1, 3, seed={seed})", "randn(4, 3, seed={seed}).T",
)  # fmt: skip
SHAPES = ("3", "3", "3", "3", "3", "4", "1", "3, 3", "2, 3", "1, 3", "3, 4", "", "0", "0, 3", "2, 3, 3")

SHARED_WRITES = (
    "{p}.mul_(0.5)", "{p}.add_(1)", "{p}[0] = 2.0", "{p}.copy_({s})", "{p}[0] = {f}.sum()", "{p}.add_({s})",
    "{p} += 1", "{p}.detach().add_(1)", "{p}.detach()[0] = 3.0",
    "{p}.mul_(0.9).add_({s}, alpha=0.1)",
)  # fmt: skip

BLOCKS: dict[str, tuple[str, ...]] = {
    "no grad": ("with torch.no_grad():",),
    "grad again": ("with torch.enable_grad():", "with torch.set_grad_enabled({B}):"),
    "autocast": ("with torch.autocast('cpu', torch.bfloat16):",),
    # Not save_on_cpu: on the CPU it keeps the tensor itself, and torch's gradients are wrong if that is written later.
    "saved tensors": ("with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):",),
    "inference inside": ("with torch.inference_mode():",),
    "branches": ("if {B}:", "if {K} > 1:", "if len({X}) > 2:", "if not {B}:"),
    "loops": ("for {t0} in {X}:", "for {t0} in {X}[1:]:", "for {t0} in reversed({X}):", "for _ in range({K}):"),
}

HOOKS = (
    "{M}.register_forward_hook(lambda module, inputs, result: None if isinstance(result, tuple) else result * 2)",
    "{M}.register_forward_pre_hook(lambda module, inputs: tuple(x * 2 for x in inputs))",
    "{M}.register_forward_hook(lambda module, inputs, result: None)",
    "{M}.register_full_backward_hook(lambda module, inputs, outputs: None)",
    "{p}.register_hook(lambda gradient: gradient * 2)",
    # torch calls the hook even if the parameter is an argument of a function that has no gradient for it.
    "{p}.register_post_accumulate_grad_hook(lambda p: None if p.grad is None else p.grad.mul_(2) is None or None)",
)

CHANGES = (
    "{p}.data.mul_(2)", "{p}.data = {p}.data * 2", "{p}.requires_grad_(not {p}.requires_grad)",
    "{p}.detach().add_(0.5)", "torch.optim.SGD([{p}], lr=0.1).step()", "{p}.data = {p}.data.clone()",
    "{M}.requires_grad_(False)", "{M}.train()", "{M}.eval()", "{M}.weight.data.add_(0.1)",
    "{M}.weight = nn.Parameter({M}.weight.detach() * 2)", "{M}.factor = 5.0",
    "{M}.register_forward_hook(lambda module, inputs, result: None if isinstance(result, tuple) else result * 3)",
    "{M}.bias = None", "{M}.eps = 0.5", "{M}.padding_idx = 1", "model.{M} = nn.Linear(3, 3)",
    "model.{M}.weight.data.mul_(2)", "model.{M} = nn.Tanh()", "model.train(not model.training)",
    "model.requires_grad_(False)", "{M}.forward = lambda x: x * 2", "{M}.negative_slope = 2.0",
)  # fmt: skip

AROUND = (
    "torch.no_grad()", "torch.inference_mode()", "torch.autocast('cpu', torch.bfloat16)",
    "torch.set_grad_enabled(True)",
)  # fmt: skip

POLICIES = (
    "'depth'", "'agenda'", "'learned'", "'bound-greedy'", "'ratio-greedy'", "'agenda-remaining'",
    "'ratio-greedy-backward'", "edbatch.policies.BoundGreedy(beam=2)",
)  # fmt: skip

RESULTS = (
    "{0}", "{0}, {1}", "{0}, {1}, {2}", "{'a': {0}, 'b': {1}}", "[{0}, ({1}, None)]", "{0}, 3, 'text'",
    "Pair({0}, {1})",
)  # fmt: skip
