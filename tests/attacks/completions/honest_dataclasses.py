from dataclasses import dataclass, field
from enum import Enum, IntEnum
@dataclass(order=True)
class P:
    x: int
    y: int = 0
    tags: list = field(default_factory=list)
    @property
    def norm(self): return (self.x ** 2 + self.y ** 2) ** 0.5
class Color(Enum): RED = 1; BLUE = 2
class Level(IntEnum): LOW = 1; HIGH = 2
def flip(c): return Color.BLUE if c is Color.RED else Color.RED
