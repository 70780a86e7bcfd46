"""Lazy values: they stand for tensors while examples are recorded, and know shape, dtype and device but no numbers.

Single values, stacks of any number of values, and sums that still grow; also what torch functions mean for stacks, and
what is refused. Imports `recording.types`.
"""
