"""Hypothesis without a deadline: the first example of a test may compile a kernel."""

from hypothesis import settings

settings.register_profile("compiling", deadline=None)
settings.load_profile("compiling")
