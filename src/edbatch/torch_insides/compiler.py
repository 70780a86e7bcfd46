"""Dynamo, which sees every Python frame. Nothing here imports it, which takes seconds; `stance` needs it imported.

What dynamo could see being called is in C, or a function that is called while it does not look."""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch

MODULE = "torch._dynamo"  # in sys.modules: something may be compiled
_frames: Any = torch._C._dynamo.eval_frame
# What looks at frames: None during a call. It gives what did before; what torch 2.6 has for asking loses references.
set_frame_callback: Any = _frames.set_eval_frame


def skip_frames_of(code: CodeType) -> None:
    """Dynamo is not to look at frames of this code. Torch 2.6 has `skip_code`; in 2.13 a strategy says so."""
    if hasattr(_frames, "skip_code"):
        _frames.skip_code(code)
    else:
        action = _frames._FrameAction
        _frames.set_code_exec_strategy(code, _frames._FrameExecStrategy(action.SKIP, action.DEFAULT))


def stance() -> Any:
    """What torch.compiler.set_stance has set, in all threads; torch offers no way to ask."""
    return torch._dynamo.eval_frame._stance


def set_stance(wanted: Any) -> None:
    """As `stance` was, or by its name; torch.compiler.set_stance of torch 2.6 asks what looks at frames, see above."""
    made = torch._dynamo.eval_frame.DynamoStance(wanted) if isinstance(wanted, str) else wanted
    torch._dynamo.eval_frame._stance = made


def keep_out(function: Any, why: str) -> None:
    """Code that calls a function is compiled up to here, and from here on; torch.compiler.disable imports dynamo."""
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = why
