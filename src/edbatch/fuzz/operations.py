"""What programs compute: rows of code by feature.

In a row, a letter in braces is drawn anew each time:

    {f} a float tensor      {F} one with dimensions   {v} a vector, {m} a matrix   {s} one of the shape of the first
    {i} an integer tensor   {I} one with dimensions   {b} flags                    {t} any tensor with dimensions, {a} any
    {n} a number            {N} a positive number     {d} a dimension of the first {k} an index into the first, {e} its last
    {K} an int of the example      {S} a float of it      {B} a flag of it      {X} a list of tensors of it

`{0}` is the first operand again. A row that sets several names, or none, says so: `{t0}, {t1} = …`.
"""

from __future__ import annotations

OPERATIONS: dict[str, tuple[str, ...]] = {
    "arithmetic": (
        "{f} + {f}", "{f} - {f}", "{f} * {f}", "{f} / ({s}.abs() + 0.5)", "{f} + {n}", "{n} - {f}", "{f} * {n}",
        "{n} * {f}", "{n} + {f}", "{f} / {N}", "{n} / ({f}.abs() + 1)", "-{f}", "{f} ** 2", "{f}.square()",
        "({f}.abs() + 0.1) ** 0.5", "2 ** {f}.clamp(-2, 2)", "({f}.abs() + 0.1) ** {s}.clamp(-2, 2)",
        "torch.add({f}, {f}, alpha={n})", "torch.sub({f}, {s}, alpha=2)", "torch.rsub({f}, {n})",
        "torch.addcmul({f}, {s}, {s}, value={n})", "torch.addcdiv({f}, {s}, {s}.abs() + 1)",
        "torch.lerp({f}, {s}, 0.3)", "torch.lerp({f}, {s}, {s})", "{f}.mul({n})", "{f}.div({N})",
        "torch.hypot({f}, {s}.abs() + 1)", "torch.atan2({f}, {s}.abs() + 1)", "{f}.neg()", "+{f}", "{f}.reciprocal()",
        "torch.true_divide({f}, {N})", "torch.logaddexp({f}, {s})", "{f} * {S}", "{f} + {K}", "{S} - {f}", "{f} / ({K} + 1)",
    ),
    "integers": (
        "{f} + {i}", "{f} * {b}", "{i} + {i}", "{i} * 2", "{i} // 2", "{i} % 3", "{i} + {n}", "{i} - {b}", "{i} * {f}",
        "{i} / 2", "-{i}", "{i} ** 2", "{i}.sum()", "{I}.sum({d})", "{i}.float()", "{i}.abs()", "{i}.clamp(0, 1)",
        "{b}.sum()", "{b}.float()", "{b}.long()", "{i}.bool()", "{i} << 1", "{i} & 1", "{I}.cumsum({d})", "{I}.max()",
        "torch.arange(3)", "torch.arange({N})", "torch.tensor({K})", "torch.tensor([{K}, 0])", "{i} + {K}", "{b}.int()",
        "F.one_hot({i}.remainder(3), 3)", "{i} / {i}", "{i} == {i}", "{b} * 2", "{b} + {b}", "torch.tensor({n}) + {f}",
    ),
    "reductions": (
        "{f}.sum()", "{F}.sum({d})", "{F}.sum({d}, keepdim=True)", "{f}.mean()", "{F}.mean({d})", "torch.mean({F}, {d}, True)",
        "{F}.prod({d})", "{f}.prod()", "{F}.amax({d})", "{F}.amin({d}, keepdim=True)", "{f}.max()", "{f}.min()",
        "{F}.max({d})[0]", "{F}.min({d}).values", "{F}.amax()", "torch.sum({m}, (0, 1))", "{m}.mean((0, 1))",
        "{F}.nansum({d})", "{m}.sum((0, 1), keepdim=True)", "{b}.any()", "{b}.all()", "torch.count_nonzero({f})",
        "{F}.sum(dim={d})", "torch.sum({f}, dtype=torch.float64)", "{t0}, {t1} = {F}.max({d})", "{t0}, {t1} = torch.min({F}, {d})",
        "{F}.sum(-1)", "{F}.mean(0)", "{F}.max(0)[0]", "{F}.max(-1).indices", "{t0}, {t1} = torch.aminmax({f})",
    ),
    "spread": (
        "{F}.var({d})", "{F}.std({d})", "{f}.std()", "{f}.var(unbiased=False)", "{F}.norm()", "{F}.norm(dim={d})",
        "{F}.norm(p=1, dim={d}, keepdim=True)", "torch.linalg.vector_norm({f})", "torch.linalg.vector_norm({F}, dim={d})",
        "{t0}, {t1} = torch.var_mean({F}, {d})", "{F}.norm(2)", "torch.dist({f}, {s})", "torch.linalg.norm({F})",
        "F.normalize({F}, dim={d})", "{F}.var(-1, correction=0)",
    ),
    "products": (
        "{m} @ {v}", "{m} @ {m}", "{v} @ {m}", "{v} @ {v}", "torch.mv({m}, {v})", "torch.dot({v}, {v})", "{v}.matmul({m})",
        "torch.outer({v}, {v})", "torch.mm({m}, {m})", "torch.addmm({f}, {m}, {m})", "torch.addmm({v}, {m}, {m}, beta=0.5)",
        "torch.addmv({v}, {m}, {v})", "torch.einsum('i,j->ij', {v}, {v})", "torch.einsum('ij,j->i', {m}, {v})",
        "torch.einsum('ij,jk->ik', {m}, {m})", "torch.einsum('i,i->', {v}, {v})", "torch.einsum('ij->ji', {m})",
        "F.linear({F}, {m})", "F.linear({F}, {m}, {v})", "torch.inner({v}, {v})", "torch.tensordot({v}, {v}, 1)",
        "{m}.T @ {m}", "{m} @ {m}.T", "torch.bmm({m}[None], {m}[None])", "F.bilinear({v}, {v}, {m}[None])", "torch.vdot({v}, {v})",
        "torch.kron({v}, {v})", "{F} @ {m}", "torch.chain_matmul({m}, {m})", "torch.linalg.multi_dot([{m}, {m}, {v}])",
    ),
    "activations": (
        "torch.relu({f})", "F.relu({f})", "torch.tanh({f})", "{f}.tanh()", "torch.sigmoid({f})", "F.gelu({f})",
        "F.gelu({f}, approximate='tanh')", "F.silu({f})", "F.elu({f})", "F.leaky_relu({f}, 0.1)", "F.softplus({f})",
        "F.hardtanh({f})", "F.logsigmoid({f})", "F.selu({f})", "{f}.clamp(-3, 3).exp()", "torch.log1p({f}.abs())",
        "{f}.sin()", "torch.cos({f})", "({f}.abs() + 1).sqrt()", "({f}.abs() + 1).rsqrt()", "torch.erf({f})", "{f}.atan()",
        "F.relu6({f})", "F.mish({f})", "F.hardswish({f})", "F.softsign({f})", "F.tanhshrink({f})", "F.hardshrink({f})",
        "F.softshrink({f}, 0.2)", "F.threshold({f}, 0.1, 2.0)", "F.celu({f})", "F.hardsigmoid({f})", "torch.expm1({f}.clamp(-2, 2))",
        "torch.log({f}.abs() + 0.5)", "{f}.abs()", "torch.sinh({f}.clamp(-2, 2))", "F.prelu({F}, {v})", "F.glu({F}, {d})",
        "torch.asinh({f})", "({f}.abs() + 1).log2()", "torch.special.expit({f})", "torch.logit({f}.sigmoid())", "torch.sinc({f})",
    ),
    "softmax": (
        "F.softmax({F}, {d})", "{F}.softmax(-1)", "F.log_softmax({F}, {d})", "torch.logsumexp({F}, {d})", "F.softmin({F}, {d})",
        "{F}.logsumexp({d}, keepdim=True)", "{F}.log_softmax(-1)", "torch.softmax({F}, dim=0)",
        "F.layer_norm({F}, {0}.shape[-1:])", "F.layer_norm({F}, {0}.shape)", "F.softmax({F}, -1, dtype=torch.float64)",
        "F.rms_norm({F}, {0}.shape[-1:])", "torch.logcumsumexp({F}, {d})",
    ),
    "rounding": (
        "{f}.trunc()", "{f}.round()", "{f}.floor()", "torch.ceil({f})", "{f}.frac()", "{f}.remainder({N})", "{f}.fmod({N})",
        "{f} // {N}", "torch.floor_divide({f}, {N})", "{f}.sign()", "{f} % {N}", "torch.remainder({f}, {s}.abs() + 1)",
        "torch.heaviside({f}, {s})", "torch.div({f}, {N}, rounding_mode='trunc')", "torch.div({f}, {N}, rounding_mode='floor')",
        "torch.copysign({f}, {s})", "torch.round({f}, decimals=1)", "{f}.sgn()", "{n} // ({f}.abs() + 1)", "{n} % ({f}.abs() + 1)",
        "torch.nextafter({f}, {s})", "torch.signbit({f})",
    ),
    "comparisons": (
        "{f} > {f}", "{f} == {f}", "{f} >= {n}", "{f} != {n}", "{i} == {n}", "{i} < {i}", "{n} < {f}", "~{b}", "{b} & {b}",
        "{b} | {b}", "{b} ^ {b}", "torch.logical_not({b})", "torch.logical_and({b}, {b})", "torch.isnan({f})",
        "torch.isclose({f}, {s})", "{f}.gt({n})", "torch.isfinite({f})", "({f} > 0) & ({s} < 0)", "{f}.eq({s})", "{f} < {K}",
    ),
    "choices": (
        "torch.where({b}, {f}, {f})", "torch.where({b}, {f}, 0.0)", "torch.where({f} > 0, {0}, {s})", "{f}.masked_fill({b}, {n})",
        "torch.maximum({f}, {f})", "torch.minimum({f}, {s})", "{f}.clamp({n}, 2)", "{f}.clamp(min={n})", "torch.clamp({f}, max={s})",
        "{f}.clip(-1, 1)", "torch.nan_to_num({f})", "{f}.clamp(-0.5, 0.5)", "torch.fmax({f}, {s})", "torch.max({f}, {s})",
        "{f}.where({b}, {s})", "{f}.clamp_min(0)", "torch.masked_fill({f}, {0} > 0, -1.0)", "torch.where({b}, 1.0, {f})",
    ),
    "ordering": (
        "{t0}, {t1} = {F}.sort({d})", "{F}.sort(descending=True)[0]", "{F}.topk(1)[0]", "{t0}, {t1} = torch.topk({F}, 2)",
        "{F}.argmax({d})", "{f}.argmax()", "{F}.argmin(-1)", "torch.argsort({F}, {d})", "{F}.median()", "{F}.median({d})[0]",
        "{t0}, {t1} = {F}.kthvalue(1, {d})", "{F}.cumsum({d})", "{F}.cumprod({d})", "{F}.cummax({d})[0]", "{t0}, {t1} = torch.cummin({F}, {d})",
        "torch.msort({F})", "{F}.argmax({d}, keepdim=True)", "{F}.diff(dim={d})", "{F}.quantile(0.5)", "torch.searchsorted({v}.sort()[0], 0.1)",
    ),
    "indices": (
        "{t}[{k}]", "{t}[-1]", "{t}[0]", "{t}[{k}:]", "{t}[::2]", "{t}[1:]", "{t}[:-1]", "{t}[None]", "{t}[..., {e}]", "{t}[..., None]",
        "{m}[:, {e}]", "{m}[{k}, {e}]", "{m}[{k}, :]", "{m}[:, 1:]", "{m}[::2, ::2]", "{t}[...]", "{t}[:]", "{m}[{k}, None]", "{m}[None, :, {e}]",
        "{t}[{k}:{k}]", "{t}[-2:]", "{t}.select({d}, 0)", "{t}.narrow({d}, 0, 1)", "{a}[None]", "{a}[...]", "{m}[..., -1:]", "{t}[{k}, ...]",
    ),
    "data indices": (
        "{t}[{K}]", "{t}[{K}:]", "{t}[:{K}]", "{m}[:, {K}]", "{m}[{K}, {e}]", "{m}[{K}, {K}]", "{t}[-{K}]", "{t}[[{K}, 0]]", "{t}[{K}][None]",
        "{t}[torch.tensor({K})]", "{t}[{i}]", "{t}.index_select(0, torch.tensor([{K}]))", "{t}.select(0, {K})", "{X}[{K} % len({X})]",
        "{t}.narrow(0, {K}, 1)", "{t}.roll({K}, 0)", "{t}[..., {K}]",
    ),
    "index tensors": (
        "{t}[[0, -1, 0]]", "{t}[torch.tensor([0, 0])]", "{t}[torch.tensor([0, -1], dtype=torch.int32)]", "{m}[[0, 1], [0, 1]]",
        "{m}[:, [0, -1]]", "{m}[torch.tensor([0]), 1:]", "{t}.index_select(0, torch.tensor([0, 0]))", "{m}.index_select(1, torch.tensor([0, 0]))",
        "{m}[[0], :]", "{t}[{I}]", "{v}[{I}.remainder({0}.shape[0])]", "torch.take({t}, torch.tensor([0, 1]))", "{t}.take(torch.tensor(0))",
        "{m}[None, [0, 1]]", "{m}[..., [0, 0]]", "{t}[torch.zeros(2, 2, dtype=torch.long)]", "{m}[torch.tensor([[0], [1]]), torch.tensor([0, 1])]",
    ),
    "int and list": ("{m}[{k}, [0, 0]]", "{m}[[0, 0], {e}]", "{m}[torch.tensor([0, 1]), {e}]", "{m}[{k}, torch.tensor([0, 0])]"),
    "masks": (
        "{t}[torch.arange({0}.shape[0]) > 0]", "{t}[torch.arange({0}.shape[0]) % 2 == 0]", "{f}[{b}]", "{f}[{0} > 0]", "{f}.masked_select({b})",
        "torch.nonzero({b})", "{f}.nonzero()", "{F}[[True] + [False] * ({0}.shape[0] - 1)]",
    ),
    "gathering": (
        "{v}.gather(0, torch.tensor([0, 0]))", "{m}.gather(1, torch.zeros(1, 2, dtype=torch.long))", "{v}.gather(0, {I}.remainder({0}.shape[0]))",
        "{v}.scatter(0, torch.tensor([0]), {n})", "{v}.scatter(0, torch.tensor([0, 1]), {v})", "{v}.scatter_add(0, torch.tensor([0, 0]), {v}[:2])",
        "{v}.index_add(0, torch.tensor([0]), {v}[:1])", "{m}.index_add(0, torch.tensor([0, 0]), {m}[:2])", "{v}.index_fill(0, torch.tensor([0]), 2.0)",
        "torch.take_along_dim({v}, {v}.argsort(), 0)", "{v}.index_copy(0, torch.tensor([0]), {v}[:1])", "torch.zeros(4).index_add(0, torch.tensor([0, 1]), {v}[:2])",
        "torch.index_select({m}, 0, {I}.remainder({0}.shape[0]))", "torch.zeros(4).scatter(0, torch.tensor([1]), {v})", "{v}.index_put((torch.tensor([0]),), {v}[:1])",
        "{v}.scatter_reduce(0, torch.tensor([0, 0]), {v}[:2], 'amax')", "F.embedding(torch.tensor([0, 0]), {m})", "F.embedding({i}.remainder({m}.shape[0]), {1})",
        "F.embedding(torch.tensor({K}), {m})",
    ),
    "joining": (
        "torch.cat([{v}, {v}])", "torch.cat([{t}, {0}], {d})", "torch.stack([{f}, {s}])", "torch.stack([{f}, {s}, {s}], -1)", "torch.cat([{F}, {s}, {s}])",
        "{t0}, {t1} = {F}.split([1, {0}.shape[0] - 1])", "{F}.chunk(2)[0]", "{F}.chunk(2, {d})[-1]", "{F}.split(2)[0]", "{F}.unbind()[0]", "{F}.unbind({d})[-1]",
        "{t}.flip({d})", "{t}.roll(1, {d})", "{t}.roll(1)", "torch.hstack([{F}, {s}])", "torch.vstack([{F}, {s}])", "torch.stack([{f}])", "torch.cat([{F}])",
        "{t}.repeat_interleave(2, 0)", "torch.cat([{v}, torch.zeros(2)])", "sum({F}.unbind())", "torch.cat([{v}, {f}.reshape(-1)])", "{t}.tensor_split(2)[0]",
        "torch.stack(list({F}))", "torch.cat([{f}[None], {s}[None]])", "F.pad({F}, (1, 0))", "F.pad({F}, (0, 1), value=2.0)", "torch.cat(({v}, {i}.reshape(-1)))",
        "torch.block_diag({m}, {m})", "torch.cartesian_prod({v}, {v})", "torch.broadcast_tensors({f}, {f})[0]",
    ),
    "shapes": (
        "{t}.view(-1)", "{t}.reshape(-1)", "{a}.reshape(1, -1)", "{m}.transpose(0, 1)", "{m}.T", "{m}.t()", "{m}.mT", "{t}.expand(2, *{0}.shape)", "{a}.expand(3, -1)",
        "{a}.squeeze()", "{a}.unsqueeze(0)", "{a}.unsqueeze(-1)", "{t}.squeeze({d})", "{m}.permute(1, 0)", "{a}.flatten()", "{t}.repeat(2)", "{a}.repeat(2, 1)", "{t}.tile(2)",
        "torch.movedim({m}, 0, 1)", "torch.broadcast_to({f}, (3,))", "torch.atleast_2d({a})", "{m}.swapaxes(0, 1)", "torch.diag({v})", "{m}.diagonal()", "torch.tril({m})",
        "{m}.triu(1)", "{v}.unfold(0, 2, 1)", "{m}.reshape({0}.shape[1], {0}.shape[0])", "{v}.expand_as({m})", "{m}.trace()", "{t}.view({0}.shape)", "{m}.view(-1, 1)",
        "{f} * {t}.shape[0]", "{f} + {t}.dim()", "{f} * {t}.numel()", "{f} / len({t})", "{t}.view_as({0})", "{m}.rot90()", "torch.ravel({a})", "{m}.flatten(0, 1)", "{f} * {t}.size(-1)",
    ),
    "conversions": (
        "{f}.clone()", "{f}.contiguous()", "{f}.to(torch.float64)", "{f}.float()", "{f}.double()", "{f}.long()", "{f}.int()", "{f}.bool()", "{f}.type_as({f})", "{f}.to({f}.dtype)",
        "torch.zeros_like({f})", "torch.ones_like({f})", "torch.full_like({f}, {n})", "{f}.new_zeros(3)", "{f}.to(torch.float32)", "{f}.type(torch.float64)", "{i}.double()", "{i}.to({f})",
        "torch.zeros(3)", "torch.ones(())", "torch.tensor([1.0, 2.0, 3.0])", "{f}.to('cpu')", "{f}.cpu()", "{b}.double()", "{f}.real", "torch.eye(3)", "torch.full((3,), {n})", "{f}.new_tensor([1.0])",
        "{f}.to(dtype=torch.float64, copy=True)", "torch.linspace(0, 1, 3)", "torch.as_tensor({f})", "torch.scalar_tensor({n})", "torch.tensor({S})",
    ),
    "halves": ("{f}.bfloat16()", "{f}.half()", "{f}.to(torch.bfloat16).float()", "{f}.half().double()", "{f}.bfloat16() * 2"),
    "detaching": ("{f}.detach()", "{f}.detach() * {s}", "{f} - {0}.detach()", "{f}.detach().clone()", "{f}.data", "{f}.detach().requires_grad_()"),
    "losses": (
        "F.mse_loss({f}, {s})", "F.l1_loss({f}, {s})", "F.smooth_l1_loss({f}, {s})", "F.cross_entropy({v}, torch.tensor(0))", "F.cross_entropy({v}, torch.tensor({K}))",
        "F.nll_loss(F.log_softmax({v}, -1), torch.tensor(0))", "F.binary_cross_entropy_with_logits({f}, torch.ones_like({0}))", "F.kl_div(F.log_softmax({v}, 0), {v}.softmax(0))",
        "F.cosine_similarity({v}, {v}, dim=0)", "F.pairwise_distance({v}, {v})", "F.cross_entropy({m}, torch.zeros({0}.shape[0], dtype=torch.long))", "F.huber_loss({f}, {s})",
        "F.cross_entropy({v}, {v}.softmax(0))", "F.mse_loss({f}, {s}, reduction='none')", "F.mse_loss({f}, {s}, reduction='sum')", "F.cross_entropy({v}, torch.tensor({K}), label_smoothing=0.1)",
        "F.hinge_embedding_loss({f}, {s}.sign())", "F.gaussian_nll_loss({v}, {v}, {v}.abs() + 1)", "F.soft_margin_loss({f}, {s}.sign())", "F.cross_entropy({v}[None], torch.tensor([{K}]))",
    ),
    "dropout": ("F.dropout({f}, 0.5, training=False)", "F.dropout({f}, 0.0)", "F.alpha_dropout({f}, 0.5)", "F.dropout({f}, p=0.5, training=False) + 1"),
    "sums": ("{f} + {s} + {s} + {s}", "sum([{f}, {s}, {s}])", "{f} + {s} - {s}", "sum([{f}, {s}], {s})", "({f} + {s}) + ({s} + {s})", "({f} + {s}) * ({s} + {s})", "0 + {f} + {s} + 1", "{f} + {s} + {n}", "sum([{f}])"),
    "rows": (
        "torch.stack({X})", "torch.stack([torch.tanh(v) for v in {X}])", "torch.stack([v * 2 for v in {X}]).sum(0)", "torch.stack([v + {v} for v in {X}])", "sum({X})", "sum(v * {f} for v in {X})", "torch.cat({X})",
        "torch.stack({X}).mean(0)", "torch.stack({X}).max(0)[0]", "torch.stack({X}).logsumexp(0)", "torch.stack({X}).softmax(0).sum(0)", "torch.stack({X}) @ {v}", "torch.stack({X}).sum(-1).softmax(0) @ torch.stack({X})",
        "torch.stack([v.tanh() for v in {X}]).softmax(0)[0]", "torch.stack([v.tanh() for v in {X}]) @ {v}", "torch.stack([v.tanh() for v in {X}]).cumsum(0)[-1]", "torch.stack([v.tanh() for v in {X}])[:, 0].sum()",
        "torch.stack([v.tanh() for v in {X}]).max(0).values", "torch.stack([v.tanh() for v in {X}]).mean(0)", "torch.stack([v.tanh() for v in {X}]).sum(-1)", "torch.stack([v + {v} for v in {X}]).logsumexp(0)",
        "torch.stack([v + {v} for v in {X}]).amax(0)", "torch.stack([v + {v} for v in {X}]).norm(dim=0)", "torch.stack([v.tanh() for v in {X}]).relu().sum()", "torch.stack([v.tanh() for v in {X}]).T @ torch.stack({X})",
        "torch.stack([v.sum() for v in {X}])", "torch.stack([v.sum() for v in {X}]).softmax(0)", "torch.stack([v.sum() for v in {X}]).max()", "torch.cat([v.tanh() for v in {X}]).sum()", "len({X}) * {f}",
        "torch.stack([v + {v} for v in {X}]).var(0, correction=0)", "torch.stack([v + {v} for v in {X}]).flip(0)[0]", "torch.stack([v + {v} for v in {X}]).log_softmax(0).sum()", "F.softmax(torch.stack([v * {v} for v in {X}]), -1).sum(0)",
        "torch.stack([v + {v} for v in {X}])[-1]", "torch.stack([v + {v} for v in {X}])[{K} % len({X})]", "torch.stack([v + {v} for v in {X}]).argmax(0)", "torch.stack([v + {v} for v in {X}]).prod(0)", "torch.stack([v + {v} for v in {X}]) * {v}",
        "torch.stack([v.sum() for v in {X}]).argmax()", "torch.stack([v + {v} for v in {X}]).min(0).values", "torch.stack([v + {v} for v in {X}]).mean()", "(torch.stack([v + {v} for v in {X}]) > 0).sum(0)", "torch.stack([v + {v} for v in {X}]).reshape(-1).sum()",
    ),
    "functions": ("Scaled.apply({f}, 2.0)", "Clipped.apply({f})", "Scaled.apply({f}, 2.0) + {0}"),
    "in place": (
        "{f}.add_({s})", "{f}.mul_({n})", "F.relu({f}, inplace=True)", "{f}[{k}] = {n}", "{f}.copy_({s})", "{F}[0].mul_(2)", "{f}.clamp_(-1, 1)", "{f}.zero_()", "{F}.view(-1).add_(1)", "{F}.t_()", "torch.relu_({f})", "{F}[0] += 1",
        "{f}.requires_grad_(False)", "{F}.squeeze_()", "torch.add({f}, {s}, out={f})", "{F}.fill_diagonal_(0)", "{F}.index_fill_(0, torch.tensor([0]), 1.0)",
    ),
    "fresh writes": (
        "{t0} = torch.zeros(3); {t0}[0] = {n}", "{t0} = torch.zeros(3); {t0}[1] = {f}.sum()", "{t0} = torch.ones(3); {t0} += {v}", "{t0} = torch.zeros(3); {t0}.add_({v})", "{t0} = torch.zeros(()); {t0} += {f}.sum()",
        "{t0} = {f}.clone(); {t0}.mul_(2)", "{t0} = {f}.detach().clone(); {t0} += 1", "{t0} = torch.zeros_like({f}); {t0} += {0}", "{t0} = torch.zeros_like({v}); {t0}[0] = 1.0", "{t0} = torch.empty(3); {t0}.copy_({v})", "{t0} = torch.ones(3); {t0}[:2].mul_({n})",
        "{t0} = torch.zeros(3); {t0}[0] = {n}; {t0} = {t0} * {v}",
    ),
    "rebinding": ("{f} += {s}", "{f} -= {n}", "{f} *= {s}", "{f} /= {N}", "{i} += 1"),
    "kept": ("kept.append({v}); {t0} = kept[0] + {0}", "kept.append({f}); {t0} = {f} * len(kept)", "kept.append({v}); {t0} = kept[-1] * kept[0].sum()", "kept.append({v}); {t0} = sum(k.sum() for k in kept)"),
    "constants": ("torch.equal({f}, {s})", "torch.is_nonzero({f}.sum())", "torch.allclose({f}, {s})", "torch.is_tensor({f})", "torch.is_floating_point({f})", "{f}.is_contiguous()", "{f}.requires_grad", "{f}.dtype == torch.float64", "{f}.ndim", "{f}.size(0)", "tuple({f}.shape)", "{f}.is_leaf"),
    "reading": ("float({f}.sum())", "{f}.sum().item()", "{f}.tolist()", "bool({f}.sum() > 0)", "int({i}.sum())", "{f} if {0}.sum() > 0 else -{0}"),
    "hooks": ("{f}.register_hook(lambda g: g * 2)", "{f}.retain_grad()"),
    "infinite": ("{f} + float('inf')", "{f} * float('-inf')", "{f} / 0", "({f} * 0).log()", "{f}.masked_fill({b}, float('-inf'))", "F.softmax({F}.masked_fill({0} > 0, float('-inf')), -1)", "torch.where({b}, {f}, float('nan'))", "({f} - {0}).sqrt()", "{f} * -0.0", "{f}.clamp(max=float('inf'))", "torch.nan_to_num({f} / 0)", "{f}.abs().log()"),
    "modules in line": ("nn.ReLU()({f})", "nn.Identity()({f})", "nn.Softmax(-1)({F})", "nn.Flatten(0)({F})", "nn.LayerNorm({F}.shape[-1])({0})", "nn.ReLU(inplace=True)({f})", "nn.Dropout(0.5).eval()({f})"),
}  # fmt: skip
