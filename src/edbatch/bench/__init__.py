"""Measurements: contenders side by side in one process, medians and quartiles, machine facts beside every number."""
