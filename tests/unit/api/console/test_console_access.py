"""Who may look at a console, and what a form needs."""

from __future__ import annotations

import asyncio

import pytest
from console_cluster import ConsoleCluster, console_of, log_in, token_of

from oncelog.actors.protocol.messages.cluster import MetadataRequest
from oncelog.api.console import access
from oncelog.api.console.access import (
    ADDRESSES_MAX,
    ATTEMPTS_MAX,
    ATTEMPTS_PER_ADDRESS_MAX,
    ATTEMPTS_WINDOW_S,
    SESSION_IDLE_S,
    SESSION_MAX_S,
    SESSIONS_MAX,
    Hosts,
    LoginBudget,
    RefusedLoginError,
    Sessions,
    address_key,
    is_same_origin,
)
from oncelog.api.console.rendering import CONSOLE
from oncelog.api.console.server import COOKIE, HEADERS
from oncelog.storage.errors import ErrorCode


class Time:
    def __init__(self):
        self.now_s = 1_000.0

    def __call__(self):
        return self.now_s


# --- hosts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost:8270", "127.0.0.1", "[::1]:1", "LOCALHOST:9"])
def test_a_console_of_this_machine_is_asked_by_its_names(host):
    assert Hosts("127.0.0.1").allows(host)


@pytest.mark.parametrize(
    "host", [None, "", "evil.example:8270", "10.0.0.1", "localhost:8270@evil", "a b", "[::1"]
)
def test_another_name_is_refused_on_this_machine(host):
    assert not Hosts("127.0.0.1").allows(host)


def test_a_console_of_the_network_is_asked_by_address_or_by_a_name_that_was_given():
    hosts = Hosts("0.0.0.0", ["console.example"])
    assert hosts.allows("10.0.0.1:8270")
    assert hosts.allows("console.example")
    assert not hosts.allows("evil.example")


def test_a_page_that_leads_another_name_here_gets_nothing():
    async def scenario():
        async with console_of(ConsoleCluster()) as client:
            reply = await client.get("/", headers={"Host": "evil.example"})
            return reply.status, await reply.text()

    status, page = asyncio.run(scenario())
    assert status == 421
    assert "Overview" not in page


def test_every_reply_has_the_headers_that_keep_pages_apart():
    async def scenario():
        async with console_of(ConsoleCluster()) as client:
            for path in ("/", "/nowhere", "/static/console.js"):
                reply = await client.get(path)
                yield_of[path] = {name: reply.headers.get(name) for name in HEADERS}

    yield_of = {}
    asyncio.run(scenario())
    for path, found in yield_of.items():
        assert "unsafe" not in found["Content-Security-Policy"], path
        assert found["Content-Security-Policy"].startswith("default-src 'self'")
        assert found["X-Frame-Options"] == "DENY"
        assert found["X-Content-Type-Options"] == "nosniff"
        assert found["Referrer-Policy"] == "same-origin"


@pytest.mark.parametrize(
    ("site", "mode", "dest", "status"),
    [
        ("cross-site", "no-cors", "image", 403),
        ("same-site", "no-cors", "image", 403),
        ("cross-site", "navigate", "iframe", 403),
        ("cross-site", "navigate", "document", 200),
        ("same-origin", "cors", "empty", 200),
        ("none", "navigate", "document", 200),
    ],
)
def test_what_a_page_of_another_site_embeds_asks_the_cluster_nothing(site, mode, dest, status):
    async def scenario():
        cluster = ConsoleCluster()
        async with console_of(cluster) as client:
            headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
            reply = await client.get("/topics", headers=headers)
            return reply.status, bool(cluster.calls)

    assert asyncio.run(scenario()) == (status, status == 200)


# --- logins -----------------------------------------------------------------------------------


def test_who_is_not_logged_in_sees_the_form_only_and_asks_the_cluster_nothing():
    async def scenario():
        cluster = ConsoleCluster()
        async with console_of(cluster, asks_login=True) as client:
            page = await client.get("/", allow_redirects=False)
            part = await client.get("/topics", headers={"HX-Request": "true"})
            data = await client.get("/data/throughput")
            return page, part, data, cluster.calls

    page, part, data, calls = asyncio.run(scenario())
    assert (page.status, page.headers["Location"]) == (303, "/login")
    assert (part.status, part.headers["HX-Refresh"], data.status) == (401, "true", 401)
    assert calls == []


def test_a_user_of_the_cluster_logs_in_and_all_is_asked_as_that_user():
    async def scenario():
        cluster = ConsoleCluster()
        cluster.log.create("flights")
        async with console_of(cluster, asks_login=True) as client:
            reply = await log_in(client)
            cookie = reply.headers["Set-Cookie"]
            page = await (await client.get("/topics")).text()
            return reply.status, cookie, page, {user for user, _ in cluster.calls}

    status, cookie, page, users = asyncio.run(scenario())
    assert status == 303
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "flights" in page
    assert users == {"alice"}


@pytest.mark.parametrize("password", ["of bob", "", "x" * 2_000])
def test_a_wrong_password_begins_no_session(password):
    async def scenario():
        async with console_of(ConsoleCluster(), asks_login=True) as client:
            reply = await log_in(client, password=password)
            return reply.status, reply.headers.get("Set-Cookie"), await reply.text()

    status, cookie, page = asyncio.run(scenario())
    assert (status, cookie) == (403, None)
    assert "password" in page


def test_answers_of_one_user_are_never_shown_to_another():
    async def scenario():
        cluster = ConsoleCluster()
        cluster.log.create("secret")
        cluster.refusals["bob", MetadataRequest] = ErrorCode.NONE
        async with console_of(cluster, asks_login=True) as client:
            await log_in(client)
            seen = await (await client.get("/topics")).text()
            client.session.cookie_jar.clear()
            cluster.log.hidden.add("secret")
            del cluster.refusals["bob", MetadataRequest]
            await log_in(client, "bob", "of bob")
            return seen, await (await client.get("/topics")).text()

    of_alice, of_bob = asyncio.run(scenario())
    assert "secret" in of_alice
    assert "secret" not in of_bob


def test_a_user_whose_password_changes_is_logged_out_and_sees_nothing_old():
    async def scenario():
        cluster = ConsoleCluster()
        cluster.log.create("flights")
        async with console_of(cluster, asks_login=True) as client:
            await log_in(client)
            await client.get("/")
            cluster.passwords["alice"] = "another"
            page = await client.get("/groups", allow_redirects=False)
            after = await client.get("/topics", allow_redirects=False)
            return page.status, after.status, cluster.closed

    first, after, closed = asyncio.run(scenario())
    assert (first, after) == (303, 303)
    assert "alice" in closed


def test_with_tls_the_cookie_is_of_this_host_alone():
    async def scenario():
        cluster = ConsoleCluster()
        async with console_of(cluster, asks_login=True) as client:
            client.server.app[CONSOLE].is_secure = True
            origin = f"https://{client.host}:{client.port}"
            reply = await log_in(client, Origin=origin)
            return reply.headers["Set-Cookie"], client.port

    cookie, port = asyncio.run(scenario())
    assert cookie.startswith(f"__Host-{COOKIE}_{port}=")
    assert "Secure" in cookie
    assert "Path=/" in cookie
    assert "Domain" not in cookie


def test_a_viewer_that_is_closed_does_not_connect_again():
    async def scenario():
        cluster = ConsoleCluster()
        async with console_of(cluster, asks_login=True) as client:
            await log_in(client)
            sessions = client.server.app[CONSOLE].sessions
            (session,) = sessions._of_token.values()
            await sessions.end(session)
            asked = len(cluster.calls)
            answer = await session.viewer.groups()
            return answer.error, len(cluster.calls) - asked

    error, asked = asyncio.run(scenario())
    assert "session is over" in str(error)
    assert asked == 0


def test_a_logout_ends_the_session():
    async def scenario():
        async with console_of(ConsoleCluster(), asks_login=True) as client:
            await log_in(client)
            page = await (await client.get("/groups")).text()
            origin = f"http://{client.host}:{client.port}"
            name = f"{COOKIE}_{client.port}"
            cookie = client.session.cookie_jar.filter_cookies(client.make_url("/"))[name].value
            await client.post("/logout", data={"token": token_of(page)}, headers={"Origin": origin})
            again = await client.get(
                "/", headers={"Cookie": f"{name}={cookie}"}, allow_redirects=False
            )
            return again.status

    assert asyncio.run(scenario()) == 303


# --- forms ------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "https://{host}"])
def test_a_form_of_another_origin_is_refused(origin):
    async def scenario():
        cluster = ConsoleCluster()
        async with console_of(cluster, writes=True) as client:
            page = await (await client.get("/actions/drain?broker=1")).text()
            host = f"{client.host}:{client.port}"
            headers = {} if origin is None else {"Origin": origin.format(host=host)}
            data = {"token": token_of(page), "broker": "1", "step": "do"}
            reply = await client.post("/actions/drain", data=data, headers=headers)
            return reply.status

    assert asyncio.run(scenario()) == 403


@pytest.mark.parametrize("token", [None, "", "0" * 64, "\udcff"])
def test_a_form_without_our_token_is_refused(token):
    async def scenario():
        async with console_of(ConsoleCluster(), writes=True) as client:
            origin = f"http://{client.host}:{client.port}"
            data = {"broker": "1", "step": "do"}
            if token is not None:
                data["token"] = token.encode("utf-8", "replace").decode()
            return (
                await client.post("/actions/drain", data=data, headers={"Origin": origin})
            ).status

    assert asyncio.run(scenario()) == 403


def test_a_token_is_of_one_session():
    async def scenario():
        sessions = Sessions(no_viewer)
        of_nobody = sessions.form_token(None)
        return sessions.is_form_token(of_nobody, None), Sessions(no_viewer).is_form_token(
            of_nobody, None
        )

    assert asyncio.run(scenario()) == (True, False)


def test_an_origin_is_that_of_the_host_and_the_scheme():
    assert is_same_origin("https://a:1", "a:1", is_secure=True)
    assert not is_same_origin("http://a:1", "a:1", is_secure=True)
    assert not is_same_origin(None, None, is_secure=False)


# --- bounds -----------------------------------------------------------------------------------


class NoViewer:
    def __init__(self):
        self.is_closed = False

    async def close(self):
        self.is_closed = True


async def no_viewer(name, password):
    return NoViewer()


async def unknown_user(name, password):
    raise RefusedLoginError("unknown")


def test_beyond_the_most_sessions_the_one_used_longest_ago_ends():
    async def scenario():
        sessions = Sessions(no_viewer, Time())
        begun = [await sessions.log_in(f"u{n}", "p", "1.1.1.1") for n in range(SESSIONS_MAX)]
        await sessions.find(begun[0].token)
        await sessions.log_in("one more", "p", "1.1.1.1")
        return (
            len(sessions),
            await sessions.find(begun[0].token) is not None,
            await sessions.find(begun[1].token),
            begun[1].viewer.is_closed,
        )

    assert asyncio.run(scenario()) == (SESSIONS_MAX, True, None, True)


@pytest.mark.parametrize(("step_s", "steps"), [(SESSION_IDLE_S + 1, 1), (SESSION_IDLE_S - 1, 13)])
def test_a_session_ends_when_it_is_idle_or_old(step_s, steps):
    async def scenario():
        time = Time()
        sessions = Sessions(no_viewer, time)
        session = await sessions.log_in("a", "p", "1.1.1.1")
        for _ in range(steps):
            time.now_s += step_s
            found = await sessions.find(session.token)
        return found, time.now_s

    found, _ = asyncio.run(scenario())
    assert found is None
    assert 13 * (SESSION_IDLE_S - 1) > SESSION_MAX_S


def test_sessions_that_are_over_end_when_somebody_logs_in():
    async def scenario():
        time = Time()
        sessions = Sessions(no_viewer, time)
        old = await sessions.log_in("a", "p", "1.1.1.1")
        time.now_s += SESSION_IDLE_S + 1
        await sessions.log_in("b", "p", "1.1.1.1")
        return len(sessions), old.viewer.is_closed

    assert asyncio.run(scenario()) == (1, True)


def test_those_logged_in_as_one_user_share_a_viewer_until_the_last_one_ends():
    async def scenario():
        sessions = Sessions(no_viewer, Time())
        one = await sessions.log_in("a", "p", "1.1.1.1")
        two = await sessions.log_in("a", "p", "1.1.1.2")
        other = await sessions.log_in("a", "another password", "1.1.1.2")
        await sessions.end(one)
        still_open = not two.viewer.is_closed
        await sessions.end(two)
        return (
            one.viewer is two.viewer,
            other.viewer is one.viewer,
            still_open,
            two.viewer.is_closed,
        )

    assert asyncio.run(scenario()) == (True, False, True, True)


def test_an_address_may_fail_so_often_a_minute():
    time = Time()
    budget = LoginBudget(time)
    for _ in range(ATTEMPTS_PER_ADDRESS_MAX):
        budget.begin("1.1.1.1")
    with pytest.raises(RefusedLoginError, match="Too many"):
        budget.begin("1.1.1.1")
    budget.begin("1.1.1.2")
    time.now_s += ATTEMPTS_WINDOW_S
    budget.begin("1.1.1.1")


def test_strangers_cannot_lock_out_who_has_logged_in_before():
    budget = LoginBudget(Time())
    budget.begin("10.0.0.1")
    budget.succeed("10.0.0.1")
    for number in range(ATTEMPTS_MAX // 2):
        budget.begin(f"2.2.2.{number}")
    with pytest.raises(RefusedLoginError):
        budget.begin("3.3.3.3")
    budget.begin("10.0.0.1")


def test_a_login_that_succeeds_uses_up_nothing():
    budget = LoginBudget(Time())
    for _ in range(10 * ATTEMPTS_MAX):
        budget.begin("1.1.1.1")
        budget.succeed("1.1.1.1")
    assert budget.is_known("1.1.1.1")


def test_addresses_that_are_remembered_are_bounded():
    time = Time()
    budget = LoginBudget(time)
    for number in range(ADDRESSES_MAX + 5):
        time.now_s += ATTEMPTS_WINDOW_S
        budget.begin(f"a{number}")
        budget.succeed(f"a{number}")
        budget.begin(f"b{number}")
    assert len(budget._known) == len(budget._failed) == ADDRESSES_MAX
    assert not budget.is_known("a0")


def test_more_logins_than_are_checked_at_a_time_wait_and_then_are_refused(monkeypatch):
    monkeypatch.setattr(access, "CHECK_WAIT_S", 0.01)

    async def scenario():
        never = asyncio.Event()

        async def hang(name, password):
            await never.wait()

        sessions = Sessions(hang)
        under_way = [
            asyncio.ensure_future(sessions.log_in("a", "p", f"1.1.1.{n}"))
            for n in range(access.CHECKS_MAX)
        ]
        await asyncio.sleep(0)
        with pytest.raises(RefusedLoginError, match="at once"):
            await sessions.log_in("a", "p", "9.9.9.9")
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_addresses_are_counted_by_network(address, key):
    assert address_key(address) == key
