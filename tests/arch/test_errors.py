"""One exception class per error code, and both travel between processes."""

from __future__ import annotations

import pickle

import pytest

from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError, exception_for

REAL_CODES = [code for code in ErrorCode if code is not ErrorCode.NONE]


def subclasses(base: type[OncelogError]) -> list[type[OncelogError]]:
    """Every class below ``base`` that ``exceptions.py`` defines."""
    return [
        found
        for child in base.__subclasses__()
        if child.__module__ == OncelogError.__module__
        for found in (child, *subclasses(child))
    ]


def test_every_code_survives_pickling_as_itself():
    assert [pickle.loads(pickle.dumps(code)) for code in ErrorCode] == list(ErrorCode)
    assert all(pickle.loads(pickle.dumps(code)) is code for code in ErrorCode)


def test_every_code_but_none_has_exactly_one_class_of_its_own():
    owned = [vars(kind)["code"] for kind in subclasses(OncelogError) if "code" in vars(kind)]
    assert sorted(owned) == sorted(REAL_CODES)


def test_every_exception_survives_pickling_with_what_it_says():
    for kind in subclasses(OncelogError):
        error = kind("what happened", advice="what to do")
        copied = pickle.loads(pickle.dumps(error))
        assert (type(copied), str(copied)) == (kind, "what happened; what to do")
        assert (copied.what, copied.advice, copied.code) == (
            "what happened",
            "what to do",
            kind.code,
        )


def test_an_exception_without_words_has_those_of_its_class():
    for kind in subclasses(OncelogError):
        error = kind()
        assert error.what
        assert str(error) == (f"{error.what}; {kind.advice}" if kind.advice else error.what)


def test_every_code_becomes_an_exception_of_its_code_and_class():
    for code in REAL_CODES:
        error = exception_for(code, "text")
        told = (error.code, error.retriable, error.abortable, error.fatal)
        kind = code.error_class.name
        assert told == (code, kind == "RETRIABLE", kind == "ABORTABLE", kind == "FATAL")


def test_no_error_has_no_exception():
    with pytest.raises(KeyError):
        exception_for(ErrorCode.NONE)
