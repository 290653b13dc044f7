"""Names made from the subjects of certificates, by Kafka's rules."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.actors.protocol.certificate_names import (
    PATTERN_MAX_CHARS,
    RULES_MAX_CHARS,
    SUBJECT_MAX_CHARS,
    CertificateNames,
    escaped,
    subject_of,
)

OF_KAFKA = """
    RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,
    RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,
    RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,
    DEFAULT
"""
"""The example of KIP-371 and of Kafka's documentation."""


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "serviceuser"),
        ("CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "adminuser@admin"),
        ("CN=Duke,OU=JavaSoft,O=Sun Microsystems", "duke"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_rule_that_applies_makes_the_name(subject, name):
    assert CertificateNames(OF_KAFKA).name_of(subject) == name


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", "CN=Ann,C=DE", "CN=Ann,C=DE"),
        ("RULE:^CN=(.*?),C=DE$/$1/U", "CN=Ann,C=DE", "ANN"),
        ("RULE:^CN=(.*?),C=DE$/$1/,DEFAULT", "CN=Ann,C=FR", "CN=Ann,C=FR"),
        ("RULE:^CN=(.*?),C=DE$/$1/", "CN=Ann,C=FR", None),
        # The pattern must match all of it, though it has no anchors.
        ("RULE:CN=Ann/ann/", "CN=Ann,C=DE", None),
        (r"RULE:^CN=(\w+)\/(\w+)$/$2 of $1/", "CN=a/b", "b of a"),
        (r"RULE:^CN=(.*)$/\$1 is $1\/$2/", "CN=a", "$1 is a/$2"),
        ("RULE:^CN=(a)|CN=(b)$/<$1$2>/", "CN=b", "<b>"),
        ("RULE:^CN=(.*)$/$0/", "CN=a", "CN=a"),
        ("RULE:^CN=(.*)$/$/", "CN=a", "$"),
        # A name without a character is none.
        ("RULE:^CN=(.*)$/$1/", "CN=", None),
        ("RULE:^CN=([^,]{1,3}),C=DE$/$1/ , DEFAULT", "CN=Ann,C=DE", "Ann"),
        ("DEFAULT", "", None),
    ],
)
def test_rules_apply_as_kafkas(rules, subject, name):
    assert CertificateNames(rules).name_of(subject) == name


@pytest.mark.parametrize(
    "wrong",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT DEFAULT",
        "RULE:^CN=(.*?)$/$1",
        "RULE:^CN=(.*?)$/L",
        "RULE:^CN=(.*?)$/$1/T",
        "RULE:^CN=(.*?)$/$1/LU",
        "RULE:^CN=(.*?)$/$1/L DEFAULT",
        "rule:^CN=(.*?)$/$1/L",
        "RULE:^CN=(.*?/$1/L",
        "RULE:^CN=[a/$1/",
    ],
)
def test_a_rule_that_is_none_is_named(wrong):
    with pytest.raises(ValueError, match=re.escape(repr(wrong)[1:-1])):
        CertificateNames(f"RULE:^CN=(x)$/$1/,{wrong},DEFAULT")


def test_no_rules_are_an_error():
    for empty in ("", "  ", ",DEFAULT"):
        with pytest.raises(ValueError, match="'' is no rule"):
            CertificateNames(empty)


def test_rules_and_their_parts_have_a_longest_length():
    longest = "x" * PATTERN_MAX_CHARS
    assert CertificateNames(f"RULE:{longest}/{longest}/").name_of(longest) == longest
    for rule in (f"RULE:{longest}x/a/", f"RULE:a/{longest}x/"):
        with pytest.raises(ValueError, match="longer than 512 characters"):
            CertificateNames(rule)
    with pytest.raises(ValueError, match="at most 8192 fit"):
        CertificateNames("DEFAULT," * (RULES_MAX_CHARS // 8) + "DEFAULT")


def test_a_subject_that_is_too_long_has_no_name():
    assert CertificateNames().name_of("x" * SUBJECT_MAX_CHARS) is not None
    assert CertificateNames().name_of("x" * (SUBJECT_MAX_CHARS + 1)) is None


# --- subjects ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "subject"),
    [
        # The examples of RFC 2253, section 5.
        (
            [
                [("countryName", "GB")],
                [("organizationName", "Isode Limited")],
                [("commonName", "S")],
            ],
            "CN=S,O=Isode Limited,C=GB",
        ),
        (
            [
                [("countryName", "US")],
                [("organizationName", "Widget Inc.")],
                [("organizationalUnitName", "Sales"), ("commonName", "J. Smith")],
            ],
            "OU=Sales+CN=J. Smith,O=Widget Inc.,C=US",
        ),
        (
            [[("organizationName", "Sue, Grabbit and Runn")], [("commonName", "L. Eagle")]],
            r"CN=L. Eagle,O=Sue\, Grabbit and Runn",
        ),
        ([[("commonName", "Before\rAfter")]], r"CN=Before\0DAfter"),
        ([[("commonName", "#5 ")]], "CN=\\#5\\ "),
        ([[("emailAddress", "a@b")], [("1.3.6.1", "x")]], "1.3.6.1=x,emailAddress=a@b"),
        ([], ""),
    ],
)
def test_a_subject_is_written_as_in_rfc_2253(parts, subject):
    told = {"subject": tuple(tuple(part) for part in parts)}
    assert subject_of(told) == subject


def test_a_certificate_without_a_subject_has_no_name():
    assert CertificateNames().name_of(subject_of({})) is None


def unescaped(text: str) -> str:
    return re.sub(
        r"\\([0-9A-F]{2})|\\(.)",
        lambda match: chr(int(match[1], 16)) if match[1] else match[2],
        text,
        flags=re.DOTALL,
    )


@given(st.text(alphabet=st.one_of(st.sampled_from(' ,+"\\<>;#=\n\x00ab'), st.characters())))
def test_what_is_escaped_can_be_read_back(value):
    assert unescaped(escaped(value)) == value


values = st.text(alphabet=' ,+"\\<>;#=\nabCN', max_size=12)


@given(st.lists(values, min_size=1, max_size=4))
def test_values_never_pass_for_other_parts(names):
    """Split at commas and plus signs that are not escaped, a subject has its parts again."""
    subject = subject_of({"subject": tuple((("commonName", name),) for name in names)})
    parts = re.findall(r"(?:^|,)((?:\\.|[^\\,])*)", subject, re.DOTALL)
    assert [unescaped(part) for part in parts] == [f"CN={name}" for name in reversed(names)]


def test_a_value_with_a_comma_is_not_taken_for_a_name_of_somebody_else():
    names = CertificateNames("RULE:^CN=([^,]*),OU=admins$/$1/")
    assert names.name_of("CN=root,OU=admins") == "root"
    forged = subject_of({"subject": ((("commonName", "root,OU=admins"),),)})
    assert names.name_of(forged) != "root"
