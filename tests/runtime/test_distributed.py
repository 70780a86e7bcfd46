"""DistributedDataParallel: ranks whose graphs differ train like one process on the joint mini-batch."""

import os
import random
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import edbatch
import zoo

TREES = [
    zoo.random_tree(random.Random(seed), size) for seed, size in enumerate([1, 1, 1, 1, 7, 6, 5, 4])
]  # rank 0 has only leaves


def losses(outputs):
    return (outputs**2).sum(1)


def worker(rank: int, folder: str, path: list[str]) -> None:
    sys.path[:] = path
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = zoo.BinaryTreeLSTM().double()
    ddp = torch.nn.parallel.DistributedDataParallel(edbatch.batch(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        losses(ddp(TREES[4 * rank : 4 * rank + 4])).mean().backward()
        optimizer.step()
    if rank == 0:
        torch.save(model.state_dict(), f"{folder}/model.pt")
    dist.barrier()
    dist.destroy_process_group()
    # Gloo's threads outlive their group; one that asks for the interpreter while that shuts down aborts the process.
    os._exit(0)


def test_two_ranks_equal_one_process(tmp_path):
    mp.spawn(worker, args=(str(tmp_path), sys.path), nprocs=2)
    torch.manual_seed(0)
    model = zoo.BinaryTreeLSTM().double()
    batched = edbatch.batch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        losses(batched(TREES)).mean().backward()
        optimizer.step()
    for name, value in torch.load(tmp_path / "model.pt").items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-9, atol=1e-12)
