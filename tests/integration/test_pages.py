"""MLflow's pages as others of the machine find them: another account, the system's own lists."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, Request, build_opener

import psutil
import pytest
from listening import assert_loopback_only, listening

from orchestrator.state.workspace import Workspace

pytestmark = [pytest.mark.slow, pytest.mark.long]
NOBODY = 65534
CREATE = "/api/2.0/mlflow/experiments/create"
SEARCH = "/api/2.0/mlflow/experiments/search?max_results=100"
ATTACK = f"""
import json, sys
from urllib.error import HTTPError
from urllib.request import Request, urlopen
site, folder = sys.argv[1:]

def ask(path, data=None, method=None):
    headers = {{"Content-Type": "application/json"}}
    try:
        with urlopen(Request(site + path, data, headers, method=method), timeout=60) as answer:
            return answer.status
    except HTTPError as error:
        return error.code

made = json.dumps({{"name": "theirs", "artifact_location": "file://" + folder}}).encode()
print(
    ask("{CREATE}", made), ask("/get-artifact?path=key&run_uuid=" + "0" * 32), ask("/"),
    ask("/static-files/index.html"), ask("/health"), ask("/?token=guess"),
    ask("/api/2.0/mlflow-artifacts/artifacts/authorized_keys", b"ssh-rsa", "PUT"),
)
try:
    print(open(folder + "/token").read())
except PermissionError:
    print("may not be read")
"""


@dataclass
class Pages:
    """A `tinyattn ui` that serves."""

    process: psutil.Process
    link: str
    token_file: Path
    runs: Path

    @property
    def site(self) -> str:
        return self.link.partition("/?")[0]

    @property
    def token(self) -> str:
        return self.token_file.read_text()

    @property
    def family(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]


def ui(runs: Path, port: str, state: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "orchestrator.cli", "ui", "--port", port, "--runs", str(runs)]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, "XDG_STATE_HOME": str(state)}
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    folder = tmp_path_factory.mktemp("pages")
    Workspace(folder / "runs").tracker(create=True)
    port = str(20_000 + os.getpid() % 10_000)
    with ui(folder / "runs", port, folder / "state") as started:
        assert started.stdout is not None
        link = started.stdout.readline().split()[4]
        file = started.stdout.readline().rpartition("$(cat ")[2].strip()
        yield Pages(
            psutil.Process(started.pid), link, Path(file.removesuffix(')"')), folder / "runs"
        )
        started.terminate()


def test_another_account_reads_and_writes_nothing(pages: Pages) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another account")
    words = ["/usr/bin/env", "python3", "-c", ATTACK, pages.site, str(pages.token_file.parent)]
    done = subprocess.run(
        words, capture_output=True, text=True, user=NOBODY, group=NOBODY, extra_groups=[],
        env={"PATH": "/usr/bin:/bin"}, cwd="/",
    )  # fmt: skip
    assert done.stdout.split("\n") == [" ".join(["401"] * 7), "may not be read", ""], done.stderr
    names = {one.name for one in Workspace(pages.runs).store().client.search_experiments()}
    assert "theirs" not in names
    assert list(pages.runs.rglob("authorized_keys")) == []


def test_the_system_shows_the_token_to_nobody(pages: Pages) -> None:
    assert stat.S_IMODE(pages.token_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(pages.token_file.parent.stat().st_mode) == 0o700
    assert len(pages.family) >= 3  # the command, what ends its server, and that
    for process in pages.family:
        assert pages.token not in " ".join(process.cmdline())
        assert pages.token not in str(process.environ())
    found = listening(process.pid for process in pages.family)
    assert_loopback_only(found)
    assert [address.split()[1] for address in found] == [pages.site.rpartition(":")[2]]


def test_a_browser_opens_the_link_once_and_then_has_a_cookie(pages: Pages) -> None:
    jar = CookieJar()
    browser = build_opener(HTTPCookieProcessor(jar))
    with browser.open(pages.link, timeout=60) as page:
        assert page.url == f"{pages.site}/"  # without the token
        assert b"<title>MLflow</title>" in page.read()
    [cookie] = jar
    assert cookie.has_nonstandard_attr("HttpOnly")
    for path in ("/ajax-api/2.0/mlflow/experiments/search?max_results=5", "/version"):
        with browser.open(pages.site + path, timeout=60) as answer:
            assert answer.status == 200
    other = Request(pages.site + CREATE, b"{}", {"Origin": "http://127.0.0.1:1"})
    with pytest.raises(HTTPError) as caught:
        browser.open(other, timeout=60)
    assert caught.value.code == 403
    assert "page of another server" in caught.value.read().decode()


def test_programs_take_the_token_from_the_file(pages: Pages) -> None:
    bare = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_TOKEN"}
    bare |= {"MLFLOW_TRACKING_URI": pages.site, "COLUMNS": "100"}
    with_it = f'MLFLOW_TRACKING_TOKEN="$(cat {pages.token_file})" '
    search = f"{sys.executable} -m mlflow experiments search"
    done = subprocess.run(with_it + search, shell=True, capture_output=True, text=True, env=bare)
    assert "Default" in done.stdout, done.stderr
    words = [sys.executable, "-m", "orchestrator.cli", "leaderboard"]
    refused = subprocess.run(words, capture_output=True, text=True, env=bare)
    assert refused.returncode == 1
    assert "Open the link that tinyattn ui printed" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_second_start_finds_the_first(pages: Pages) -> None:
    port, state = pages.site.rpartition(":")[2], pages.token_file.parents[4]
    with ui(pages.runs, port, state) as again:
        out, _ = again.communicate(timeout=60)
        assert out.split()[4] == pages.link
        assert again.returncode == 0
    assert pages.process.is_running()
