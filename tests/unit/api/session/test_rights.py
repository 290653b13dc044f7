from __future__ import annotations

import pytest

from oncelog.api.session.rights import ADVICE, needing
from oncelog.storage.exceptions import (
    RequestTimedOutError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
    TransactionAbortableError,
)


def test_a_call_that_is_refused_says_what_it_takes() -> None:
    with pytest.raises(TopicAuthorizationFailedError) as raised, needing(topic="Read on topic 't'"):
        raise TopicAuthorizationFailedError("User:bob may not call 'fetch'")
    assert str(raised.value) == (
        "User:bob may not call 'fetch': it takes Read on topic 't'; ask an operator for an ACL"
    )


def test_the_advice_is_given_once() -> None:
    """A failed look-up is a reply that has the whole text of its error."""
    whole = str(TopicAuthorizationFailedError("may not Describe topic 't'", advice=ADVICE))
    with pytest.raises(TopicAuthorizationFailedError) as raised, needing(topic="Read on topic 't'"):
        raise TopicAuthorizationFailedError(whole)
    assert str(raised.value) == (
        "may not Describe topic 't': it takes Read on topic 't'; ask an operator for an ACL"
    )


def test_a_right_that_nobody_names_leaves_the_error_as_it_is() -> None:
    refusal = TopicAuthorizationFailedError("User:bob may not call 'fetch'")
    with pytest.raises(TopicAuthorizationFailedError) as raised, needing(group="Read on group 'g'"):
        raise refusal
    assert raised.value is refusal


def test_a_refusal_is_raised_instead_of_what_it_has_spoilt() -> None:
    refusal = SaslAuthenticationFailedError()
    with pytest.raises(SaslAuthenticationFailedError) as raised, needing():
        raise TransactionAbortableError("the transaction has failed") from refusal
    assert raised.value is refusal


def test_other_errors_pass() -> None:
    with pytest.raises(RequestTimedOutError, match=r"^slow$"), needing(topic="Read on topic 't'"):
        raise RequestTimedOutError("slow")
