"""A log of changed bookings. It lets a reader load only the bookings that changed since its last read.

Each entry has a number in the order of commits, and a random token. A reader whose last entry is missing (a restored
backup, a new database, pruned entries) reads all bookings again. In PostgreSQL a deferred trigger writes entries at
commit under a lock. If numbers were assigned before the commit, they could become visible out of order, and a reader
between two commits would miss the lower number.
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

PATH = "SET search_path = pg_catalog, torchyard, pg_temp"
KEPT = 50_000
"""Minimum number of newest entries that are kept.

A client whose last read entry has been deleted reads all bookings again.
"""
LOCK = 7_240_118_004
"""An arbitrary number for an advisory lock. Other advisory locks use other numbers, or hashes of names."""


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    for statement in POSTGRES if postgres else SQLITE:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("this version needs the log")


def _log(which: str, more: str = "") -> str:
    other = f" UNION SELECT {more}" if more else ""
    return f"INSERT INTO booking_changes (booking_id) SELECT {which}{other};"


SQLITE = [
    """CREATE TABLE booking_changes (seq INTEGER PRIMARY KEY AUTOINCREMENT, booking_id text NOT NULL,
       token text NOT NULL DEFAULT (lower(hex(randomblob(8)))))""",
    "INSERT INTO booking_changes (booking_id) VALUES ('')",
    f"CREATE TRIGGER log_inserted AFTER INSERT ON bookings BEGIN {_log('NEW.id')} END",
    f"CREATE TRIGGER log_updated AFTER UPDATE ON bookings BEGIN {_log('NEW.id', 'OLD.id')} END",
    f"CREATE TRIGGER log_deleted AFTER DELETE ON bookings BEGIN {_log('OLD.id')} END",
    f"CREATE TRIGGER log_gpu_inserted AFTER INSERT ON booking_gpus BEGIN {_log('NEW.booking_id')} END",
    f"""CREATE TRIGGER log_gpu_updated AFTER UPDATE OF booking_id, gpu ON booking_gpus
        BEGIN {_log("NEW.booking_id", "OLD.booking_id")} END""",
    f"CREATE TRIGGER log_gpu_deleted AFTER DELETE ON booking_gpus BEGIN {_log('OLD.booking_id')} END",
    f"""CREATE TRIGGER prune_changes AFTER INSERT ON booking_changes WHEN NEW.seq % 1000 = 0
        BEGIN DELETE FROM booking_changes WHERE seq <= NEW.seq - {KEPT}; END""",
]

POSTGRES = [
    """CREATE TABLE torchyard.booking_changes (
       seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, booking_id text NOT NULL,
       token text NOT NULL DEFAULT substr(md5(random()::text || clock_timestamp()::text), 1, 16))""",
    "INSERT INTO torchyard.booking_changes (booking_id) VALUES ('')",
    # The function runs as the tables' owner, since members cannot write entries. It also reports changes to a booking's
    # GPUs.
    f"""CREATE FUNCTION torchyard.log_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER {PATH} AS $$
        DECLARE
          before text := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) ->> TG_ARGV[0] END;
          after text := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) ->> TG_ARGV[0] END;
          last bigint;
        BEGIN
          PERFORM pg_advisory_xact_lock({LOCK});
          INSERT INTO torchyard.booking_changes (booking_id) VALUES (coalesce(after, before)) RETURNING seq INTO last;
          IF before <> after THEN
            INSERT INTO torchyard.booking_changes (booking_id) VALUES (before) RETURNING seq INTO last;
          END IF;
          IF mod(last, 1000) = 0 THEN
            DELETE FROM torchyard.booking_changes AS c WHERE c.seq <= last - {KEPT};
          END IF;
          PERFORM pg_notify('torchyard_bookings', 'bookings');
          RETURN NULL;
        END $$""",
    """CREATE CONSTRAINT TRIGGER log_change AFTER INSERT OR UPDATE OR DELETE ON torchyard.bookings
       DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION torchyard.log_change('id')""",
    """CREATE CONSTRAINT TRIGGER log_change AFTER INSERT OR UPDATE OF booking_id, gpu OR DELETE
       ON torchyard.booking_gpus
       DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION torchyard.log_change('booking_id')""",
    # After the table is truncated, all readers read all bookings again.
    f"""CREATE FUNCTION torchyard.log_truncated() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER {PATH} AS $$
        BEGIN
          PERFORM pg_advisory_xact_lock({LOCK});
          DELETE FROM torchyard.booking_changes;
          INSERT INTO torchyard.booking_changes (booking_id) VALUES ('');
          RETURN NULL;
        END $$""",
    *(
        f"""CREATE TRIGGER log_truncated AFTER TRUNCATE ON torchyard.{table}
            FOR EACH STATEMENT EXECUTE FUNCTION torchyard.log_truncated()"""
        for table in ("bookings", "booking_gpus")
    ),
    "ALTER TABLE torchyard.booking_changes ENABLE ROW LEVEL SECURITY",
    """CREATE POLICY members_read ON torchyard.booking_changes FOR SELECT
       USING ((SELECT torchyard.is_member()))""",
    "REVOKE ALL ON torchyard.booking_changes FROM PUBLIC, torchyard_member, torchyard_admin",
    "GRANT SELECT ON torchyard.booking_changes TO torchyard_member",
    "REVOKE ALL ON FUNCTION torchyard.log_change(), torchyard.log_truncated() FROM PUBLIC",
]
