"""What we use of dynamo, the part of torch.compile that looks at every Python frame.

Nothing here imports dynamo, because that takes seconds; `stance` and `set_stance` may be called only after somebody
else has. Dynamo must not trace our own calls of these functions: they are in C, or are called while it does not look at
frames.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch

MODULE = "torch._dynamo"  # if this is in sys.modules, something may be compiled
_frames: Any = torch._C._dynamo.eval_frame
# Sets the callback that looks at frames (None during a batched call) and returns the one before. We never only ask for
# it: the function for that loses references in torch 2.6.
set_frame_callback: Any = _frames.set_eval_frame


def skip_frames_of(code: CodeType) -> None:
    """Tell dynamo not to look at frames of this code: by `skip_code` in torch 2.6, by a strategy in 2.13."""
    if hasattr(_frames, "skip_code"):
        _frames.skip_code(code)
    else:
        action = _frames._FrameAction
        _frames.set_code_exec_strategy(code, _frames._FrameExecStrategy(action.SKIP, action.DEFAULT))


def stance() -> Any:
    """What torch.compiler.set_stance has set, for all threads; torch has no public function that tells."""
    return torch._dynamo.eval_frame._stance


def set_stance(wanted: Any) -> None:
    """Set a stance, given by its name or as `stance` returned it.

    Not by torch.compiler.set_stance: in torch 2.6 it asks for the frame callback, which loses references.
    """
    made = torch._dynamo.eval_frame.DynamoStance(wanted) if isinstance(wanted, str) else wanted
    torch._dynamo.eval_frame._stance = made


def keep_out(function: Any, why: str) -> None:
    """Let compiled code stop at a call of this function, and go on after it. torch.compiler.disable imports dynamo."""
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = why
