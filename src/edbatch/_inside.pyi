from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

def inside(contexts: tuple[Any, ...], function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T: ...

class Stay:
    def __init__(
        self,
        places: tuple[tuple[Any, str, Any, Any], ...],
        shortcuts: tuple[tuple[dict[str, Any], str, Any], ...] = ...,
    ) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: Any) -> None: ...
