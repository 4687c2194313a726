"""Filters over the properties of messages, in the subset of SQL92 that RocketMQ supports.

::

    expression  term OR term …          term       factor AND factor …
    factor      NOT factor | predicate  predicate  operand [comparison | BETWEEN | IN | IS | …]
    operand     property, 'text', number, TRUE, FALSE, NULL, or an expression in parentheses

Values of properties are text. Compared with a number they are converted to its type, as by Java's
``Integer``, ``Long`` and ``Double``: ``a > 4`` compares whole numbers of 32 bits, and does not
match ``4.5``; ``a > 4.0`` compares all numbers. Two properties are ordered as ``Double``. A
comparison with a missing property, or of values that cannot be compared, is neither true nor false.
A message matches only if the expression is true. Text can be compared for equality only. CONTAINS,
STARTSWITH and ENDSWITH were added in RocketMQ 5.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import inf
from typing import NoReturn

from firetrail.errors import FormatError
from firetrail.format.values.integers import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, number_in
from firetrail.format.values.truths import is_true

Value = str | int | float | bool | None
Evaluate = Callable[[Mapping[str, str]], Value]

DEPTH_MAX = 64
LENGTH_MAX = 8192
TERMS_MAX = 128
"""Maximum number of predicates in an expression. A list after IN counts as one."""
DIGITS_MAX = 40
"""Maximum length of a number."""
PARSED_MAX = 256
"""Maximum number of cached filters: at most about 80 MiB."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:[lL]|(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)|\.[0-9]+(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<text>'(?:[^']|'')*')"
    r"|(?P<name>[A-Za-z_$][A-Za-z0-9_$.]*)"
    r"|(?P<sign><>|!=|>=|<=|=|>|<|\(|\)|,|-|\+))"
)
_DOUBLE = re.compile(
    r"[\0- ]*([+-]?(?:Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))"
    r"[fFdD]?[\0- ]*"
)
"""The texts that ``Double.valueOf`` takes, but for NaN and hexadecimal digits."""
_ORDER: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_PARTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda text, part: part in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_WORDS = {"AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE", *_PARTS}


class SqlFilter:
    """A parsed expression."""

    __slots__ = ("_evaluate", "terms", "text")

    def __init__(self, text: str, evaluate: Evaluate, terms: int) -> None:
        self.text = text
        self.terms = terms
        """The number of its predicates."""
        self._evaluate = evaluate

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these properties matches."""
        return self._evaluate(properties) is True


@lru_cache(maxsize=PARSED_MAX)
def parse(text: str) -> SqlFilter:
    """Return the filter; raise FormatError with the position of a mistake."""
    if len(text) > LENGTH_MAX:
        raise FormatError("SQL92 filter", LENGTH_MAX, f"is longer than {LENGTH_MAX} characters")
    parser = _Parser(text)
    return SqlFilter(text, parser.whole(), parser.terms)


class _Parser:
    """A recursive descent parser. Every method leaves it after the tokens that it has read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0
        self.terms = 0
        self._end = 0
        self._advance()

    # -- tokens -------------------------------------------------------------------------------

    def _advance(self) -> None:
        self._at = self._end
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            if self._text[self._at :].strip():
                self._fail("has an unknown token")
            self._kind, self._token = "end", ""
            return
        self._kind = str(match.lastgroup)
        self._token = match[self._kind]
        if self._kind == "name" and self._token.upper() in _WORDS:
            self._kind, self._token = "word", self._token.upper()
        self._end = match.end()

    def _take(self, *tokens: str) -> str | None:
        """Read and return the next token if it is one of these words or signs, else None."""
        if self._kind in ("word", "sign") and self._token in tokens:
            token = self._token
            self._advance()
            return token
        return None

    def _need(self, token: str) -> None:
        if self._take(token) is None:
            self._fail(f"{token} is expected")

    def _fail(self, detail: str) -> NoReturn:
        raise FormatError("SQL92 filter", self._at, f"{detail}: {self._text!r:.200}")

    # -- grammar ------------------------------------------------------------------------------

    def whole(self) -> Evaluate:
        found = self._either()
        if self._kind != "end":
            self._fail("has further text after its end")
        return found

    def _either(self) -> Evaluate:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(f"is nested deeper than {DEPTH_MAX} levels")
        terms = [self._both()]
        while self._take("OR"):
            terms.append(self._both())
        self._depth -= 1
        return terms[0] if len(terms) == 1 else _any_of(terms)

    def _both(self) -> Evaluate:
        factors = [self._not()]
        while self._take("AND"):
            factors.append(self._not())
        return factors[0] if len(factors) == 1 else _all_of(factors)

    def _not(self) -> Evaluate:
        negations = 0
        while self._take("NOT"):
            negations += 1
        found = self._predicate()
        return _negated(found) if negations % 2 else found

    def _predicate(self) -> Evaluate:
        self.terms += 1
        if self.terms > TERMS_MAX:
            self._fail(f"has more than {TERMS_MAX} predicates")
        left = self._operand()
        sign = self._take("=", "<>", "!=", *_ORDER)
        if sign is not None:
            return _comparison(sign, left, self._ordered(sign))
        if self._take("IS"):
            negated = self._take("NOT")
            self._need("NULL")
            return _negated_if(negated, lambda p: left(p) is None)
        negated = self._take("NOT")
        if self._take("BETWEEN"):
            low = self._operand()
            self._need("AND")
            high = self._operand()
            between = _all_of([_comparison(">=", left, low), _comparison("<=", left, high)])
            return _negated_if(negated, between)
        if self._take("IN"):
            return _negated_if(negated, self._list(left))
        part = self._take(*_PARTS)
        if part is not None:
            if self._kind != "text":
                self._fail(f"{part} needs a text in quotes")
            return _negated_if(negated, _part_test(_PARTS[part], left, self._operand()))
        if negated:
            self._fail("BETWEEN, IN or CONTAINS is expected after NOT")
        return left

    def _ordered(self, sign: str) -> Evaluate:
        if sign in _ORDER and (self._kind == "text" or self._token in ("TRUE", "FALSE")):
            self._fail(f"{sign} compares only numbers")
        return self._operand()

    def _list(self, left: Evaluate) -> Evaluate:
        self._need("(")
        found = set()
        while True:
            if self._kind != "text":
                self._fail("IN needs texts in quotes")
            found.add(_unquoted(self._token))
            self._advance()
            if not self._take(","):
                break
        self._need(")")

        def evaluate(properties: Mapping[str, str]) -> Value:
            value = left(properties)
            return None if value is None else value in found

        return evaluate

    def _operand(self) -> Evaluate:
        if self._take("("):
            found = self._either()
            self._need(")")
            return found
        if self._take("-"):
            return _constant(-self._number())
        if self._take("+"):
            return _constant(self._number())
        if self._kind == "number":
            return _constant(self._number())
        if self._kind == "text":
            return _constant(_unquoted(self._read()))
        if self._kind == "name":
            name = self._read()
            return lambda properties: properties.get(name)
        word = self._take("TRUE", "FALSE", "NULL")
        if word is None:
            self._fail("a property or a value is expected")
        return _constant({"TRUE": True, "FALSE": False}.get(word))

    def _number(self) -> int | float:
        if self._kind != "number":
            self._fail("a number is expected")
        if len(self._token) > DIGITS_MAX:
            self._fail(f"has a number of more than {DIGITS_MAX} characters")
        token = self._token.rstrip("lL")
        number = number_in(token) if token.isdigit() else float(token)
        if number is None or number == inf:
            self._fail("has a number that is too large")
        self._read()
        return number

    def _read(self) -> str:
        token = self._token
        self._advance()
        return token


# -- evaluation -------------------------------------------------------------------------------


def _unquoted(token: str) -> str:
    return token[1:-1].replace("''", "'")


def _constant(value: Value) -> Evaluate:
    return lambda properties: value


def _negated(found: Evaluate) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        value = _truth(found(properties))
        return None if value is None else not value

    return evaluate


def _negated_if(negated: str | None, found: Evaluate) -> Evaluate:
    return _negated(found) if negated else found


def _truth(value: Value) -> bool | None:
    """Return a value as a truth value: text and numbers are false."""
    return value if value is None or isinstance(value, bool) else False


def _as_truth(value: str | int | float | bool) -> bool | None:
    """Return a value to compare with a truth value: a property has one as text."""
    if isinstance(value, str):
        return is_true(value)
    return value if isinstance(value, bool) else None


def _any_of(terms: list[Evaluate]) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        result: bool | None = False
        for term in terms:
            value = _truth(term(properties))
            if value:
                return True
            if value is None:
                result = None
        return result

    return evaluate


def _all_of(factors: list[Evaluate]) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        result: bool | None = True
        for factor in factors:
            value = _truth(factor(properties))
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return evaluate


def _comparison(sign: str, left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        one, other = left(properties), right(properties)
        if one is None or other is None:
            return None
        if sign in _ORDER:
            first, second = _number(one, other), _number(other, one)
            return None if first is None or second is None else _ORDER[sign](first, second)
        equal = _equal(one, other)
        return None if equal is None else equal is (sign == "=")

    return evaluate


def _equal(one: str | int | float | bool, other: str | int | float | bool) -> bool | None:
    if isinstance(one, bool) or isinstance(other, bool):
        first, second = _as_truth(one), _as_truth(other)
        return None if first is None or second is None else first is second
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    number, another = _number(one, other), _number(other, one)
    return None if number is None or another is None else number == another


def _number(value: str | int | float | bool, other: str | int | float | bool) -> float | None:
    """Return a value as a number to compare with another one; None if it is not such a number."""
    if isinstance(value, bool):
        return None
    if not isinstance(value, str):
        return value
    if isinstance(other, int):
        is_int = INT32_MIN <= other <= INT32_MAX
        return number_in(value, *((INT32_MIN, INT32_MAX) if is_int else (INT64_MIN, INT64_MAX)))
    double = _DOUBLE.fullmatch(value)
    return None if double is None else float(double[1])


def _part_test(test: Callable[[str, str], bool], left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        text, part = left(properties), right(properties)
        if not isinstance(text, str) or not isinstance(part, str):
            return None
        return test(text, part)

    return evaluate
