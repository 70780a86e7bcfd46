"""Workloads: models of `edbatch.models` on data of `edbatch.datasets`, by name, for the command line and benchmarks."""

from edbatch.workloads.registry import WORKLOADS, Workload, WorkloadError, find

__all__ = ["WORKLOADS", "Workload", "WorkloadError", "find"]
