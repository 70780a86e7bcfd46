"""Values that tests record functions of."""

import torch
from torch import nn

X = torch.randn(4, 6, dtype=torch.float64)
Y = torch.rand(4, 6, dtype=torch.float64) + 0.5
W = nn.Parameter(torch.randn(6, 6, dtype=torch.float64))
