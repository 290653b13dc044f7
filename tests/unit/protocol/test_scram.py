"""SCRAM-SHA-256: the vectors of RFC 7677, scramp as the other side, and hostile peers."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import scramp
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oncelog.actors.protocol import scram
from oncelog.actors.protocol.scram import (
    ABSENT_SALT_BYTES,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MESSAGE_BYTES_MAX,
    NAME_CHARS_MAX,
    NONCE_CHARS_MAX,
    NONCE_CHARS_MIN,
    PASSWORD_CHARS_MAX,
    REFUSED_ANSWER,
    SALT_BYTES_MAX,
    SALT_BYTES_MIN,
    SECRET_BYTES_MIN,
    Credential,
    Refusal,
    ScramClient,
    ScramServer,
    ScramState,
    make_credential,
    prepare_name,
    prepare_password,
)

SALT = b"0123456789abcdef"
SECRET = b"s" * SECRET_BYTES_MIN
CLIENT_NONCE = "clientclientclient"
SERVER_NONCE = "serverserverserver"
CREDENTIAL = make_credential("pencil", SALT, ITERATIONS_MIN)

RFC_CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
RFC_SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
RFC_CREDENTIAL = make_credential(
    "pencil", bytes.fromhex("5b6d99689d12358eeca04b141236fa81"), ITERATIONS_MIN
)
RFC_MESSAGES = (
    b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)

FEW = settings(max_examples=40, deadline=None)
"""Each example computes keys, some of them several times."""


def client(
    *, name: str = "user", password: str = "pencil", nonce: str = CLIENT_NONCE
) -> ScramClient:
    return ScramClient(name=name, password=password, nonce=nonce)


def server(
    *,
    credentials: dict[str, Credential] | None = None,
    nonce: str = SERVER_NONCE,
    secret: bytes = SECRET,
) -> ScramServer:
    known = {"user": CREDENTIAL} if credentials is None else credentials
    return ScramServer(credentials=known, nonce=nonce, secret=secret)


def said(answer: bytes | Refusal) -> bytes:
    assert isinstance(answer, bytes), answer
    return answer


def converse(one: ScramClient, other: ScramServer) -> list[bytes | Refusal]:
    """What each side says in turn, up to the first refusal."""
    messages = [one.first()]
    for side in (other, one, other, one):
        if not isinstance(messages[-1], bytes):
            break
        messages.append(side.receive(messages[-1]))
    return messages


# --- both sides -------------------------------------------------------------------------------


def test_messages_are_those_of_rfc_7677() -> None:
    one = client(nonce=RFC_CLIENT_NONCE)
    other = server(credentials={"user": RFC_CREDENTIAL}, nonce=RFC_SERVER_NONCE)
    assert converse(one, other) == [*RFC_MESSAGES, b""]
    assert (one.state, other.state, other.name) == (ScramState.DONE, ScramState.DONE, "user")


def is_fit(prepare: Any, text: str) -> bool:
    try:
        prepare(text)
    except ValueError:
        return False
    return True


FIT = [char for char in map(chr, range(0x20, 0x590)) if is_fit(prepare_password, char)]
"""Characters that fit in any company: those written from right to left come later."""

names = passwords = st.text(FIT, min_size=1, max_size=30)


@FEW
@given(
    name=names | st.text("a=,23CD", min_size=1),
    password=passwords,
    salt=st.binary(min_size=SALT_BYTES_MIN, max_size=SALT_BYTES_MAX),
)
def test_any_name_and_password_are_known_again(name: str, password: str, salt: bytes) -> None:
    assume(is_fit(prepare_name, name) and is_fit(prepare_password, password))
    prepared = prepare_name(name)
    credential = make_credential(password, salt, ITERATIONS_MIN)
    other = server(credentials={prepared: credential})
    assert converse(client(name=name, password=password), other)[-1] == b""
    assert other.name == prepared


@FEW
@given(password=passwords)
def test_another_password_is_refused(password: str) -> None:
    assume(is_fit(prepare_password, password) and prepare_password(password) != b"pencil")
    other = server()
    assert converse(client(password=password), other)[-1] is Refusal.PROOF
    assert (other.state, other.name) == (ScramState.REFUSED, None)


@FEW
@given(place=st.integers(0, 3), data=st.data())
def test_one_changed_byte_of_any_message_is_refused(place: int, data: st.DataObject) -> None:
    message = RFC_MESSAGES[place]
    at = data.draw(st.integers(0, len(message) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != message[at]))
    one = client(nonce=RFC_CLIENT_NONCE)
    other = server(
        credentials={"user": RFC_CREDENTIAL, "uses": RFC_CREDENTIAL}, nonce=RFC_SERVER_NONCE
    )
    answer: bytes | Refusal = one.first()
    sides: tuple[ScramClient | ScramServer, ...] = (other, one, other, one)
    for number, side in enumerate(sides):
        given_message = said(answer)
        if number == place:
            given_message = message[:at] + bytes([byte]) + message[at + 1 :]
        answer = side.receive(given_message)
        if isinstance(answer, Refusal):
            break
    assert isinstance(answer, Refusal)
    assert one.state is not ScramState.DONE
    assert place == 3 or other.state is not ScramState.DONE


nonces = st.text(
    [chr(code) for code in range(0x21, 0x7F) if code != ord(",")],
    min_size=NONCE_CHARS_MIN,
    max_size=40,
)


@FEW
@given(nonce=nonces)
def test_replays_to_a_server_with_another_nonce_are_refused(nonce: str) -> None:
    assume(nonce != RFC_SERVER_NONCE)
    other = server(credentials={"user": RFC_CREDENTIAL}, nonce=nonce)
    said(other.receive(RFC_MESSAGES[0]))
    assert other.receive(RFC_MESSAGES[2]) is Refusal.NONCE


@FEW
@given(nonce=nonces)
def test_replays_to_a_client_with_another_nonce_are_refused(nonce: str) -> None:
    assume(not RFC_CLIENT_NONCE.startswith(nonce))
    one = client(nonce=nonce)
    one.first()
    assert one.receive(RFC_MESSAGES[1]) is Refusal.NONCE


# --- scramp -----------------------------------------------------------------------------------


@FEW
@given(name=st.text("aé=,2", min_size=1), password=st.text("aé=, \u00a0Ⅸ", min_size=1))
def test_our_client_logs_in_at_a_server_of_scramp(name: str, password: str) -> None:
    mechanism = scramp.ScramMechanism("SCRAM-SHA-256")
    info = mechanism.make_auth_info(password, iteration_count=ITERATIONS_MIN, salt=SALT)
    other = mechanism.make_server({prepare_name(name): info}.__getitem__, s_nonce=SERVER_NONCE)
    one = client(name=name, password=password)
    other.set_client_first(said(one.first()).decode())
    other.set_client_final(said(one.receive(other.get_server_first().encode())).decode())
    assert one.receive(other.get_server_final().encode()) == b""


@FEW
@given(name=st.text("aé=,2", min_size=1), password=st.text("aé=, \u00a0Ⅸ", min_size=1))
def test_a_client_of_scramp_logs_in_at_our_server(name: str, password: str) -> None:
    credential = make_credential(password, SALT, ITERATIONS_MIN)
    other = server(credentials={prepare_name(name): credential})
    one = scramp.ScramClient(["SCRAM-SHA-256"], name, password, c_nonce=CLIENT_NONCE)
    one.set_server_first(said(other.receive(one.get_client_first().encode())).decode())
    one.set_server_final(said(other.receive(one.get_client_final().encode())).decode())
    assert other.name == prepare_name(name)


def test_credentials_are_those_of_scramp() -> None:
    mechanism = scramp.ScramMechanism("SCRAM-SHA-256")
    salt, stored_key, server_key, iterations = mechanism.make_auth_info(
        "pencil", iteration_count=ITERATIONS_MIN, salt=SALT
    )
    assert (
        Credential(salt=salt, iterations=iterations, stored_key=stored_key, server_key=server_key)
        == CREDENTIAL
    )


# --- every state and event --------------------------------------------------------------------


def exchange_in(state: ScramState) -> tuple[ScramClient, ScramServer, list[bytes]]:
    """Both sides in ``state`` (a server never is in FINAL), and what they say from the start."""
    whole = [said(answer) for answer in converse(client(), server())]
    one, other = client(), server()
    steps = list(ScramState)[:4].index(state) if state is not ScramState.REFUSED else 0
    if state is ScramState.REFUSED:
        one.receive(b"")
        other.receive(b"")
    if steps >= 1:
        one.first()
        other.receive(whole[0])
    if steps >= 2:
        one.receive(whole[1])
    if steps >= 3:
        one.receive(whole[3])
        other.receive(whole[2])
    return one, other, whole


CLIENT_MOVES = {
    (ScramState.START, "first"): ScramState.FIRST,
    (ScramState.FIRST, 1): ScramState.FINAL,
    (ScramState.FINAL, 3): ScramState.DONE,
}
SERVER_MOVES: dict[tuple[ScramState, str | int], ScramState] = {
    (ScramState.START, 0): ScramState.FIRST,
    (ScramState.FIRST, 2): ScramState.DONE,
}


@pytest.mark.parametrize("event", ["first", 0, 1, 2, 3, "error"])
@pytest.mark.parametrize("state", ScramState)
def test_a_client_takes_only_what_is_next(state: ScramState, event: str | int) -> None:
    one, _, whole = exchange_in(state)
    assert one.state is state
    if event == "first":
        answer = one.first()
    else:
        answer = one.receive(REFUSED_ANSWER if isinstance(event, str) else whole[event])
    expected = CLIENT_MOVES.get((state, event), ScramState.REFUSED)
    assert one.state is expected
    assert isinstance(answer, Refusal) == (expected is ScramState.REFUSED)
    is_waiting = state in (ScramState.FIRST, ScramState.FINAL)
    if event == "error":
        assert answer is (Refusal.PEER if is_waiting else Refusal.OUT_OF_TURN)


@pytest.mark.parametrize("event", [0, 1, 2, 3, "error"])
@pytest.mark.parametrize("state", [state for state in ScramState if state.value != "final"])
def test_a_server_takes_only_what_is_next(state: ScramState, event: str | int) -> None:
    _, other, whole = exchange_in(state)
    assert other.state is state
    answer = other.receive(REFUSED_ANSWER if isinstance(event, str) else whole[event])
    expected = SERVER_MOVES.get((state, event), ScramState.REFUSED)
    assert other.state is expected
    assert isinstance(answer, Refusal) == (expected is ScramState.REFUSED)
    assert other.name == ("user" if expected is ScramState.DONE else None)
    if state in (ScramState.DONE, ScramState.REFUSED):
        assert answer is Refusal.OUT_OF_TURN


@settings(max_examples=200, deadline=None)
@given(
    state=st.sampled_from(ScramState),
    message=st.binary(max_size=80)
    | st.text("nrcspvyime=,2CDa0+/\x00é", max_size=80).map(str.encode)
    | st.sampled_from(RFC_MESSAGES),
)
def test_random_messages_never_raise(state: ScramState, message: bytes) -> None:
    one, other, _ = exchange_in(state)
    for side in (one, other):
        is_refused = isinstance(side.receive(message), Refusal)
        assert is_refused == (side.state is ScramState.REFUSED)
        assert isinstance(side.receive(message), (bytes, Refusal))


# --- what a server refuses --------------------------------------------------------------------


def test_a_user_that_does_not_exist_looks_like_a_wrong_password() -> None:
    wrong, absent = client(password="pen"), client(name="nobody", password="pen")
    told = [converse(wrong, server()), converse(absent, server())]
    assert [answers.pop() for answers in told] == [Refusal.PROOF, Refusal.UNKNOWN_USER]
    shapes = [[re.sub(rb"[\w+/]", b"x", said(one)) for one in answers[1:]] for answers in told]
    lengths = [[len(said(one)) for one in answers[1:]] for answers in told]
    assert len(SALT) == ABSENT_SALT_BYTES
    assert lengths[0] == lengths[1]
    assert shapes[0][0] == shapes[1][0]


def test_what_is_sent_of_an_absent_user_is_constant_for_a_name_and_a_secret() -> None:
    first = said(client(name="nobody").first())
    again = said(client(name="nobody").first())
    assert server().receive(first) == server().receive(again)
    assert server().receive(first) != server(secret=b"t" * SECRET_BYTES_MIN).receive(first)
    other_name = said(client(name="no one").first())
    assert server().receive(first) != server().receive(other_name)


def test_a_user_that_does_not_exist_is_refused_even_with_a_fitting_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scram, "absent_credential", lambda *_: CREDENTIAL)
    other = server(credentials={})
    assert converse(client(), other)[-1] is Refusal.UNKNOWN_USER
    assert other.name is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"y,,n=user,r=" + b"c" * 16, Refusal.CHANNEL_BINDING),
        (b"p=tls-exporter,,n=user,r=" + b"c" * 16, Refusal.CHANNEL_BINDING),
        (b"n,a=admin,n=user,r=" + b"c" * 16, Refusal.AUTHORIZATION),
        (b"n,admin,n=user,r=" + b"c" * 16, Refusal.MALFORMED),
        (b"n,n=user", Refusal.MALFORMED),
        (b"x,,n=user,r=" + b"c" * 16, Refusal.MALFORMED),
        (b"n,,m=x,n=user,r=" + b"c" * 16, Refusal.MANDATORY_EXTENSION),
        (b"n,,n=user,r=" + b"c" * 16 + b",m=x", Refusal.MANDATORY_EXTENSION),
        (b"n,,n=user,r=" + b"c" * 16 + b",r=x", Refusal.MALFORMED),
        (b"n,,r=" + b"c" * 16 + b",n=user", Refusal.MALFORMED),
        (b"n,,n=,r=" + b"c" * 16, Refusal.MALFORMED),
        (b"n,,n=user", Refusal.MALFORMED),
        (b"n,,n=us=er,r=" + b"c" * 16, Refusal.NAME),
        (b"n,,n=us=2cer,r=" + b"c" * 16, Refusal.NAME),
        (b"n,,n=us\ter,r=" + b"c" * 16, Refusal.NAME),
        (b"n,,n=" + b"u" * (NAME_CHARS_MAX + 1) + b",r=" + b"c" * 16, Refusal.NAME),
        (b"n,,n=user,r=" + b"c" * (NONCE_CHARS_MIN - 1), Refusal.NONCE),
        (b"n,,n=user,r=" + b"c" * (NONCE_CHARS_MAX + 1), Refusal.NONCE),
        (b"n,,n=user,r=cccccccc cccccccc", Refusal.NONCE),
        (b"n,,n=\xff,r=" + b"c" * 16, Refusal.MALFORMED),
        (b"n" * (MESSAGE_BYTES_MAX + 1), Refusal.TOO_LONG),
    ],
)
def test_a_first_message_is_refused(message: bytes, reason: Refusal) -> None:
    assert server().receive(message) is reason


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"c=biws", b"c=eSws", Refusal.CHANNEL_BINDING),
        (b",p=", b",m=x,p=", Refusal.MANDATORY_EXTENSION),
        (b",p=", b",p=AAAA", Refusal.MALFORMED),
        (b",p=", b",p=!", Refusal.MALFORMED),
        (b",p=", b",q=", Refusal.MALFORMED),
    ],
)
def test_a_last_message_is_refused(old: bytes, new: bytes, reason: Refusal) -> None:
    one, other = client(), server()
    final = said(one.receive(said(other.receive(said(one.first())))))
    assert old in final
    assert other.receive(final.replace(old, new)) is reason


def test_base64_that_is_not_canonical_is_refused() -> None:
    """The last character of 32 bytes has two spare bits: ``Q=`` and ``R=`` decode to the same."""
    other = server(credentials={"user": RFC_CREDENTIAL}, nonce=RFC_SERVER_NONCE)
    said(other.receive(RFC_MESSAGES[0]))
    assert other.receive(RFC_MESSAGES[2].replace(b"VQ=", b"VR=")) is Refusal.MALFORMED


def test_other_extensions_are_ignored() -> None:
    first = b"n,,n=user,r=" + CLIENT_NONCE.encode() + b",x=new"
    assert said(server().receive(first)).startswith(b"r=" + CLIENT_NONCE.encode())
    one = client()
    answer = said(server().receive(said(one.first()))) + b",x=new"
    assert said(one.receive(answer)).startswith(b"c=biws")


# --- what a client refuses --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"i=4096", b"i=%d" % (ITERATIONS_MIN - 1), Refusal.TOO_FEW_ITERATIONS),
        (b"i=4096", b"i=1", Refusal.TOO_FEW_ITERATIONS),
        (b"i=4096", b"i=%d" % (ITERATIONS_MAX + 1), Refusal.TOO_MANY_ITERATIONS),
        (b"i=4096", b"i=9999999999", Refusal.TOO_MANY_ITERATIONS),
        (b"i=4096", b"i=" + b"9" * 1_000, Refusal.MALFORMED),
        (b"i=4096", b"i=04096", Refusal.MALFORMED),
        (b"i=4096", "i=٤٠٩٦".encode(), Refusal.MALFORMED),
        (b"i=4096", b"i=-1", Refusal.MALFORMED),
        (b"i=4096", b"i=4096,m=x", Refusal.MANDATORY_EXTENSION),
        (b"r=", b"m=x,r=", Refusal.MANDATORY_EXTENSION),
        (b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s=W22Z", Refusal.SALT),
        (b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s=" + b"W22Z" * 22, Refusal.SALT),
        (b"gQ==", b"gR==", Refusal.MALFORMED),
        (RFC_SERVER_NONCE.encode(), b"", Refusal.NONCE),
        (RFC_SERVER_NONCE.encode(), b"short", Refusal.NONCE),
        (b"r=r", b"r=R", Refusal.NONCE),
    ],
)
def test_an_answer_of_the_server_is_refused(old: bytes, new: bytes, reason: Refusal) -> None:
    one = client(nonce=RFC_CLIENT_NONCE)
    one.first()
    assert old in RFC_MESSAGES[1]
    assert one.receive(RFC_MESSAGES[1].replace(old, new)) is reason


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    one = client()
    said(one.receive(said(server().receive(said(one.first())))))
    assert one.receive(RFC_MESSAGES[3]) is Refusal.SIGNATURE


def test_a_server_that_lacks_only_the_server_key_is_refused() -> None:
    stolen = msgspec.structs.replace(CREDENTIAL, server_key=b"k" * 32)
    assert converse(client(), server(credentials={"user": stolen}))[-1] is Refusal.SIGNATURE


# --- credentials, names and passwords ---------------------------------------------------------


def test_no_secret_is_in_a_repr() -> None:
    one, other = client(), server()
    text = f"{CREDENTIAL!r} {one!r} {other!r}"
    assert "Credential(iterations=4096)" in text
    secrets = (CREDENTIAL.salt, CREDENTIAL.stored_key, CREDENTIAL.server_key, b"pencil", SECRET)
    assert not [secret for secret in secrets if repr(secret)[2:-1] in text]


@pytest.mark.parametrize(
    "changed",
    [
        {"salt": b"s" * (SALT_BYTES_MIN - 1)},
        {"salt": b"s" * (SALT_BYTES_MAX + 1)},
        {"iterations": ITERATIONS_MIN - 1},
        {"iterations": ITERATIONS_MAX + 1},
        {"password": ""},
        {"password": "\u00ad"},
        {"password": "p" * (PASSWORD_CHARS_MAX + 1)},
        {"password": "bell\x07"},
        {"password": "\U0001f600"},
        {"password": "\ud800"},
    ],
)
def test_a_credential_outside_the_limits_is_not_made(changed: dict[str, Any]) -> None:
    wanted = {"password": "pencil", "salt": SALT, "iterations": ITERATIONS_MIN, **changed}
    with pytest.raises(ValueError, match=r"\w") as refused:
        make_credential(**wanted)
    assert not changed.get("password") or changed["password"] not in str(refused.value)


def test_a_credential_that_no_client_accepts_is_not_read() -> None:
    encoded = msgspec.msgpack.encode(CREDENTIAL)
    assert msgspec.msgpack.decode(encoded, type=Credential) == CREDENTIAL
    for changed in ({"iterations": 1}, {"stored_key": b"short"}, {"server_key": b"short"}):
        fields = {**msgspec.structs.asdict(CREDENTIAL), **changed}
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=Credential)


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("\u0627\u0628", "\u0627\u0628"),
    ],
)
def test_names_are_prepared_as_rfc_4013_says(text: str, prepared: str) -> None:
    assert prepare_name(text) == prepared
    assert prepare_password(text) == prepared.encode()


@pytest.mark.parametrize(
    "text",
    [
        *("\x07", "\u0627\u0031", "\u0627a\u0628", "\ue000", "\ufdd0", "\u200e", "", "\u00ad"),
        "u" * (NAME_CHARS_MAX + 1),
        "\ufdfa" * 100,
    ],
)
def test_impossible_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        prepare_name(text)


def test_names_may_have_characters_that_unicode_got_later_and_passwords_may_not() -> None:
    assert prepare_name("\U0001f600") == "\U0001f600"
    with pytest.raises(ValueError, match="does not know"):
        prepare_password("\U0001f600")


@pytest.mark.parametrize("nonce", ["", "n" * 15, "n" * 257, "with,comma,with,comma", "é" * 20])
def test_own_nonces_outside_the_limits_are_refused(nonce: str) -> None:
    with pytest.raises(ValueError, match="nonce"):
        client(nonce=nonce)
    with pytest.raises(ValueError, match="nonce"):
        server(nonce=nonce)


def test_a_server_without_a_good_secret_is_not_made() -> None:
    with pytest.raises(ValueError, match="secret"):
        server(secret=b"short")
    with pytest.raises(ValueError, match="iterations"):
        ScramServer(credentials={}, nonce=SERVER_NONCE, secret=SECRET, absent_iterations=1)
