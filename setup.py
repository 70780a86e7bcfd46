"""The parts in C. Without a compiler the package is installed without them: recording and launches then take longer."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("edbatch._inside", ["src/edbatch/_inside.c"], optional=True),
        Extension("edbatch.frontend._calls", ["src/edbatch/frontend/_calls.c"], optional=True),
        Extension("edbatch.cells._blas", ["src/edbatch/cells/_blas.c"], optional=True),
    ]
)
