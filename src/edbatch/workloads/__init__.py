"""Workloads: models of `edbatch.models` on data of `edbatch.datasets`, by name, for the command line and benchmarks.

In: the name of a workload. Out: its model, its data, training and checkpoints. `report` and `bench` import it.
"""

from edbatch.workloads.registry import WORKLOADS, Workload, WorkloadError, find

__all__ = ["WORKLOADS", "Workload", "WorkloadError", "find"]
