"""Rules for the arguments of models: what each may be, checked before anything is built or trained."""

import difflib
import inspect
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """What an argument may be.

    Attributes:
        allowed: in words, for the message.
        fits: says whether a value is allowed; must bear any value.
    """

    allowed: str
    fits: Callable[[object], bool]


def check(arguments: dict[str, object], rules: dict[str, Rule]) -> None:
    """Refuse the first argument that breaks its rule.

    Raises:
        ValueError: names the argument, its value and what is allowed.
    """
    for name, value in arguments.items():
        if name in rules and not rules[name].fits(value):
            raise ValueError(f"{name}={value!r}: {rules[name].allowed}")


def check_used(model: object, needs: dict[str, tuple[bool, str]]) -> None:
    """Refuse the first argument that has no effect beside the others; its default may stand there.

    Args:
        model: with its arguments.
        needs: for some arguments whether what they need is there, and what that is, in words.

    Raises:
        ValueError: names the argument, its value and what it needs.
    """
    parameters = inspect.signature(type(model).__init__).parameters
    for name, (met, needed) in needs.items():
        value, default = model.arguments[name], plain(parameters[name].default)
        if not met and value != default:
            raise ValueError(f"{name}={value!r} has no effect here, as it needs {needed}; leave one out, or give both")


def check_names(model: type, given: Iterable[str]) -> None:
    """Refuse the first keyword argument that a model does not have.

    Raises:
        TypeError: names the argument, where it belongs or what is near, and those that the model has.
    """
    if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(model.__init__).parameters.values()):
        return
    known = _names(model.__init__)
    for name in given:
        if name not in known:
            _refuse_name(model.__name__, name, known, {"prepare_data": _prepare_names(), "fit": _fit_names(model)})


def check_fit_names(model: type, given: Iterable[str]) -> None:
    """Refuse the first keyword argument that a model's `fit` does not have, as `check_names` does."""
    known = _fit_names(model)
    for name in given:
        if name not in known:
            elsewhere = {"prepare_data": _prepare_names(), model.__name__: _names(model.__init__)}
            _refuse_name("fit", name, known, elsewhere)


def _names(*functions: Callable) -> list[str]:
    parameters = [p for function in functions for p in inspect.signature(function).parameters.values()]
    return [p.name for p in parameters if p.name not in ("self", "data", "model") and p.kind is not p.VAR_KEYWORD]


def _prepare_names() -> list[str]:
    from accel_geo.prepare import prepare_data

    return _names(prepare_data)


def _fit_names(model: type) -> list[str]:
    from accel_geo.engine import loop

    return list(dict.fromkeys(_names(model.fit, loop.fit)))


def _refuse_name(who: str, name: str, known: list[str], elsewhere: dict[str, list[str]]) -> None:
    hint = "".join(f"; it is one of {other}" for other, names in elsewhere.items() if name in names)
    if not hint and (near := difflib.get_close_matches(name, known, n=1, cutoff=0.65)):
        hint = f"; the nearest is {near[0]}"
    raise TypeError(f"{who} has no argument {name}{hint}. Its arguments are {', '.join(known)}")


def plain(value: object) -> object:
    """Return numbers and arrays of numpy and torch, and tuples, as the numbers and lists that JSON has."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list | tuple | range) else value


def one_of(*names: str) -> Rule:
    """Return the rule for one of some names."""
    return Rule(f"one of {', '.join(names)}", lambda value: value in names)


def whole(least: int, most: int | None = None) -> Rule:
    """Return the rule for a whole number from `least` up to `most`."""
    limit = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"
    return Rule(limit, lambda value: type(value) is int and least <= value <= (value if most is None else most))


def number(allowed: str, inside: Callable[[float], bool]) -> Rule:
    """Return the rule for a finite number that lies inside some bounds."""
    return Rule(allowed, lambda value: type(value) in (int, float) and math.isfinite(value) and inside(value))


def list_of(rule: Rule, allowed: str, count: int | None = None) -> Rule:
    """Return the rule for a list of `count`, or of at least one, of what another rule allows."""

    def fits(value: object) -> bool:
        return isinstance(value, list) and len(value) == (count or max(len(value), 1)) and all(map(rule.fits, value))

    return Rule(allowed, fits)


def or_none(rule: Rule) -> Rule:
    """Return the rule that also allows None."""
    return Rule(f"{rule.allowed}, or None", lambda value: value is None or rule.fits(value))


FLAG = Rule("True or False", lambda value: type(value) is bool)
NAME = Rule("a name such as 'resnet34', see backbones()", lambda value: isinstance(value, str) and value != "")
PATH = Rule("the path of a file", lambda value: isinstance(value, str | os.PathLike) and str(value) != "")
SIZE = Rule("'full' or 'small'", lambda value: value in ("full", "small"))
SHARE = number("a number from 0 to 1", lambda x: 0 <= x <= 1)
POSITIVE = number("a number above 0", lambda x: x > 0)
NOT_NEGATIVE = number("a number of at least 0", lambda x: x >= 0)
