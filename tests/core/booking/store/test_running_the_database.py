"""Tests the commands in docs/bookings.md, *Running the database*, by running them in the documented order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.booking.cluster import Cluster, NoPostgres, bindir, cluster
from torchyard_core.booking.errors import BadUrl, StoreUnavailable
from torchyard_core.booking.store import BookingStore, open_store
from torchyard_core.booking.store.tables import HEAD

ROOT = Path(__file__).parents[4]
DOCUMENTED = "postgresql+psycopg://postgres@db.example.org/gpus"


def steps() -> dict[str, str]:
    """Returns the commands of each step. The key is the bold word at the beginning of the step's paragraph."""
    text = (ROOT / "docs" / "bookings.md").read_text(encoding="utf-8")
    section = text.split("\n## Running the database\n")[1].split("\n## ")[0]
    parts = re.split(r"^\*\*(.+?)\*\*", section, flags=re.MULTILINE)[1:]
    return {
        name.rstrip("."): "\n".join(re.findall(r"```sh\n(.*?)```", output, re.DOTALL))
        for name, output in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.fixture
def server() -> Iterator[Cluster]:
    """Yields a separate server that has neither the roles nor the database of other tests."""
    try:
        with cluster() as made:
            with made.connect("owner", "postgres") as owner:
                owner.execute("DROP DATABASE team")
                for name in ("ada", "kim", "lee"):
                    owner.execute(f"DROP ROLE {name}")
            yield made
    except NoPostgres as why:
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            pytest.fail(str(why))
        pytest.skip(str(why))


def run(server: Cluster, folder: Path, commands: str, stdin: str = "") -> str:
    """Runs commands as the server's superuser, in a shell without a terminal."""
    data = server.folder / "data"
    owner = f"-o {data.owner()} " if os.geteuid() == 0 else ""
    commands = commands.replace(DOCUMENTED, f"'{server.url('owner', 'gpus')}'").replace("-o postgres ", owner)
    torchyard = (
        f'torchyard() {{ "{sys.executable}" -m torchyard_core.cli.root_command --home "{folder}/home" "$@"; }}\n'
    )
    done = subprocess.run(
        ["bash", "-eu", "-c", torchyard + commands],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
        start_new_session=True,
        env={
            **os.environ,
            "PATH": f"{bindir()}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("core", "agent")),
            "PGHOST": str(server.folder),
            "PGPORT": str(server.port),
            "PGUSER": "owner",
            "PGDATA": str(data),
        },
    )
    assert done.returncode == 0, (commands, done.stdout, done.stderr)
    return done.stdout


def opened(server: Cluster, person: str, more: str = "") -> BookingStore:
    return open_store(server.tcp_url(person, "gpus") + more, person)


def test_the_documented_commands_set_up_and_keep_a_teams_database(
    server: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documented = steps()
    output = run(server, tmp_path, documented.pop("Creating it"))
    passwords = dict(zip(("ada", "kim", "lee"), re.findall(r"shown only now: (\S+)", output), strict=True))
    monkeypatch.setenv("PGPASSWORD", passwords["kim"])
    opened(server, "kim").close()

    run(server, tmp_path, documented.pop("Certificates"))
    tls = f"?sslmode=verify-full&sslrootcert={tmp_path / 'server.crt'}"
    named = server.tcp_url("kim", "gpus").replace("127.0.0.1", "db.example.org") + f"{tls}&hostaddr=127.0.0.1"
    open_store(named, "kim").close()
    with pytest.raises(StoreUnavailable, match="does not match host name"):
        opened(server, "kim", tls)

    with server.connect("owner", "gpus") as owner, owner.transaction():
        owner.execute("INSERT INTO gpus VALUES ('GPU-a0', 'gpu-a', 0, 'A100', 40960)")
        owner.execute(
            "INSERT INTO bookings VALUES ('kept', 'kim', 'digits', '', now() + interval '1 h', now() + interval '2 h',"
            " 'UTC', 'booked', now(), now(), NULL, NULL, false, NULL, '')"
        )
        owner.execute("INSERT INTO booking_gpus (booking_id, gpu) VALUES ('kept', 'GPU-a0')")
    run(server, tmp_path, documented.pop("Backup"))
    with server.connect("owner", "postgres") as owner:
        owner.execute("DROP DATABASE gpus WITH (FORCE)")
        owner.execute("DROP ROLE lee")
    run(server, tmp_path, documented.pop("Restore"))
    for person in ("kim", "lee", "ada"):
        monkeypatch.setenv("PGPASSWORD", passwords[person])
        store = opened(server, person)
        kept = store.booking("kept")
        assert (kept.title, kept.gpus, len(store.history("kept"))) == ("digits", ("GPU-a0",), 1)
        assert store.is_admin == (person == "ada")
        store.close()

    with server.connect("owner", "gpus") as owner:
        owner.execute("UPDATE alembic_version SET version_num = '9999'")
        with pytest.raises(Exception, match="made by a newer Torchyard than this one; nothing was changed"):
            opened(server, "ada")
        owner.execute(f"UPDATE alembic_version SET version_num = '{HEAD}'")
    run(server, tmp_path, documented.pop("Upgrading"))
    opened(server, "ada").close()

    run(server, tmp_path, documented.pop("Removing a member"))
    monkeypatch.setenv("PGPASSWORD", passwords["lee"])
    with pytest.raises((BadUrl, StoreUnavailable)):
        opened(server, "lee")

    run(server, tmp_path, documented.pop("Demoting an admin"))
    monkeypatch.setenv("PGPASSWORD", passwords["ada"])
    ada = opened(server, "ada")
    assert not ada.is_admin
    ada.close()

    run(server, tmp_path, documented.pop("Re-keying"), "another\nanother\n")
    monkeypatch.setenv("PGPASSWORD", passwords["kim"])
    with pytest.raises(StoreUnavailable, match="refused the login of kim"):
        opened(server, "kim")
    monkeypatch.setenv("PGPASSWORD", "another")
    opened(server, "kim").close()
    assert documented == {}
