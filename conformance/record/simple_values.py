"""Conversion of dataclasses to plain data for JSON, and back.

Defines `dump` and `load`. A field's annotation and default determine both how to write it and how to read it, so the
two cannot diverge. This module must not import torch.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints


def dump(value: Any) -> Any:
    """Convert a dataclass to a dictionary, a tuple to a list, and a mapping with tuple keys to nested sorted mappings.
    Fields with their default value are omitted, except those named in the class's `WRITTEN`. A class with a `RECORD`,
    one of its base classes, is written as that one."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = getattr(value, "RECORD", type(value))
        held = ((name, getattr(value, name), usual) for name, usual in _defaults(kind))
        written = getattr(value, "WRITTEN", ())
        return {name: dump(item) for name, item, usual in held if item != usual or name in written}
    if isinstance(value, Mapping):
        data: dict[str, Any] = {}
        for key, item in sorted(value.items()) if any(isinstance(key, tuple) for key in value) else value.items():
            *outer, last = key if isinstance(key, tuple) else (key,)
            functools.reduce(lambda inner, name: inner.setdefault(name, {}), outer, data)[last] = dump(item)
        return data
    return list(map(dump, value)) if isinstance(value, (list, tuple)) else value


def load(kind: Any, data: Any, name: str = "the data") -> Any:
    """The inverse of `dump`, for a dataclass or another annotation. Raises KeyError, TypeError or ValueError if the
    data does not match `kind`. `name` is the field's name, for errors."""
    origin, args = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return data
    if origin is types.UnionType:
        return None if data is None else load(args[0], data, name)
    if dataclasses.is_dataclass(kind):
        hints = _hints(origin)
        return origin(**{key: load(hints[key], item, key) for key, item in _checked(dict, data, name).items()})
    if issubclass(origin, enum.StrEnum):
        return origin(data)
    if args and issubclass(origin, Mapping):
        entries: list[tuple[tuple[str, ...], Any]] = [
            ((key,), item) for key, item in _checked(dict, data, name).items()
        ]
        deep = len(get_args(args[0]))
        for _ in range(deep - 1):
            entries = [
                ((*outer, key), item) for outer, inner in entries for key, item in load(dict, inner, name).items()
            ]
        return {(key if deep else key[0]): load(args[1], item, name) for key, item in entries}
    if args:  # a list or tuple
        _checked(list, data, name)
        kinds = args[:1] * len(data) if ... in args or origin is list else args
        return origin(load(item_type, item, name) for item_type, item in zip(kinds, data, strict=True))
    return _checked(origin, data, name)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


@functools.cache
def _defaults(kind: type) -> list[tuple[str, Any]]:
    fields = dataclasses.fields(kind)
    values = (f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default for f in fields)
    return list(zip((f.name for f in fields), values, strict=True))


def _checked(kind: type, data: Any, name: str) -> Any:
    if type(data) is not kind and not (kind is float and type(data) is int):
        raise TypeError(f"{name!r} is no {kind.__name__}")
    return data
