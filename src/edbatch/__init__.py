"""edbatch: vmap for models whose computation differs per input.

Write a PyTorch model for ONE example, with ordinary recursion, loops and ifs; `edbatch.batch(model)` runs mini-
batches of different examples with few large kernels, forward and backward. One tree's way through the stages:

1. *Record.* The model runs on every example with lazy values. Each call of a cell (a marked module, or one of torch's
own) is one node; what is not marked and recurs, such as the last line of `encode`, is found and becomes one, too.

>>> import torch, edbatch
>>> leaf, node = torch.nn.Embedding(10, 4), torch.nn.Linear(8, 4)
>>> def encode(tree):
...     if isinstance(tree, int):
...         return leaf(tree)
...     return torch.tanh(node(torch.cat([encode(tree[0]), encode(tree[1])])))
>>> trees = [(1, (2, 3)), ((4, 5), (6, 7))]
>>> graph = edbatch.record(encode, trees)
>>> graph.num_nodes
12

2. *Schedule.* A policy decides which type to launch next; all ready nodes of that type run as one batch.

>>> schedule = edbatch.schedule(graph, edbatch.policies.BoundGreedy())
>>> schedule.num_batches, graph.lower_bound()
(3, 3)

3. *Plan* and *run*. Values are rows of arenas, every batch writes one range of rows, and operands are views or one
gather.

>>> batched = edbatch.batch(encode)
>>> values = batched(trees)
>>> values.shape, values.requires_grad
(torch.Size([2, 4]), True)
>>> edbatch.check(encode, trees)  # values and gradients equal one-by-one execution
"""

from edbatch import policies
from edbatch.batched import Batched, batch
from edbatch.checking import check, record
from edbatch.errors import EdbatchError
from edbatch.pq.tree import PQTree
from edbatch.recording.program.marking import cell
from edbatch.runtime.frozen import frozen
from edbatch.scheduling.graph import Graph
from edbatch.scheduling.learning import learn_policy
from edbatch.scheduling.policy_file import load_policy
from edbatch.scheduling.schedule import Schedule, schedule

__version__ = "0.1.0"
__all__ = [
    "Batched", "EdbatchError", "Graph", "PQTree", "Schedule", "batch", "cell", "check", "frozen", "learn_policy",
    "load_policy", "policies", "record", "schedule",
]  # fmt: skip
