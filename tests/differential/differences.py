from collections.abc import Callable
from typing import TypeVar
F=TypeVar("F",bound=Callable[...,None])
def differs(*names:str)->Callable[[F],F]:
    def mark(f:F)->F:
        f.differs=names
        return f
    return mark
