"""One exception class per error code."""

from __future__ import annotations

import pickle

import pytest

from oncelog.storage.errors import ErrorClass, ErrorCode
from oncelog.storage.exceptions import (
    EXCEPTIONS,
    CorruptDataError,
    InvalidSettingError,
    OncelogError,
    exception_for,
)

FAILURES = [code for code in ErrorCode if code is not ErrorCode.NONE]


def test_every_code_but_none_has_its_own_exception() -> None:
    assert set(EXCEPTIONS) == set(FAILURES)
    assert len(set(EXCEPTIONS.values())) == len(FAILURES)


@pytest.mark.parametrize("code", FAILURES)
def test_exception_without_message_gives_its_advice(code: ErrorCode) -> None:
    error = exception_for(code)
    assert error.code is code
    assert error.what == (type(error).__doc__ or "").rstrip(".")
    assert error.advice == type(error).advice
    assert str(error) == "; ".join(filter(None, (error.what, error.advice)))


@pytest.mark.parametrize("code", FAILURES)
def test_exception_keeps_message_and_type_through_pickle(code: ErrorCode) -> None:
    copy = pickle.loads(pickle.dumps(exception_for(code, "flights-3 is gone")))
    assert type(copy) is EXCEPTIONS[code]
    assert str(copy) == "flights-3 is gone"


@pytest.mark.parametrize("code", FAILURES)
def test_exception_says_what_the_class_of_its_code_says(code: ErrorCode) -> None:
    error = exception_for(code)
    assert error.retriable == (code.error_class is ErrorClass.RETRIABLE)
    assert error.abortable == (code.error_class is ErrorClass.ABORTABLE)
    assert error.fatal == (code.error_class is ErrorClass.FATAL)


def test_no_error_has_no_exception() -> None:
    with pytest.raises(KeyError):
        exception_for(ErrorCode.NONE)


def test_invalid_setting_is_a_value_error_too() -> None:
    assert issubclass(InvalidSettingError, ValueError)
    assert issubclass(InvalidSettingError, OncelogError)


def test_corrupt_data_maps_to_corrupt_message() -> None:
    assert CorruptDataError("segment 7").code is ErrorCode.CORRUPT_MESSAGE
