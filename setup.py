"""The parts in C. Without a compiler the package is installed without them: recording and launches then take longer."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("edbatch.torch_state._inside", ["src/edbatch/torch_state/_inside.c"], optional=True),
        Extension(
            "edbatch.recording._calls",
            ["src/edbatch/recording/_calls.c"],
            depends=["src/edbatch/recording/_operations.h"],
            optional=True,
        ),
        Extension("edbatch.cells.fused.library._blas", ["src/edbatch/cells/fused/library/_blas.c"], optional=True),
    ]
)
