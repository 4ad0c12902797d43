"""The initial schema. It prevents bookings from overlapping, whichever program writes them.

SQLite has triggers that raise an error, PostgreSQL an exclusion constraint. In PostgreSQL, row-level security of the
bookings, the waitlist and the usage records allows roles to read all rows, and members to write only their own rows.
Members never own a table, since owners are exempt from row-level security.
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

LIVE = "('booked', 'active')"
LIVE_ROWS = {"timestamptz": "live", "INTEGER": "live = 1"}
STATES = "('booked', 'active', 'released', 'cancelled', 'no_show')"


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    for statement in _tables(*(("timestamptz", "boolean") if postgres else ("INTEGER", "INTEGER"))):
        op.execute(statement)
    for statement in POSTGRES if postgres else SQLITE:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("there is no schema before the first")


def _tables(moment: str, boolean: str) -> list[str]:
    during = ", during tstzrange GENERATED ALWAYS AS (tstzrange(starts, ends, '[)')) STORED" * (moment == "timestamptz")
    return [
        "CREATE TABLE gpus (id text PRIMARY KEY, host text NOT NULL, number integer, model text NOT NULL,"
        " memory_mb integer NOT NULL)",
        f"""CREATE TABLE series (id text PRIMARY KEY, owner text NOT NULL, title text NOT NULL, rule text NOT NULL,
            starts {moment} NOT NULL, ends {moment} NOT NULL, zone text NOT NULL, created {moment} NOT NULL,
            CHECK (ends > starts))""",
        f"""CREATE TABLE bookings (id text PRIMARY KEY, owner text NOT NULL, title text NOT NULL, purpose text NOT NULL,
            starts {moment} NOT NULL, ends {moment} NOT NULL, zone text NOT NULL,
            state text NOT NULL CHECK (state IN {STATES}), created {moment} NOT NULL, changed {moment} NOT NULL,
            series_id text REFERENCES series (id), run_id text, stop_at_end {boolean} NOT NULL, let_go_at {moment},
            uid text NOT NULL, CHECK (ends > starts))""",
        "CREATE INDEX bookings_by_start ON bookings (starts)",
        "CREATE INDEX bookings_by_end ON bookings (ends)",
        "CREATE INDEX bookings_by_owner ON bookings (owner, ends)",
        "CREATE INDEX bookings_by_series ON bookings (series_id)",
        "CREATE INDEX bookings_by_uid ON bookings (uid)",
        f"""CREATE TABLE booking_gpus (booking_id text NOT NULL REFERENCES bookings (id) ON DELETE CASCADE,
            gpu text NOT NULL, owner text NOT NULL, starts {moment} NOT NULL, ends {moment} NOT NULL,
            live {boolean} NOT NULL{during}, PRIMARY KEY (booking_id, gpu), CHECK (ends > starts))""",
        f"CREATE INDEX live_gpus ON booking_gpus (gpu, starts, ends, live) WHERE {LIVE_ROWS[moment]}",
        f"""CREATE TABLE waitlist (id text PRIMARY KEY, owner text NOT NULL, title text NOT NULL, wish text NOT NULL,
            zone text NOT NULL, created {moment} NOT NULL,
            state text NOT NULL CHECK (state IN ('waiting', 'booked', 'withdrawn')), booking_id text)""",
        f"""CREATE TABLE uses (gpu text NOT NULL, starts {moment} NOT NULL, person text NOT NULL,
            ends {moment} NOT NULL, host text NOT NULL, run_id text, reporter text NOT NULL,
            PRIMARY KEY (gpu, starts, person, reporter))""",
        "CREATE INDEX uses_by_end ON uses (ends)",
        f"""CREATE TABLE idle_evidence (booking_id text NOT NULL REFERENCES bookings (id) ON DELETE CASCADE,
            reporter text NOT NULL, idle_since {moment} NOT NULL, seen_at {moment} NOT NULL,
            PRIMARY KEY (booking_id, reporter))""",
        "CREATE TABLE rules (id integer PRIMARY KEY CHECK (id = 1), body text NOT NULL)",
        "CREATE TABLE logins (host_pattern text NOT NULL, unix_user text NOT NULL, person text NOT NULL,"
        " PRIMARY KEY (host_pattern, unix_user, person))",
    ]


# Live rows of one GPU never overlap. Among those that begin before the end of the new row, the last one to begin is
# therefore also the last one to end.
_TAKEN = """(SELECT ends FROM booking_gpus WHERE gpu = NEW.gpu AND live = 1 AND starts < NEW.ends
             AND booking_id <> NEW.booking_id ORDER BY starts DESC LIMIT 1) > NEW.starts"""
SQLITE = [
    f"""CREATE TRIGGER no_overlap_inserted BEFORE INSERT ON booking_gpus WHEN NEW.live AND {_TAKEN}
        BEGIN SELECT RAISE(ABORT, 'torchyard: overlap'); END""",
    f"""CREATE TRIGGER no_overlap_updated BEFORE UPDATE ON booking_gpus WHEN NEW.live AND {_TAKEN}
        BEGIN SELECT RAISE(ABORT, 'torchyard: overlap'); END""",
    f"""CREATE TRIGGER rows_follow AFTER UPDATE OF starts, ends, state, owner ON bookings
        BEGIN UPDATE booking_gpus SET starts = NEW.starts, ends = NEW.ends, owner = NEW.owner,
        live = (NEW.state IN {LIVE}) WHERE booking_id = NEW.id; END""",
]

POSTGRES = [
    """ALTER TABLE booking_gpus ADD CONSTRAINT no_overlap
       EXCLUDE USING gist (gpu WITH =, during WITH &&) WHERE (live)""",
    "ALTER TABLE booking_gpus ADD CONSTRAINT not_empty CHECK (NOT isempty(during))",
    """CREATE FUNCTION may_write(owner text) RETURNS boolean LANGUAGE sql STABLE AS
       $$ SELECT owner = current_user OR pg_has_role(current_user, 'torchyard_admin', 'MEMBER') $$""",
    f"""CREATE FUNCTION fill_row() RETURNS trigger LANGUAGE plpgsql AS $$
       BEGIN
         SELECT b.owner, b.starts, b.ends, b.state IN {LIVE} INTO NEW.owner, NEW.starts, NEW.ends, NEW.live
         FROM bookings b WHERE b.id = NEW.booking_id;
         RETURN NEW;
       END $$""",
    """CREATE TRIGGER rows_agree BEFORE INSERT OR UPDATE ON booking_gpus
       FOR EACH ROW EXECUTE FUNCTION fill_row()""",
    """CREATE FUNCTION rows_follow() RETURNS trigger LANGUAGE plpgsql AS $$
       DECLARE one text;
       BEGIN
         FOR one IN SELECT gpu FROM booking_gpus WHERE booking_id = NEW.id ORDER BY gpu LOOP
           UPDATE booking_gpus SET starts = NEW.starts WHERE booking_id = NEW.id AND gpu = one;
         END LOOP;
         RETURN NULL;
       END $$""",
    """CREATE TRIGGER rows_follow AFTER UPDATE OF starts, ends, state, owner ON bookings
       FOR EACH ROW EXECUTE FUNCTION rows_follow()""",
    """CREATE FUNCTION past_stays() RETURNS trigger LANGUAGE plpgsql AS $$
       BEGIN
         IF NOT pg_has_role(current_user, 'torchyard_admin', 'MEMBER') AND
            (NEW.ends < now() - interval '5 minutes' AND NEW.state IN ('booked', 'active')
             OR TG_OP = 'INSERT' AND NEW.starts < now() - interval '5 minutes'
             OR TG_OP = 'UPDATE' AND OLD.ends < now() - interval '5 minutes') THEN
           RAISE EXCEPTION 'torchyard: the past stays as it was' USING ERRCODE = 'check_violation';
         END IF;
         RETURN NEW;
       END $$""",
    """CREATE TRIGGER past_stays BEFORE INSERT OR UPDATE ON bookings FOR EACH ROW EXECUTE FUNCTION past_stays()""",
    """CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN PERFORM pg_notify('torchyard_bookings', TG_TABLE_NAME); RETURN NULL; END $$""",
    *(
        f"""CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON {table}
            FOR EACH STATEMENT EXECUTE FUNCTION tell()"""
        for table in ("bookings", "waitlist", "rules", "gpus", "idle_evidence", "logins")
    ),
    *(
        statement
        for table in ("series", "bookings", "booking_gpus", "waitlist")
        for statement in (
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"CREATE POLICY everybody_reads ON {table} FOR SELECT USING (true)",
            f"CREATE POLICY own_inserts ON {table} FOR INSERT WITH CHECK (may_write(owner))",
            f"CREATE POLICY own_updates ON {table} FOR UPDATE USING (may_write(owner)) WITH CHECK (may_write(owner))",
            f"CREATE POLICY own_deletes ON {table} FOR DELETE USING (may_write(owner))",
        )
    ),
    *(
        statement
        for table in ("uses", "idle_evidence")
        for statement in (
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"CREATE POLICY everybody_reads ON {table} FOR SELECT USING (true)",
            f"CREATE POLICY own_inserts ON {table} FOR INSERT WITH CHECK (may_write(reporter))",
            f"CREATE POLICY own_updates ON {table} FOR UPDATE USING (may_write(reporter))",
        )
    ),
    "GRANT SELECT ON ALL TABLES IN SCHEMA torchyard TO torchyard_member",
    "GRANT INSERT, UPDATE ON gpus, series, bookings, waitlist, uses, idle_evidence TO torchyard_member",
    "GRANT INSERT, UPDATE, DELETE ON booking_gpus TO torchyard_member",
    "GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA torchyard TO torchyard_admin",
    "REVOKE INSERT, UPDATE, DELETE ON alembic_version FROM torchyard_member, torchyard_admin",
]
