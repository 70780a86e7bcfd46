import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("edbatch", deadline=None, derandomize=True)  # the first example may compile kernels
settings.load_profile("edbatch")
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
