"""The history of bookings: an append-only table that triggers write, in PostgreSQL and in SQLite.

In PostgreSQL the person is the role that logged in, and the desktop is the name that the client gives in
`application_name`. A SQLite file has no roles, so a client writes the person and the desktop to the table `acting`
during its transaction. Rows of one transaction have the same `step`.
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

PATH = "SET search_path = pg_catalog, torchyard, pg_temp"
KEPT = (
    "owner", "title", "purpose", "starts", "ends", "zone", "state", "series_id", "run_id", "stop_at_end", "let_go_at"
)  # fmt: skip


def upgrade() -> None:
    for statement in POSTGRES if op.get_bind().dialect.name == "postgresql" else sqlite():
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("the history is not deleted")


def sqlite() -> list[str]:
    def row(which: str) -> str:
        # JSON cannot hold a blob, but SQLite allows a blob in any column. Without the conversion, the trigger would
        # fail on a row with a blob, which could then not be repaired.
        columns = ", ".join(
            f"'{name}', CASE typeof({which}.{name}) WHEN 'blob' THEN hex({which}.{name}) ELSE {which}.{name} END"
            for name in KEPT
        )
        return f"json_object({columns})"

    def noted(booking: str, before: str, after: str) -> str:
        return f"""INSERT INTO booking_history (at, step, booking_id, person, desktop, before, after)
            SELECT CAST(strftime('%s', 'now') AS INTEGER), coalesce(max(step), 0), {booking},
            coalesce(max(person), ''), coalesce(max(desktop), ''), {before}, {after} FROM acting"""

    differs = " OR ".join(f"NEW.{name} IS NOT OLD.{name}" for name in KEPT)
    new_gpu, old_gpu = "json_object('gpu', NEW.gpu)", "json_object('gpu', OLD.gpu)"
    return [
        """CREATE TABLE booking_history (id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL,
           step INTEGER NOT NULL, booking_id text NOT NULL, person text NOT NULL, desktop text NOT NULL,
           before text, after text)""",
        "CREATE INDEX booking_history_by_booking ON booking_history (booking_id, id)",
        "CREATE TABLE acting (step INTEGER NOT NULL, person text NOT NULL, desktop text NOT NULL)",
        *(
            f"CREATE TRIGGER {name} AFTER {event} FOR EACH ROW {when} BEGIN {does}; END"
            for name, event, when, does in (
                ("noted_made", "INSERT ON bookings", "", noted("NEW.id", "NULL", row("NEW"))),
                ("noted_changed", "UPDATE ON bookings", f"WHEN {differs}", noted("NEW.id", row("OLD"), row("NEW"))),
                ("noted_gone", "DELETE ON bookings", "", noted("OLD.id", row("OLD"), "NULL")),
                ("noted_gpu", "INSERT ON booking_gpus", "", noted("NEW.booking_id", "NULL", new_gpu)),
                ("noted_gpu_gone", "DELETE ON booking_gpus", "", noted("OLD.booking_id", old_gpu, "NULL")),
            )
        ),
        *(
            f"""CREATE TRIGGER history_stays_{event.lower()} BEFORE {event} ON booking_history
                BEGIN SELECT RAISE(ABORT, 'torchyard: the past stays as it was'); END"""
            for event in ("UPDATE", "DELETE")
        ),
    ]


POSTGRES = [
    """CREATE TABLE torchyard.booking_history (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
       at timestamptz NOT NULL, step bigint NOT NULL, booking_id text NOT NULL, person text NOT NULL,
       desktop text NOT NULL, before text, after text)""",
    "CREATE INDEX booking_history_by_booking ON torchyard.booking_history (booking_id, id)",
    # The function runs as the tables' owner, so neither members nor admins need the right to write to this table.
    f"""CREATE FUNCTION torchyard.note_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER {PATH} AS $$
        DECLARE
          before jsonb;
          after jsonb;
          booking text;
        BEGIN
          IF TG_OP <> 'INSERT' THEN
            before := to_jsonb(OLD);
          END IF;
          IF TG_OP <> 'DELETE' THEN
            after := to_jsonb(NEW);
          END IF;
          IF TG_TABLE_NAME = 'bookings' THEN
            booking := coalesce(after, before) ->> 'id';
            before := before - '{{id,created,changed,uid}}'::text[];
            after := after - '{{id,created,changed,uid}}'::text[];
          ELSE
            booking := coalesce(after, before) ->> 'booking_id';
            before := nullif(jsonb_build_object('gpu', before -> 'gpu'), '{{"gpu": null}}');
            after := nullif(jsonb_build_object('gpu', after -> 'gpu'), '{{"gpu": null}}');
          END IF;
          IF before IS DISTINCT FROM after THEN
            INSERT INTO torchyard.booking_history (at, step, booking_id, person, desktop, before, after)
            VALUES (clock_timestamp(), txid_current(), booking, session_user,
                    left(current_setting('application_name'), 63), before::text, after::text);
          END IF;
          RETURN NULL;
        END $$""",
    """CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE ON torchyard.bookings
       FOR EACH ROW EXECUTE FUNCTION torchyard.note_change()""",
    """CREATE TRIGGER note_change AFTER INSERT OR DELETE ON torchyard.booking_gpus
       FOR EACH ROW EXECUTE FUNCTION torchyard.note_change()""",
    "ALTER TABLE torchyard.booking_history ENABLE ROW LEVEL SECURITY",
    """CREATE POLICY members_read ON torchyard.booking_history FOR SELECT
       USING ((SELECT torchyard.is_member()))""",
    "REVOKE ALL ON torchyard.booking_history FROM PUBLIC, torchyard_member, torchyard_admin",
    "REVOKE ALL ON FUNCTION torchyard.note_change() FROM PUBLIC",
    "GRANT SELECT ON torchyard.booking_history TO torchyard_member",
]
