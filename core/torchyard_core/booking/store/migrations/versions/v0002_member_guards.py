"""PostgreSQL: functions with a fixed search path, column privileges, guards of past bookings, and limits on values.

Members may send any SQL. Functions therefore pin their search path with `pg_temp` last, because temporary tables take
precedence by default, and qualify tables with their schema. They compare times with `clock_timestamp()`, since `now()`
is the start of a transaction, which may have been opened hours ago. The roles `torchyard_member` and `torchyard_admin`
hold the privileges and exist in the whole database cluster; the table `members` lists this team's members and admins.
SQLite files have a single user and are not changed.
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

PATH = "SET search_path = pg_catalog, torchyard, pg_temp"
LIVE = "('booked', 'active')"
EARLIEST, LATEST = "timestamptz '1970-01-01 00:00Z'", "timestamptz '3000-01-01 00:00Z'"
TEXTS = {
    "gpus": {"id": 200, "host": 255, "model": 200},
    "series": {"id": 64, "owner": 63, "title": 200, "rule": 2000, "zone": 100},
    "bookings": {
        "id": 64, "owner": 63, "title": 200, "purpose": 5000, "zone": 100, "run_id": 200, "uid": 1000
    },
    "booking_gpus": {"gpu": 200},
    "waitlist": {"id": 64, "owner": 63, "title": 200, "zone": 100, "wish": 20000, "booking_id": 64},
    "uses": {"gpu": 200, "person": 1000, "host": 255, "run_id": 200, "reporter": 63},
    "idle_evidence": {"reporter": 63},
    "logins": {"host_pattern": 255, "unix_user": 255, "person": 63},
}  # fmt: skip
"""Maximum number of characters of each column that contains text, by table."""
TIMES = {
    "series": ("starts", "ends", "created"),
    "bookings": ("starts", "ends", "created", "changed", "let_go_at"),
    "waitlist": ("created",),
    "uses": ("starts", "ends"),
    "idle_evidence": ("idle_since", "seen_at"),
}


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    for statement in [*MEMBERS, *FUNCTIONS, *repairs(), *checks(), *TRIGGERS, *privileges()]:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("the guards of a team's database are not removed")


OWNS = """pg_has_role(current_user, (SELECT c.relowner FROM pg_catalog.pg_class AS c
          WHERE c.oid = 'torchyard.members'::regclass), 'USAGE')"""
MEMBERS = [
    "CREATE TABLE torchyard.members (name text PRIMARY KEY, is_admin boolean NOT NULL)",
    # Earlier versions of the setup granted CONNECT on the database to each role of the team by name.
    """INSERT INTO torchyard.members
       SELECT DISTINCT r.rolname, pg_has_role(r.oid, 'torchyard_admin', 'MEMBER')
       FROM pg_catalog.pg_roles AS r, pg_catalog.pg_database AS d, aclexplode(d.datacl) AS granted
       WHERE d.datname = current_database() AND granted.grantee = r.oid AND granted.privilege_type = 'CONNECT'
       AND r.rolcanlogin AND pg_has_role(r.oid, 'torchyard_member', 'MEMBER')""",
]
FUNCTIONS = [
    f"""CREATE FUNCTION torchyard.is_member() RETURNS boolean LANGUAGE sql STABLE {PATH} AS
        $$ SELECT EXISTS (SELECT 1 FROM torchyard.members AS m WHERE m.name = current_user) OR {OWNS} $$""",
    f"""CREATE FUNCTION torchyard.is_admin() RETURNS boolean LANGUAGE sql STABLE {PATH} AS
        $$ SELECT EXISTS (SELECT 1 FROM torchyard.members AS m WHERE m.name = current_user AND m.is_admin)
           OR {OWNS} $$""",
    f"""CREATE OR REPLACE FUNCTION torchyard.may_write(owner text) RETURNS boolean LANGUAGE sql STABLE {PATH} AS
        $$ SELECT owner = current_user AND torchyard.is_member() OR torchyard.is_admin() $$""",
    # This function returns false for values that Python could not parse. Python performs the other checks.
    rf"""CREATE FUNCTION torchyard.is_wish(wish text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE {PATH} AS $$
        DECLARE
          w jsonb;
          moment CONSTANT text :=
            '^[12]\d{{3}}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ$';
        BEGIN
          w := wish::jsonb;
          RETURN coalesce(
            jsonb_typeof(w) = 'object'
            AND (SELECT array_agg(key ORDER BY key COLLATE "C") FROM jsonb_object_keys(w) AS key) = ARRAY[
              'count', 'earliest', 'gpus', 'hosts', 'latest', 'length', 'min_memory_gb', 'model', 'one_host']
            AND jsonb_typeof(w -> 'count') = 'number' AND (w ->> 'count') ~ '^[1-9]\d{{0,4}}$'
            AND jsonb_typeof(w -> 'length') = 'number' AND (w ->> 'length')::numeric BETWEEN 60 AND 1e9
            AND jsonb_typeof(w -> 'earliest') = 'string' AND (w ->> 'earliest') ~ moment
            AND (w -> 'latest' = 'null' OR jsonb_typeof(w -> 'latest') = 'string' AND (w ->> 'latest') ~ moment)
            AND jsonb_typeof(w -> 'min_memory_gb') = 'number' AND (w ->> 'min_memory_gb')::numeric BETWEEN 0 AND 1e6
            AND jsonb_typeof(w -> 'model') = 'string' AND jsonb_typeof(w -> 'one_host') = 'boolean'
            AND jsonb_typeof(w -> 'hosts') = 'array' AND jsonb_typeof(w -> 'gpus') = 'array'
            AND NOT EXISTS (SELECT 1 FROM jsonb_array_elements((w -> 'hosts') || (w -> 'gpus')) AS one
                            WHERE jsonb_typeof(one) <> 'string'), false);
        EXCEPTION WHEN OTHERS THEN RETURN false;
        END $$""",
    # FOR SHARE prevents changes to the booking before the commit. The policies prevent a member from locking another
    # user's booking: the query then returns no row, so `owner` becomes NULL and the new row is refused.
    f"""CREATE OR REPLACE FUNCTION torchyard.fill_row() RETURNS trigger LANGUAGE plpgsql {PATH} AS $$
        BEGIN
          SELECT b.owner, b.starts, b.ends, b.state IN {LIVE} INTO NEW.owner, NEW.starts, NEW.ends, NEW.live
          FROM torchyard.bookings AS b WHERE b.id = NEW.booking_id FOR SHARE;
          IF TG_OP = 'INSERT' AND NOT torchyard.is_admin()
             AND (NOT NEW.live OR NEW.starts < clock_timestamp() - interval '5 minutes') THEN
            RAISE EXCEPTION 'torchyard: the past stays as it was' USING ERRCODE = 'check_violation';
          END IF;
          RETURN NEW;
        END $$""",
    # The function runs as the tables' owner, because members have no privilege to update rows of booking_gpus.
    f"""CREATE OR REPLACE FUNCTION torchyard.rows_follow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
        {PATH} AS $$
        DECLARE one text;
        BEGIN
          FOR one IN SELECT r.gpu FROM torchyard.booking_gpus AS r WHERE r.booking_id = NEW.id ORDER BY r.gpu LOOP
            UPDATE torchyard.booking_gpus AS r SET starts = NEW.starts WHERE r.booking_id = NEW.id AND r.gpu = one;
          END LOOP;
          RETURN NULL;
        END $$""",
    f"""CREATE FUNCTION torchyard.waits_in_order() RETURNS trigger LANGUAGE plpgsql {PATH} AS $$
        BEGIN
          IF torchyard.is_admin() THEN
            RETURN NEW;
          END IF;
          IF TG_OP = 'INSERT' THEN
            NEW.created := greatest(NEW.created, clock_timestamp());
          ELSE
            NEW.created := OLD.created;
          END IF;
          IF TG_OP = 'INSERT' AND NEW.state <> 'waiting' OR TG_OP = 'UPDATE' AND OLD.state <> 'waiting' THEN
            RAISE EXCEPTION 'torchyard: the past stays as it was' USING ERRCODE = 'check_violation';
          END IF;
          RETURN NEW;
        END $$""",
    f"""CREATE FUNCTION torchyard.uses_grow() RETURNS trigger LANGUAGE plpgsql {PATH} AS $$
        BEGIN
          NEW.ends := greatest(NEW.ends, OLD.ends);
          RETURN NEW;
        END $$""",
    f"""CREATE OR REPLACE FUNCTION torchyard.tell() RETURNS trigger LANGUAGE plpgsql {PATH} AS
        $$ BEGIN PERFORM pg_notify('torchyard_bookings', TG_TABLE_NAME); RETURN NULL; END $$""",
]
TRIGGERS = [
    """CREATE TRIGGER waits_in_order BEFORE INSERT OR UPDATE ON torchyard.waitlist
       FOR EACH ROW EXECUTE FUNCTION torchyard.waits_in_order()""",
    """CREATE TRIGGER uses_grow BEFORE UPDATE ON torchyard.uses FOR EACH ROW EXECUTE FUNCTION torchyard.uses_grow()""",
]


def repairs() -> list[str]:
    """Returns statements that repair rows which the new constraints would refuse.

    Unreadable entries of the waitlist are withdrawn, bookings outside the allowed times are cancelled, and usage
    records outside the allowed range are deleted. In all other rows, times are moved into the allowed range, and text
    is truncated. All evidence of idleness is deleted, since earlier versions did not check its author.
    """
    cut = [
        f"""UPDATE torchyard.{table} SET {column} = least(greatest({column}, {EARLIEST}), {LATEST})
            WHERE {column} NOT BETWEEN {EARLIEST} AND {LATEST}"""
        for table, columns in TIMES.items()
        for column in columns
        if table not in ("idle_evidence", "uses") and column not in ("starts", "ends")
    ]
    both = [
        f"""UPDATE torchyard.{table} SET starts = least(greatest(starts, {EARLIEST}), {LATEST} - interval '1 minute'),
            ends = greatest(least(ends, {LATEST}), {EARLIEST} + interval '1 minute')
            WHERE starts < {EARLIEST} OR ends > {LATEST}"""
        for table in ("series", "bookings")
    ]
    read = {"bookings": ("title", "purpose", "uid"), "waitlist": ("title", "wish"), "series": ("title",)}
    shortened = [
        f"UPDATE torchyard.{table} SET {column} = left({column}, {most}) WHERE length({column}) > {most}"
        for table, columns in read.items()
        for column, most in ((column, TEXTS[table][column]) for column in columns)
    ]
    return [
        "DELETE FROM torchyard.idle_evidence",
        "ALTER TABLE torchyard.bookings DISABLE TRIGGER past_stays",
        "UPDATE torchyard.waitlist SET state = 'withdrawn' WHERE state = 'waiting' AND NOT torchyard.is_wish(wish)",
        f"""DELETE FROM torchyard.uses WHERE starts NOT BETWEEN {EARLIEST} AND {LATEST}
            OR ends NOT BETWEEN {EARLIEST} AND {LATEST} OR length(person) > {TEXTS["uses"]["person"]}""",
        f"""UPDATE torchyard.bookings SET state = 'cancelled', let_go_at = now()
            WHERE starts >= {LATEST} OR ends <= {EARLIEST}""",
        *cut,
        *both,
        *shortened,
        "ALTER TABLE torchyard.bookings ENABLE TRIGGER past_stays",
    ]


def checks() -> list[str]:
    """Returns statements that add the constraints.

    Constraints on text, numbers and rules are not validated for existing rows, because an invalid row would prevent the
    upgrade.
    """
    return [
        *(
            f"ALTER TABLE torchyard.{table} ADD CONSTRAINT {table}_{column}_length CHECK (length({column}) <= {most})"
            " NOT VALID"
            for table, columns in TEXTS.items()
            for column, most in columns.items()
        ),
        *(
            f"""ALTER TABLE torchyard.{table} ADD CONSTRAINT {table}_{column}_time
                CHECK ({column} BETWEEN {EARLIEST} AND {LATEST})"""
            for table, columns in TIMES.items()
            for column in columns
        ),
        """ALTER TABLE torchyard.gpus ADD CONSTRAINT gpus_numbers
           CHECK (number BETWEEN 0 AND 9999 AND memory_mb BETWEEN 0 AND 1000000000) NOT VALID""",
        """ALTER TABLE torchyard.rules ADD CONSTRAINT rules_body_form
           CHECK (jsonb_typeof(body::jsonb) = 'object') NOT VALID""",
        """ALTER TABLE torchyard.waitlist ADD CONSTRAINT waitlist_wish_form
           CHECK (state <> 'waiting' OR torchyard.is_wish(wish))""",
    ]


def privileges() -> list[str]:
    """Returns statements that set the policies and privileges of each role, and revoke all other privileges."""
    tables = ("gpus", "rules", "logins", "members", "alembic_version")
    read_before = ("series", "bookings", "booking_gpus", "waitlist", "uses", "idle_evidence")
    found = "EXISTS (SELECT 1 FROM torchyard.bookings AS b WHERE b.id = booking_id AND b.owner = current_user)"
    own_evidence = f"torchyard.is_admin() AND reporter = current_user OR reporter = current_user AND {found}"
    not_begun = "live AND starts > clock_timestamp() - interval '5 minutes'"
    return [
        *(f"ALTER TABLE torchyard.{table} ENABLE ROW LEVEL SECURITY" for table in tables),
        *(f"DROP POLICY everybody_reads ON torchyard.{table}" for table in read_before),
        *(  # The subselect is evaluated once for each statement instead of once for each row.
            f"CREATE POLICY members_read ON torchyard.{table} FOR SELECT USING ((SELECT torchyard.is_member()))"
            for table in (*read_before, "gpus", "rules", "logins")
        ),
        *(  # Every role with the privilege to select may read the list of members and the revision of the schema.
            f"CREATE POLICY everybody_reads ON torchyard.{table} FOR SELECT USING (true)"
            for table in ("members", "alembic_version")
        ),
        *(
            f"""CREATE POLICY admins_write ON torchyard.{table} FOR ALL
                USING (torchyard.is_admin()) WITH CHECK (torchyard.is_admin())"""
            for table in ("gpus", "rules", "logins")
        ),
        "CREATE POLICY members_add ON torchyard.gpus FOR INSERT WITH CHECK (torchyard.is_member())",
        *(f"DROP POLICY own_deletes ON torchyard.{table}" for table in read_before[:4]),
        *(
            f"CREATE POLICY admins_delete ON torchyard.{table} FOR DELETE USING (torchyard.is_admin())"
            for table in (*read_before[:2], *read_before[3:])
        ),
        *(f"DROP POLICY own_updates ON torchyard.{table}" for table in ("series", "booking_gpus")),
        *(
            f"""CREATE POLICY admins_update ON torchyard.{table} FOR UPDATE
                USING (torchyard.is_admin()) WITH CHECK (torchyard.is_admin())"""
            for table in ("series", "booking_gpus")
        ),
        f"""CREATE POLICY own_deletes ON torchyard.booking_gpus FOR DELETE
            USING (torchyard.is_admin() OR torchyard.may_write(owner) AND {not_begun})""",
        "DROP POLICY own_inserts ON torchyard.idle_evidence",
        "DROP POLICY own_updates ON torchyard.idle_evidence",
        f"CREATE POLICY own_inserts ON torchyard.idle_evidence FOR INSERT WITH CHECK ({own_evidence})",
        f"""CREATE POLICY own_updates ON torchyard.idle_evidence FOR UPDATE
            USING ({own_evidence}) WITH CHECK ({own_evidence})""",
        "REVOKE ALL ON ALL TABLES IN SCHEMA torchyard FROM PUBLIC, torchyard_member, torchyard_admin",
        "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA torchyard FROM PUBLIC",
        """GRANT EXECUTE ON FUNCTION torchyard.is_member(), torchyard.is_admin(), torchyard.may_write(text),
           torchyard.is_wish(text) TO torchyard_member, torchyard_admin""",
        "GRANT SELECT ON ALL TABLES IN SCHEMA torchyard TO torchyard_member",
        """GRANT INSERT ON torchyard.gpus, torchyard.series, torchyard.bookings, torchyard.booking_gpus,
           torchyard.waitlist, torchyard.uses, torchyard.idle_evidence TO torchyard_member""",
        """GRANT UPDATE (title, purpose, starts, ends, state, changed, run_id, stop_at_end, let_go_at)
           ON torchyard.bookings TO torchyard_member""",
        "GRANT DELETE ON torchyard.booking_gpus TO torchyard_member",
        "GRANT UPDATE (state, booking_id) ON torchyard.waitlist TO torchyard_member",
        "GRANT UPDATE (ends, host, run_id) ON torchyard.uses TO torchyard_member",
        "GRANT UPDATE (idle_since, seen_at) ON torchyard.idle_evidence TO torchyard_member",
        """GRANT INSERT, UPDATE, DELETE ON torchyard.gpus, torchyard.series, torchyard.bookings, torchyard.booking_gpus,
           torchyard.waitlist, torchyard.uses, torchyard.idle_evidence, torchyard.rules, torchyard.logins
           TO torchyard_admin""",
    ]
