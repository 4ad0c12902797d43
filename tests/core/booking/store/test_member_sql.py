"""Tests that a member who sends arbitrary SQL with psql cannot change the bookings of other members."""

from __future__ import annotations

import os
import subprocess
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url

from tests.core.booking.cluster import RAW_NOW, Cluster, bindir
from tests.core.booking.teams import NOW, SLOTS, Team, draft
from torchyard_core.booking.errors import PermissionDenied, Refused
from torchyard_core.booking.model import IdleEvidence, Use
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.slot_search import Wish
from torchyard_core.booking.store import open_store, setup_team
from torchyard_core.booking.store.database_engine import make_engine, transaction

HOUR = timedelta(hours=1)
HIDDEN = """
    CREATE TEMP TABLE bookings (id text, owner text, starts timestamptz, ends timestamptz, state text);
    INSERT INTO pg_temp.bookings VALUES ('forged', 'lee', '2040-01-01', '2040-01-02', 'booked');
    INSERT INTO torchyard.bookings VALUES ('forged', 'lee', 't', '', '{start}', '{end}', 'UTC', 'booked', now(), now(),
                                           NULL, NULL, false, NULL, '');
    INSERT INTO torchyard.booking_gpus (booking_id, gpu) VALUES ('forged', 'GPU-a0');
"""
"""SQL that books a GPU that is already booked.

It creates a temporary table that hides the real one from the trigger of the first schema.
"""


def psql(server: Cluster, person: str, database: str, script: str) -> tuple[int, str]:
    """Runs all statements, even after errors; returns the number of failures, and stderr."""
    done = subprocess.run(
        [bindir() / "psql", "-X", "-q", "-h", server.folder, "-p", str(server.port), "-U", person, "-d", database],
        input=script,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={
            **os.environ,
            "PGOPTIONS": f"-csearch_path=torchyard,public -clock_timeout=2s -ctorchyard_test.now={RAW_NOW}",
        },
    )
    return done.stderr.count("ERROR:"), done.stderr


def content(server: Cluster, database: str) -> dict[str, list[str]]:
    """Returns all rows of all tables, and all definitions of functions, policies, triggers and privileges."""
    with server.connect("owner", database) as owner:
        tables = [row[0] for row in owner.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'torchyard'")]
        found = {
            table: [row[0] for row in owner.execute(f"SELECT t::text FROM torchyard.{table} AS t ORDER BY 1")]
            for table in sorted(tables)
        }
        for name, query in {
            "functions": "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'torchyard'::regnamespace",
            "policies": "SELECT p::text FROM pg_policies AS p WHERE schemaname = 'torchyard'",
            "relations": "SELECT (relname, relkind, relacl, relrowsecurity, relowner)::text"
            " FROM pg_class WHERE relnamespace = 'torchyard'::regnamespace",
            "triggers": "SELECT (tgname, pg_get_triggerdef(t.oid), tgenabled)::text FROM pg_trigger AS t"
            " JOIN pg_class AS c ON c.oid = tgrelid WHERE relnamespace = 'torchyard'::regnamespace",
            "roles": "SELECT m::text FROM pg_auth_members AS m",
        }.items():
            found[f"[{name}]"] = sorted(row[0] for row in owner.execute(query))
    return found


@pytest.fixture
def filled(database_team: Team) -> Team:
    """Yields a calendar in which Kim has rows in every table, and Lee has a past, a current and a future booking."""
    kim, ada = database_team.open("kim"), database_team.open("ada")
    made = kim.book(draft("a0 a1", 1, 2))
    kim.book_series(draft("a2", 24, 2), "FREQ=DAILY;COUNT=2")
    kim.wait(Wish(1, HOUR, NOW, gpus=("GPU-a0",), latest=NOW + 2 * HOUR), "waiting")
    kim.record_use([Use("GPU-a0", "gpu-a", "kim", NOW, NOW + HOUR, None)])
    kim.record_idle([IdleEvidence(made.id, NOW, NOW + HOUR)])
    ada.set_rules(Rules())
    database_team.open("lee").book(draft("b3", 50, 2))
    with database_team.server.connect("owner", database_team.place) as owner:
        owner.execute("INSERT INTO logins VALUES ('*', 'ubuntu', 'kim')")
        rows = [("kpast", "kim", 30, 20, "b0"), ("past", "lee", 15, 5, "b1"), ("running", "lee", 5, -5, "b2")]
        for key, person, since, until, gpu in rows:
            owner.execute(
                "INSERT INTO bookings VALUES (%s, %s, 't', '', now() - %s * interval '1 h',"
                " now() - %s * interval '1 h', 'UTC', 'booked', now(), now(), NULL, NULL, false, NULL, '')",
                (key, person, since, until),
            )
            owner.execute("INSERT INTO booking_gpus (booking_id, gpu) VALUES (%s, %s)", (key, f"GPU-{gpu}"))
        owner.execute(
            "INSERT INTO waitlist VALUES ('left', 'lee', 't', '{}', 'UTC', now(), 'withdrawn', NULL);"
            "INSERT INTO uses VALUES ('GPU-b1', now() - interval '9 h', 'lee', now(), 'gpu-b', NULL, 'lee')"
        )
    return database_team


def of_every_object(server: Cluster, database: str) -> list[str]:
    """Returns statements of every kind for every table, column, function and role in the catalogue."""
    values = {"text": "'lee'", "timestamp with time zone": "'2100-01-01Z'", "boolean": "NOT {0}", "integer": "{0} + 1"}
    with server.connect("owner", database) as owner:
        columns = owner.execute(
            "SELECT c.table_name, column_name, data_type FROM information_schema.columns AS c"
            " WHERE table_schema = 'torchyard' AND is_generated = 'NEVER'"
        ).fetchall()
        functions = [row[0] for row in owner.execute(
            "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'torchyard'::regnamespace"
        )]  # fmt: skip
        roles = [row[0] for row in owner.execute("SELECT rolname FROM pg_roles WHERE rolname NOT IN ('lee')")]
    # The statements affect only rows of other owners, which Lee must not change.
    theirs = {"bookings": "owner <> 'lee'", "uses": "reporter <> 'lee'", "waitlist": "owner <> 'lee'"}
    made = [
        f"UPDATE {table} SET {column} = {values.get(kind, 'NULL').format(column)} WHERE {theirs.get(table, 'true')};"
        for table, column, kind in columns
    ]
    for table in sorted({row[0] for row in columns}):
        gone = "WHERE owner <> 'lee'" if table == "booking_gpus" else ""
        made += [
            f"DELETE FROM {table} {gone};",
            f"TRUNCATE {table} CASCADE;",
            f"INSERT INTO {table} SELECT * FROM {table} LIMIT 1;",
            f"COPY {table} FROM PROGRAM 'echo x';",
            f"COPY {table} FROM '/etc/hostname';",
            f"COPY {table} TO '/tmp/torchyard-stolen';",
            f"MERGE INTO {table} AS t USING (SELECT 1) AS s ON true WHEN MATCHED THEN DELETE;",
            f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE;",
            f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY;",
            f"ALTER TABLE {table} DISABLE TRIGGER ALL;",
            f"ALTER TABLE {table} OWNER TO lee;",
            f"ALTER TABLE {table} RENAME TO gone;",
            f"DROP TABLE {table} CASCADE;",
            f"CREATE INDEX ON {table} ((1));",
            f"CREATE POLICY mine ON {table} USING (true);",
            f"CREATE RULE mine AS ON INSERT TO {table} DO INSTEAD NOTHING;",
            f"CREATE TRIGGER mine BEFORE INSERT ON {table} EXECUTE FUNCTION suppress_redundant_updates_trigger();",
            f"CREATE VIEW v_{table} AS SELECT * FROM {table};",
            f"CREATE TABLE public.c_{table} () INHERITS ({table});",
            f"GRANT ALL ON {table} TO lee;",
        ]
    for function in functions:
        made += [
            f"DROP FUNCTION {function} CASCADE;",
            f"ALTER FUNCTION {function} RESET ALL;",
            f"ALTER FUNCTION {function} OWNER TO lee;",
            f"GRANT ALL ON FUNCTION {function} TO lee WITH GRANT OPTION;",
        ]
    for role in roles:
        made += [f'SET ROLE "{role}";', f'SET SESSION AUTHORIZATION "{role}";', f'GRANT "{role}" TO lee;']
        made += [f"ALTER ROLE \"{role}\" PASSWORD 'x';", f'DROP ROLE "{role}";']
    return [one for one in made if 'ROLE "torchyard_member"' not in one or not one.startswith("SET ")]


OTHERS = [
    "CREATE TEMP TABLE bookings (id text);",
    "CREATE TEMP VIEW gpus AS SELECT 1;",
    "CREATE FUNCTION torchyard.mine() RETURNS int LANGUAGE sql AS 'SELECT 1';",
    "CREATE OR REPLACE FUNCTION torchyard.may_write(owner text) RETURNS boolean LANGUAGE sql AS 'SELECT true';",
    "CREATE OR REPLACE FUNCTION torchyard.is_admin() RETURNS boolean LANGUAGE sql AS 'SELECT true';",
    "CREATE SCHEMA mine;",
    "CREATE EXTENSION plpython3u;",
    "CREATE EVENT TRIGGER mine ON ddl_command_start EXECUTE FUNCTION torchyard.tell();",
    "CREATE ROLE mine;",
    "ALTER SYSTEM SET fsync = off;",
    "SET session_replication_role = replica;",
    "SELECT lo_import('/etc/passwd');",
    "SELECT lo_export(lo_from_bytea(0, 'x'), '/tmp/torchyard-written');",
    "SELECT pg_read_file('/etc/passwd');",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'owner';",
    "INSERT INTO booking_gpus (booking_id, gpu) VALUES ('kpast', 'GPU-a3');",
    "INSERT INTO idle_evidence SELECT id, 'lee', now(), now() FROM bookings WHERE owner = 'kim';",
    "INSERT INTO idle_evidence SELECT id, 'kim', now(), now() FROM bookings WHERE owner = 'lee';",
]


def test_no_statement_of_a_member_changes_what_others_have(filled: Team) -> None:
    server, database = filled.server, filled.place
    assert server is not None
    statements = [*of_every_object(server, database), *OTHERS]
    before = content(server, database)
    assert all(before[table] for table in before)
    # RESET ALL undoes the settings that the preceding statement changed.
    failed, output = psql(server, "lee", database, "\n".join(f"{one}\nRESET ALL;" for one in statements))
    assert content(server, database) == before
    # An UPDATE may succeed without changing a row, because members cannot update rows of other owners.
    quiet = [one for one in statements if one.startswith("UPDATE ")]
    assert failed >= len(statements) - len(quiet) - 5, output
    assert "syntax error" not in output


FORBIDDEN_PAST = [
    "DELETE FROM booking_gpus WHERE booking_id IN ('past', 'running')",
    "UPDATE bookings SET state = 'cancelled', let_go_at = starts WHERE id = 'past'",
    "UPDATE bookings SET state = 'released', let_go_at = starts WHERE id = 'running'",
    "UPDATE bookings SET state = 'released', let_go_at = NULL WHERE id = 'running'",
    "UPDATE bookings SET state = 'cancelled', let_go_at = now() WHERE id = 'running'",
    "UPDATE bookings SET let_go_at = starts WHERE id = 'running'",
    "UPDATE bookings SET starts = now() + interval '1 h' WHERE id = 'running'",
    "UPDATE bookings SET ends = now() - interval '4 h' WHERE id = 'running'",
    "UPDATE bookings SET title = 'another' WHERE id = 'past'",
    "INSERT INTO booking_gpus (booking_id, gpu) VALUES ('running', 'GPU-a3')",
    "INSERT INTO booking_gpus (booking_id, gpu) VALUES ('past', 'GPU-a3')",
    "UPDATE waitlist SET state = 'waiting' WHERE id = 'left'",
    "UPDATE waitlist SET created = '2001-01-01' WHERE id = 'left'",
    "DELETE FROM waitlist",
    "DELETE FROM uses",
    "UPDATE uses SET ends = starts WHERE reporter = 'lee'",
    "UPDATE uses SET starts = ends WHERE reporter = 'lee'",
    "UPDATE series SET title = 'another'",
]


def test_a_members_own_past_stays_as_it_was(filled: Team) -> None:
    server = filled.server
    assert server is not None
    before = content(server, filled.place)
    psql(server, "lee", filled.place, ";\n".join(FORBIDDEN_PAST) + ";")
    assert content(server, filled.place) == before
    # The limit also applies to a transaction that began earlier, because it uses the server's clock and not the time at
    # which the transaction began.
    with server.connect("owner", filled.place) as owner:
        owner.execute("UPDATE bookings SET starts = now() - interval '299 s' WHERE id = 'running'")
        found = owner.execute("SELECT prosrc ~ '[^_]now\\(\\)' FROM pg_proc WHERE proname = 'past_stays'").fetchone()
    assert found == (False,)
    failed, output = psql(
        server, "lee", filled.place, "UPDATE bookings SET state = 'released', let_go_at = now() WHERE id = 'running';"
    )
    assert failed == 0, output


def test_a_temporary_table_does_not_hide_the_bookings(filled: Team) -> None:
    server = filled.server
    assert server is not None
    script = HIDDEN.format(start=NOW + HOUR, end=NOW + 2 * HOUR)
    assert "permission denied to create temporary tables" in psql(server, "lee", filled.place, script)[1]
    with server.connect("owner", filled.place) as owner:
        owner.execute("DELETE FROM bookings WHERE id = 'forged'")
        owner.execute(f"GRANT TEMPORARY ON DATABASE {filled.place} TO lee")
        try:
            failed, output = psql(server, "lee", filled.place, script)
        finally:
            owner.execute(f"REVOKE TEMPORARY ON DATABASE {filled.place} FROM lee")
    assert failed == 1
    assert 'violates exclusion constraint "no_overlap"' in output


JUNK = [
    ("bookings", "starts, ends", "now(), 'infinity'"),
    ("bookings", "starts, ends", "now(), '4000-01-01'"),
    ("bookings", "starts, ends, title", f"now(), now() + interval '1 h', repeat('x', {201})"),
    ("bookings", "starts, ends, purpose", "now(), now() + interval '1 h', repeat('x', 5001)"),
    ("bookings", "starts, ends, uid", "now(), now() + interval '1 h', repeat('x', 1001)"),
    ("bookings", "starts, ends, changed", "now(), now() + interval '1 h', 'infinity'"),
    ("waitlist", "wish", "'junk'"),
    ("waitlist", "wish", "'{}'"),
    ("waitlist", "wish", "'[1]'"),
    ("waitlist", "wish", "repeat('[', 19000)"),
    ("gpus", "id, host, model", "'GPU-x', 'gpu-x', repeat('x', 201)"),
    ("gpus", "id, host, model, number", "'GPU-x', 'gpu-x', '', -1"),
    ("uses", "starts, ends", "now(), 'infinity'"),
    ("idle_evidence", "booking_id, idle_since, seen_at", "'running', '-infinity', 'infinity'"),
]
DEFAULTS = {
    "bookings": {"id": "'j'", "owner": "'lee'", "title": "'t'", "purpose": "''", "zone": "'UTC'", "state": "'booked'",
                 "created": "now()", "changed": "now()", "stop_at_end": "false", "uid": "''"},
    "waitlist": {"id": "'j'", "owner": "'lee'", "title": "'t'", "zone": "'UTC'", "created": "now()",
                 "state": "'waiting'"},
    "gpus": {"memory_mb": "1"},
    "uses": {"gpu": "'GPU-a0'", "person": "'lee'", "host": "'gpu-a'", "reporter": "'lee'"},
    "idle_evidence": {"reporter": "'lee'"},
}  # fmt: skip


def junk(table: str, columns: str, values: str) -> str:
    rest = {name: value for name, value in DEFAULTS[table].items() if name not in columns.split(", ")}
    return (
        f"INSERT INTO torchyard.{table} ({', '.join([columns, *rest])}) SELECT {', '.join([values, *rest.values()])};"
    )


def test_values_that_no_reader_understands_are_refused(filled: Team) -> None:
    server = filled.server
    assert server is not None
    filled.open("ada").set_rules(Rules(longest_h=None))
    before = content(server, filled.place)
    failed, output = psql(server, "lee", filled.place, "\n".join(junk(*one) for one in JUNK))
    assert content(server, filled.place) == before
    assert failed == len(JUNK)
    assert output.count("violates check constraint") == len(JUNK), output


def test_who_asks_for_an_earlier_place_in_the_waitlist_has_the_last(filled: Team) -> None:
    server = filled.server
    assert server is not None
    ours = psql(
        server,
        "lee",
        filled.place,
        "INSERT INTO waitlist SELECT 'first', 'lee', title, wish, zone, '2001-01-01', 'waiting', NULL FROM waitlist"
        " WHERE owner = 'kim'; UPDATE waitlist SET created = '2001-01-01' WHERE id = 'first';",
    )
    assert ours[0] == 1
    with server.connect("owner", filled.place) as owner:
        assert owner.execute("SELECT created > now() - interval '1 min' FROM waitlist WHERE id = 'first'").fetchone()[0]


def test_forged_idleness_frees_no_booking(filled: Team) -> None:
    server = filled.server
    assert server is not None
    kim, lee = filled.open("kim"), filled.open("lee")
    running = kim.book(draft("a3", 0, 4))
    filled.clock.forward(hours=1)
    lee.record_idle([IdleEvidence(running.id, NOW, filled.clock.now)])
    forged = f"INSERT INTO idle_evidence VALUES ('{running.id}', 'lee', '{NOW}', '{filled.clock.now}');"
    assert "violates row-level security policy" in psql(server, "lee", filled.place, forged)[1]
    assert kim.apply_idle() == ()
    assert kim.booking(running.id) == running
    kim.record_idle([IdleEvidence(running.id, NOW, filled.clock.now)])
    assert [one.id for one in kim.apply_idle()] == [running.id]


def test_an_entry_that_cannot_be_read_is_skipped_and_named(filled: Team) -> None:
    server = filled.server
    assert server is not None
    with server.connect("owner", filled.place) as owner:
        owner.execute("ALTER TABLE waitlist DROP CONSTRAINT waitlist_wish_form")
        try:
            owner.execute("INSERT INTO waitlist VALUES ('junk', 'lee', 't', '{', 'UTC', now(), 'waiting', NULL)")
            ada = filled.open("ada")
            assert [one.owner for one in ada.waiting()] == ["kim"]
            ada.serve_waiting()
            assert ada.unreadable == {"the entry junk of lee in the waitlist"}
        finally:
            owner.execute("DELETE FROM waitlist WHERE id = 'junk'")
            owner.execute(
                "ALTER TABLE waitlist ADD CONSTRAINT waitlist_wish_form"
                " CHECK (state <> 'waiting' OR torchyard.is_wish(wish))"
            )


def test_an_admin_of_another_team_in_the_cluster_has_no_rights_here(filled: Team) -> None:
    server, database = filled.server, filled.place
    assert server is not None
    with server.connect("owner", "postgres") as owner:
        owner.execute("CREATE DATABASE others")
    try:
        setup_team(server.url("owner", "others"), ["ada"], ["zoe"])
        statements = [
            "UPDATE bookings SET title = 'x';",
            "DELETE FROM bookings;",
            "DELETE FROM booking_gpus;",
            "UPDATE gpus SET host = 'x';",
            "DELETE FROM waitlist;",
            "UPDATE rules SET body = '{}';",
            "DELETE FROM rules;",
            "DELETE FROM uses;",
            "INSERT INTO logins VALUES ('*', 'root', 'zoe');",
            "INSERT INTO gpus VALUES ('GPU-z', 'z', 0, '', 1);",
            "INSERT INTO members VALUES ('zoe', true);",
            "UPDATE members SET is_admin = true;",
            junk("bookings", "starts, ends, owner", "now(), now() + interval '1 h', 'zoe'"),
            junk("waitlist", "wish, owner", "(SELECT wish FROM waitlist LIMIT 1), 'zoe'"),
        ]
        before = content(server, database)
        _, output = psql(server, "zoe", database, "\n".join(statements))
        assert content(server, database) == before
        assert "syntax error" not in output
        with server.connect("zoe", database) as zoe:
            assert zoe.execute("SELECT count(*) FROM bookings").fetchone() == (0,)
        with pytest.raises(PermissionDenied, match="your role `zoe` is no member of the team"):
            open_store(server.url("zoe", database), "zoe")
        there = [open_store(server.url(person, "others"), person) for person in ("zoe", "ada")]
        assert [one.is_admin for one in there] == [True, False]
        for one in there:
            one.close()
    finally:
        with server.connect("owner", "postgres") as owner:
            owner.execute("DROP DATABASE others WITH (FORCE)")
            owner.execute("DROP ROLE IF EXISTS zoe")


def first_schema(connection: Connection) -> None:
    """Creates the calendar with the schema at version 0001."""
    from alembic import command
    from alembic.config import Config

    connection.exec_driver_sql("CREATE EXTENSION btree_gist SCHEMA public")
    connection.exec_driver_sql("CREATE SCHEMA torchyard")
    connection.exec_driver_sql("GRANT USAGE ON SCHEMA torchyard TO torchyard_member, torchyard_admin")
    config = Config()
    config.set_main_option("script_location", "torchyard_core.booking.store:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "0001")


def test_a_calendar_of_the_first_schema_is_brought_up_to_date_with_all_its_rows(postgres: Cluster) -> None:
    """The old schema accepted double bookings, infinite times, and malformed waitlist entries."""
    with postgres.connect("owner", "postgres") as owner:
        owner.execute("CREATE DATABASE shipped")
    try:
        engine = make_engine(make_url(postgres.url("owner", "shipped")))
        with transaction(engine, writes=True) as connection:
            first_schema(connection)
            for slot in SLOTS[:4]:
                connection.execute(
                    text("INSERT INTO gpus VALUES (:id, :host, :index, :model, :memory_mb)"), slot.__dict__
                )
        engine.dispose()
        with postgres.connect("kim", "shipped") as kim:
            kim.execute(
                "INSERT INTO bookings VALUES ('kims', 'kim', 'digits', '', %s, %s, 'UTC', 'booked', now(), now(),"
                " NULL, NULL, false, NULL, '')",
                (NOW + HOUR, NOW + 2 * HOUR),
            )
            kim.execute("INSERT INTO booking_gpus (booking_id, gpu) VALUES ('kims', 'GPU-a0')")
        script = HIDDEN.format(start=NOW + HOUR, end=NOW + 2 * HOUR)
        # The old schema accepts this double booking.
        assert psql(postgres, "lee", "shipped", script)[0] == 0
        refused = [one for one in JUNK if one[2].startswith("now(), 'infinity'") or one[0] == "waitlist"]
        wrong = [junk(*one).replace("'j'", f"'j{number}'") for number, one in enumerate(refused)]
        assert psql(postgres, "lee", "shipped", "\n".join(wrong))[0] == 0
        with postgres.connect("owner", "shipped") as owner:
            # The setup of the old schema granted this privilege.
            owner.execute("GRANT CONNECT ON DATABASE shipped TO kim")
        with pytest.raises(Exception, match="older Torchyard"):
            open_store(postgres.url("kim", "shipped"), "kim")

        setup_team(postgres.url("owner", "shipped"), ["lee"], ["ada"])
        open_store(postgres.url("kim", "shipped"), "kim").close()
        store = open_store(postgres.url("ada", "shipped"), "ada")
        try:
            found = {one.id: one for one in store.bookings(NOW - 99999 * HOUR, NOW + 99999 * HOUR)}
            assert found["kims"].title == "digits"
            assert found["j0"].end.year == 3000
            assert store.waiting() == ()
            assert len(store.waiting(everything=True)) == 0
            store.release("j0")
        finally:
            store.close()
        assert "permission denied" in psql(postgres, "lee", "shipped", script.replace("forged", "again"))[1]
        setup_team(postgres.url("owner", "shipped"), ["kim"])
    finally:
        with postgres.connect("owner", "postgres") as owner:
            owner.execute("DROP DATABASE IF EXISTS shipped WITH (FORCE)")


@pytest.mark.parametrize(("hours", "fits"), [(168, True), (168 + 1 / 3600, False), (400, False)])
def test_the_longest_booking_is_the_same_in_the_database_as_in_python(
    database_team: Team, hours: float, fits: bool
) -> None:
    server, wanted = database_team.server, draft("a0", 1, hours)
    assert server is not None
    refused = database_team.open("lee").refusal(wanted)
    assert (refused is None) is fits
    assert refused is None or isinstance(refused, Refused)
    with server.connect("lee", database_team.place) as lee:
        row = (
            "INSERT INTO bookings VALUES"
            " ('b', 'lee', 't', '', %s, %s, 'UTC', 'booked', now(), now(), NULL, NULL, false, NULL, '')"
        )
        if fits:
            lee.execute(row, (wanted.start, wanted.end))
        else:
            with pytest.raises(psycopg.errors.CheckViolation, match="at most 168 h long"):
                lee.execute(row, (wanted.start, wanted.end))
