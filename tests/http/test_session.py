"""Sessions of the web page: both halves are needed, and a session ends with its token."""

from __future__ import annotations

import httpx
import msgspec
import pytest

from fairlead.identity import sessions
from fairlead.wire import api as wire
from tests.http.serving import Serving


def log_in(site: Serving, user: str = "ann") -> tuple[httpx.Client, str]:
    """Return a client that has the cookie of a session, and the key of that session."""
    browser = site.client()
    answer = browser.post("/api/v1/session", headers={"Authorization": f"Bearer {site.token('user', user)}"})
    assert answer.status_code == 201
    return browser, answer.json()["key"]


def test_a_session_needs_its_cookie_and_its_key(site: Serving) -> None:
    browser, key = log_in(site)
    known = browser.get("/api/v1/whoami", headers={"Fairlead-Session": key})
    scope = msgspec.to_builtins(wire.Scope())
    assert known.json() == {"user": "ann", "groups": [], "role": "user", "scope": scope}
    assert browser.get("/api/v1/whoami").status_code == 401
    assert browser.get("/api/v1/whoami", headers={"Fairlead-Session": "other"}).status_code == 401
    assert site.client().get("/api/v1/whoami", headers={"Fairlead-Session": key}).status_code == 401
    _, other = log_in(site, "bob")
    assert browser.get("/api/v1/whoami", headers={"Fairlead-Session": other}).status_code == 401


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(site: Serving) -> None:
    answer = site.as_owner.post("/api/v1/session")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/api/v1" in cookie
    assert "Secure" not in cookie  # this server has no TLS
    assert site.owner not in cookie


@pytest.mark.parametrize("change", [lambda value: "9" + value, lambda value: value[:-1] + "x", lambda value: "a.b"])
def test_an_altered_cookie_is_refused(site: Serving, change: object) -> None:
    browser, key = log_in(site)
    (name, value) = next(iter(browser.cookies.items()))
    altered = change(value)  # type: ignore[operator]
    headers = {"Fairlead-Session": key, "Cookie": f"{name}={altered}"}
    assert site.client().get("/api/v1/whoami", headers=headers).status_code == 401


def test_cookies_of_other_servers_of_the_host_do_not_end_a_session(site: Serving) -> None:
    """They have any form. They were all parsed, which took a stranger's request 80 ms."""
    browser, key = log_in(site)
    (name, value) = next(iter(browser.cookies.items()))
    for others in ('prefs={"a": [1, 2]}', "=x; y", "a=b " * 3_000 + "c", '"' * 1_000, f"x{name}=1"):
        for cookies in (f"{others}; {name}={value}", f"{name}={value}; {others}"):
            headers = {"Fairlead-Session": key, "Cookie": cookies}
            assert site.client().get("/api/v1/whoami", headers=headers).status_code == 200, cookies[:50]


def test_a_session_ends_with_its_token_and_with_its_time(site: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    browser, key = log_in(site)
    (token,) = [token for token in site.tokens.all() if token.user == "ann"]
    site.tokens.revoke(token.id)
    assert browser.get("/api/v1/whoami", headers={"Fairlead-Session": key}).status_code == 401
    monkeypatch.setattr(sessions, "LASTS", 0.0)
    browser, key = log_in(site)
    assert browser.get("/api/v1/whoami", headers={"Fairlead-Session": key}).status_code == 401


def test_a_session_has_the_role_of_its_token(site: Serving) -> None:
    site.node("n1")
    browser, key = log_in(site)
    assert browser.post("/api/v1/nodes/n1/drain", headers={"Fairlead-Session": key}).status_code == 403
    join = site.client(site.token("join", ""))
    assert join.post("/api/v1/session").status_code in (401, 403)


def test_a_closed_session_is_over_for_a_copy_of_its_cookie(site: Serving) -> None:
    browser, key = log_in(site)
    headers = {"Fairlead-Session": key}
    cookies = dict(browser.cookies)
    other, other_key = log_in(site)
    with site.client() as copy:
        copy.cookies.update(cookies)
        assert copy.get("/api/v1/whoami", headers=headers).status_code == 200
        assert browser.delete("/api/v1/session", headers=headers).is_success
        assert copy.get("/api/v1/whoami", headers=headers).status_code == 401
    assert other.get("/api/v1/whoami", headers={"Fairlead-Session": other_key}).status_code == 200


def test_a_closed_session_has_no_cookie(site: Serving) -> None:
    browser, key = log_in(site)
    assert browser.delete("/api/v1/session", headers={"Fairlead-Session": key}).is_success
    assert browser.get("/api/v1/whoami", headers={"Fairlead-Session": key}).status_code == 401
