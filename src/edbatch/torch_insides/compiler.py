"""Dynamo, which sees every Python frame. Nothing here imports it, which takes seconds; `stance` needs it imported.

What dynamo could see being called is in C, or a function that is called while it does not look."""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch

MODULE = "torch._dynamo"  # in sys.modules: something may be compiled
_frames: Any = torch._C._dynamo.eval_frame
get_frame_callback: Any = _frames.get_eval_frame_callback  # what looks at frames, as it must be again after a call
set_frame_callback: Any = _frames.set_eval_frame  # None: nothing looks at the frames of a recording


def skip_frames_of(code: CodeType) -> None:
    """Dynamo is not to look at frames of this code. Torch 2.7 has `skip_code`; before, a strategy says so."""
    if hasattr(_frames, "skip_code"):
        _frames.skip_code(code)
    else:
        action = _frames._FrameAction
        _frames.set_code_exec_strategy(code, _frames._FrameExecStrategy(action.SKIP, action.DEFAULT))


def stance() -> Any:
    """What torch.compiler.set_stance has set, in all threads; torch offers no way to ask."""
    return torch._dynamo.eval_frame._stance


def put_back_stance(before: Any) -> None:
    """As `stance` was."""
    torch._dynamo.eval_frame._stance = before


def keep_out(function: Any, why: str) -> None:
    """Code that calls a function is compiled up to here, and from here on; torch.compiler.disable imports dynamo."""
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = why
