"""
An index of the keys of all sections: which there are, and which file has the one that is typed so.
"""

import contextlib
import glob
import os
import typing
from typing import Any, NamedTuple

from system import sections


class Key(NamedTuple):
    """A key of a section."""

    section: type[sections.Section]
    field: str  # empty: the name of the file alone, with which the section is put in use or taken out

    @property
    def kind(self) -> str:
        """Return Keys if it is a key of a run, Shape if of its model."""
        return sections.kind_of(self.section)

    @property
    def written(self) -> str:
        """Return its class as in a config file: lora.Keys."""
        return f"{self.section.__module__.rpartition('.')[2]}.{self.section.__name__}"

    @property
    def type(self) -> Any:
        """Return the annotation of its value."""
        return typing.get_type_hints(self.section)[self.field] if self.field else bool


def names() -> list[str]:
    """List what keys may be typed with, without opening a file."""
    paths = glob.glob(os.path.join(sections.ROOT, "variants", "*.py"))
    return sorted({*sections.ELSEWHERE, *sections.FILE_OF, *(os.path.basename(path)[:-3] for path in paths)})


def file_of(name: str) -> str:
    """Return the file that a key is typed with: lora of lora.rank."""
    return name.removeprefix("model.").partition(".")[0]


def find_key(name: str) -> Key | None:
    """Find a key of a section by its name, as in lora.rank, in the one file that may have it; None: there is none."""
    file, dot, field = name.partition(".")
    for kind in sections.KINDS:
        section = sections.section_class(file, kind)
        if section and (field in sections.fields_of(section) or not dot):
            return Key(section, field)
    return None


def all_keys() -> dict[str, Key]:
    """Import all files with keys, used or not -> {name: Key}. Files that cannot be loaded are left out."""
    found: dict[str, Key] = {}
    for name in names():
        with contextlib.suppress(ValueError):
            for section in filter(None, (sections.section_class(name, kind) for kind in sections.KINDS)):
                found |= {f"{name}.{field}": Key(section, field) for field in sections.fields_of(section)}
                found.setdefault(name, Key(section, ""))
    return found


def default_of(name: str) -> Any:
    """Return the default of a key of a section, whose file is imported; None if there is no such key."""
    found = find_key(name)
    return found and (sections.fields_of(found.section)[found.field].default if found.field else True)
