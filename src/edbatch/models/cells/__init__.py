"""Cells that several models have in common."""
