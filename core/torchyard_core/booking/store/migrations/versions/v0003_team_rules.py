"""PostgreSQL: triggers enforce the rules of length, open times and quota. A function makes bookings for the waitlist.

The functions correspond to `torchyard_core.booking.rules`; tests compare both with generated cases. A refusal is a
check violation whose constraint name is the code of the rule in Python (`too_long`, `quota`, …). Admins, who may change
the rules, are exempt. Quotas require the latest committed rows, so isolation levels other than READ COMMITTED are
refused.
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

PATH = "SET search_path = pg_catalog, torchyard, pg_temp"
LIVE = "('booked', 'active')"
DEFAULTS = """{"longest_h": 168, "furthest_days": 90, "shortest_min": 15, "quota_gpu_hours": null, "quotas": {},
               "same_day_is_free": true, "windows": [], "groups": {}, "zone": "UTC"}"""
"""Values of `Rules()` for the rules that the functions apply. These values apply until an admin sets rules."""


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    for statement in [*VALUES, *RULES, *TRIGGERS, SERVE, *PRIVILEGES]:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("a database of a team is not made weaker")


VALUES = [
    # The rules read the current time from this function, which tests of the rules can replace.
    f"""CREATE FUNCTION torchyard.clock() RETURNS timestamptz LANGUAGE sql VOLATILE {PATH} AS
        $$ SELECT clock_timestamp() $$""",
    f"""CREATE FUNCTION torchyard.team_rules() RETURNS jsonb LANGUAGE sql STABLE {PATH} AS $$
        SELECT '{DEFAULTS}'::jsonb
               || coalesce((SELECT r.body::jsonb FROM torchyard.rules AS r WHERE r.id = 1), '{{}}') $$""",
    # For a local time that occurs twice, PostgreSQL uses the second moment, whereas Python and RFC 5545 use the first.
    f"""CREATE FUNCTION torchyard.to_utc(wall timestamp, zone text) RETURNS timestamptz LANGUAGE plpgsql STABLE
        {PATH} AS $$
        DECLARE
          found CONSTANT timestamptz := wall AT TIME ZONE zone;
          before CONSTANT timestamptz := found - interval '24 hours';
          earlier CONSTANT timestamptz :=
            (wall - ((before AT TIME ZONE zone) - (before AT TIME ZONE 'UTC'))) AT TIME ZONE 'UTC';
        BEGIN
          RETURN CASE WHEN (earlier AT TIME ZONE zone) = wall THEN least(found, earlier) ELSE found END;
        END $$""",
    # This function converts the patterns of fnmatch.fnmatchcase to regular expressions.
    rf"""CREATE FUNCTION torchyard.matches(word text, pattern text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE
        {PATH} AS $$
        DECLARE
          punctuation CONSTANT text := '([\u0021-\u002f\u003a-\u0040\u005b-\u0060\u007b-\u007e])';
          made text := '';
          at int := 1;
          stop int;
          member text;
          is_negated boolean;
          one text;
        BEGIN
          WHILE at <= length(pattern) LOOP
            one := substr(pattern, at, 1);
            at := at + 1;
            IF one = '*' THEN
              made := made || '.*';
            ELSIF one = '?' THEN
              made := made || '.';
            ELSE
              stop := 0;
              IF one = '[' THEN
                is_negated := substr(pattern, at, 1) = '!';
                stop := strpos(substr(pattern, at + is_negated::int + 1), ']');
                stop := CASE WHEN stop = 0 THEN 0 ELSE stop + at + is_negated::int END;
              END IF;
              IF stop = 0 THEN
                made := made || regexp_replace(one, punctuation, '\\\1');
                CONTINUE;
              END IF;
              member := '';
              at := at + is_negated::int;
              WHILE at < stop LOOP
                IF substr(pattern, at + 1, 1) = '-' AND at + 2 < stop THEN
                  IF substr(pattern, at, 1) COLLATE "C" <= substr(pattern, at + 2, 1) COLLATE "C" THEN
                    member := member || regexp_replace(substr(pattern, at, 1), punctuation, '\\\1')
                              || '-' || regexp_replace(substr(pattern, at + 2, 1), punctuation, '\\\1');
                  END IF;
                  at := at + 3;
                ELSE
                  member := member || regexp_replace(substr(pattern, at, 1), punctuation, '\\\1');
                  at := at + 1;
                END IF;
              END LOOP;
              at := stop + 1;
              made := made || CASE WHEN member = '' AND is_negated THEN '.' WHEN member = '' THEN '(?!.*)'
                                   WHEN is_negated THEN '[^' || member || ']' ELSE '[' || member || ']' END;
            END IF;
          END LOOP;
          RETURN word COLLATE "C" ~ ('^(?:' || made || ')$');
        END $$""",
    f"""CREATE FUNCTION torchyard.minutes(clock text) RETURNS int LANGUAGE sql IMMUTABLE {PATH} AS
        $$ SELECT split_part(clock, ':', 1)::int * 60 + split_part(clock, ':', 2)::int $$""",
    f"""CREATE FUNCTION torchyard.refuse(rule text, why text) RETURNS void LANGUAGE plpgsql {PATH} AS $$
        BEGIN
          RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = rule, MESSAGE = 'torchyard: ' || why;
        END $$""",
    f"""CREATE FUNCTION torchyard.shared_s(a timestamptz, b timestamptz, c timestamptz, d timestamptz) RETURNS float8
        LANGUAGE sql IMMUTABLE {PATH} AS
        $$ SELECT greatest(0, extract(epoch FROM least(b, d)) - extract(epoch FROM greatest(a, c)))::float8
           WHERE c IS NOT NULL $$""",
]
RULES = [
    f"""CREATE FUNCTION torchyard.refuse_length(starts timestamptz, ends timestamptz) RETURNS void LANGUAGE plpgsql
        {PATH} AS $$
        DECLARE
          rules CONSTANT jsonb := torchyard.team_rules();
          shortest CONSTANT float8 := (rules ->> 'shortest_min')::float8;
          longest CONSTANT float8 := (rules ->> 'longest_h')::float8;
          furthest CONSTANT float8 := (rules ->> 'furthest_days')::float8;
        BEGIN
          IF ends - starts < shortest * interval '1 minute' THEN
            PERFORM torchyard.refuse('too_short', 'a booking is at least ' || shortest || ' min long');
          ELSIF ends > starts + longest * interval '1 hour' THEN
            PERFORM torchyard.refuse('too_long', 'a booking is at most ' || longest || ' h long');
          ELSIF ends > torchyard.clock() + furthest * interval '24 hours' THEN
            PERFORM torchyard.refuse('too_far', 'bookings are made at most ' || furthest || ' days ahead');
          END IF;
        END $$""",
    f"""CREATE FUNCTION torchyard.refuse_window(person text, slot text, starts timestamptz, ends timestamptz)
        RETURNS void LANGUAGE plpgsql {PATH} AS $$
        DECLARE
          rules CONSTANT jsonb := torchyard.team_rules();
          gpu record;
          binding jsonb;
          opening record;
          reached timestamptz := starts;
        BEGIN
          SELECT g.id, g.host, g.host || ':' || coalesce(g.number::text, 'cpu') AS name INTO gpu
          FROM torchyard.gpus AS g WHERE g.id = slot;
          IF NOT FOUND THEN
            PERFORM torchyard.refuse('unknown_gpu', 'no host of the fleet has the GPU ' || slot);
          END IF;
          SELECT jsonb_agg(w) INTO binding
          FROM jsonb_array_elements(rules -> 'windows') AS w
          WHERE (coalesce(w ->> 'group', '*') = '*' OR rules -> 'groups' -> (w ->> 'group') ? person)
          AND EXISTS (SELECT 1 FROM jsonb_array_elements_text(coalesce(w -> 'gpus', '["*"]')) AS pattern
                      WHERE torchyard.matches(gpu.host, pattern) OR torchyard.matches(gpu.name, pattern)
                      OR torchyard.matches(gpu.id, pattern));
          IF binding IS NULL THEN
            RETURN;
          END IF;
          FOR opening IN
            SELECT torchyard.to_utc(day + open.opens * interval '1 minute', open.zone) AS begins,
                   torchyard.to_utc(day + (open.opens + open.lasts) * interval '1 minute', open.zone) AS closes
            FROM jsonb_array_elements(binding) AS w
            CROSS JOIN LATERAL (
              SELECT coalesce(w ->> 'zone', 'UTC') AS zone,
                     torchyard.minutes(coalesce(w ->> 'opens', '00:00')) AS opens,
                     torchyard.minutes(coalesce(w ->> 'closes', '24:00')) AS closes) AS written
            CROSS JOIN LATERAL (
              SELECT written.zone, written.opens, written.closes - written.opens
                     + CASE WHEN written.closes > written.opens THEN 0 ELSE 1440 END AS lasts) AS open
            CROSS JOIN LATERAL generate_series(date_trunc('day', starts AT TIME ZONE open.zone) - interval '1 day',
                                               date_trunc('day', ends AT TIME ZONE open.zone), '1 day') AS day
            WHERE coalesce(w -> 'days', '[0,1,2,3,4,5,6]') @> to_jsonb(extract(isodow FROM day)::int - 1)
            ORDER BY 1
          LOOP
            EXIT WHEN opening.begins > reached;
            reached := greatest(reached, opening.closes);
          END LOOP;
          IF reached < ends THEN
            PERFORM torchyard.refuse('window',
                                     gpu.name || ' cannot be booked by ' || person || ' for all of that time');
          END IF;
        END $$""",
    # The lock serialises the transactions of a person, so each transaction counts the bookings made by the earlier
    # ones.
    f"""CREATE FUNCTION torchyard.refuse_quota(booking text) RETURNS void LANGUAGE plpgsql {PATH} AS $$
        DECLARE
          rules CONSTANT jsonb := torchyard.team_rules();
          zone CONSTANT text := rules ->> 'zone';
          one record;
          most float8;
          gpus int;
          week timestamptz;
          next timestamptz;
          day timestamp;
          free_from timestamptz;
          free_to timestamptz;
          seconds float8;
          has float8;
        BEGIN
          SELECT b.owner, b.starts, b.ends INTO one FROM torchyard.bookings AS b WHERE b.id = booking;
          most := CASE WHEN rules -> 'quotas' ? one.owner THEN rules -> 'quotas' ->> one.owner
                       ELSE rules ->> 'quota_gpu_hours' END::float8;
          SELECT count(*) INTO gpus FROM torchyard.booking_gpus AS r
          WHERE r.booking_id = booking AND right(r.gpu, 4) <> ':cpu';
          IF most IS NULL OR gpus = 0 THEN
            RETURN;
          END IF;
          IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
            PERFORM torchyard.refuse('isolation', 'book in a transaction of the level READ COMMITTED');
          END IF;
          PERFORM pg_advisory_xact_lock(hashtextextended('torchyard quota ' || one.owner, 0));
          IF rules -> 'same_day_is_free' NOT IN ('false', 'null', '0') THEN
            day := date_trunc('day', torchyard.clock() AT TIME ZONE zone);
            free_from := torchyard.to_utc(day, zone);
            free_to := torchyard.to_utc(day + interval '1 day', zone);
          END IF;
          week := torchyard.to_utc(date_trunc('week', one.starts AT TIME ZONE zone), zone);
          WHILE week < one.ends LOOP
            next := torchyard.to_utc(date_trunc('day', week AT TIME ZONE zone) + interval '7 days', zone);
            seconds := torchyard.shared_s(one.starts, one.ends, week, next)
              - coalesce(torchyard.shared_s(greatest(one.starts, week), least(one.ends, next), free_from, free_to), 0);
            IF seconds > 0 THEN
              SELECT coalesce(sum(torchyard.shared_s(
                  b.starts, CASE WHEN b.let_go_at IS NULL THEN b.ends
                                 ELSE least(b.ends, greatest(b.starts, b.let_go_at)) END, week, next)), 0) / 3600
                INTO has
              FROM torchyard.bookings AS b JOIN torchyard.booking_gpus AS r ON r.booking_id = b.id
              WHERE b.owner = one.owner AND b.id <> booking AND b.ends > week AND b.starts < next
              AND right(r.gpu, 4) <> ':cpu';
              IF has + seconds * gpus / 3600 > most + 1e-9 THEN
                PERFORM torchyard.refuse('quota', one.owner || ' has ' || round(has::numeric, 2) || ' of ' || most
                  || ' GPU-hours in the week of ' || to_char(week AT TIME ZONE zone, 'FMDD Mon')
                  || ', and this booking takes ' || round((seconds * gpus / 3600)::numeric, 2) || ' more');
              END IF;
            END IF;
            week := next;
          END LOOP;
        END $$""",
    f"""CREATE FUNCTION torchyard.lengths_hold() RETURNS trigger LANGUAGE plpgsql {PATH} AS $$
        BEGIN
          IF NOT torchyard.is_admin() AND NEW.state IN {LIVE} AND (TG_OP = 'INSERT' OR (
               NEW.starts <> OLD.starts OR NEW.ends > OLD.ends
               OR NEW.ends < OLD.ends AND OLD.starts > torchyard.clock())) THEN
            PERFORM torchyard.refuse_length(NEW.starts, NEW.ends);
          END IF;
          RETURN NULL;
        END $$""",
    f"""CREATE FUNCTION torchyard.rules_hold() RETURNS trigger LANGUAGE plpgsql {PATH} AS $$
        BEGIN
          IF NOT torchyard.is_admin() THEN
            PERFORM torchyard.refuse_window(NEW.owner, NEW.gpu, NEW.starts, NEW.ends);
            PERFORM torchyard.refuse_quota(NEW.booking_id);
          END IF;
          RETURN NULL;
        END $$""",
    # A running booking was checked when it was made, so open times are checked only for the time that is added.
    f"""CREATE FUNCTION torchyard.rules_hold_moved() RETURNS trigger LANGUAGE plpgsql {PATH} AS $$
        DECLARE
          since CONSTANT timestamptz :=
            CASE WHEN NEW.starts <> OLD.starts OR OLD.starts > torchyard.clock() THEN NEW.starts ELSE OLD.ends END;
        BEGIN
          IF torchyard.is_admin() OR NEW.state NOT IN {LIVE} OR since >= NEW.ends
             OR NEW.starts = OLD.starts AND NEW.ends = OLD.ends THEN
            RETURN NULL;
          END IF;
          PERFORM torchyard.refuse_window(NEW.owner, r.gpu, since, NEW.ends)
          FROM torchyard.booking_gpus AS r WHERE r.booking_id = NEW.id ORDER BY r.gpu;
          PERFORM torchyard.refuse_quota(NEW.id);
          RETURN NULL;
        END $$""",
    f"""CREATE OR REPLACE FUNCTION torchyard.past_stays() RETURNS trigger LANGUAGE plpgsql {PATH} AS $$
        DECLARE
          recently CONSTANT timestamptz := clock_timestamp() - interval '5 minutes';
        BEGIN
          IF torchyard.is_admin() THEN
            RETURN NEW;
          END IF;
          IF TG_OP = 'INSERT' AND (NEW.starts < recently OR NEW.state NOT IN {LIVE})
             OR NEW.state IN {LIVE} AND (NEW.ends < recently OR NEW.let_go_at IS NOT NULL)
             OR NEW.state NOT IN {LIVE} AND (NEW.let_go_at IS NULL OR NEW.let_go_at < recently)
             OR TG_OP = 'UPDATE' AND (
               OLD.state NOT IN {LIVE} OR OLD.ends < recently
               OR OLD.starts < recently
                  AND (NEW.starts <> OLD.starts OR NEW.ends < recently OR NEW.state = 'cancelled')
               OR NEW.starts < recently AND NEW.starts <> OLD.starts) THEN
            RAISE EXCEPTION 'torchyard: the past stays as it was' USING ERRCODE = 'check_violation';
          END IF;
          RETURN NEW;
        END $$""",
]
TRIGGERS = [
    # As in Python, this trigger runs before the triggers of windows and quotas. It runs after the constraints that
    # limit times.
    """CREATE TRIGGER length_rules AFTER INSERT OR UPDATE OF starts, ends ON torchyard.bookings
       FOR EACH ROW EXECUTE FUNCTION torchyard.lengths_hold()""",
    """CREATE TRIGGER rules_of_gpus AFTER INSERT ON torchyard.booking_gpus
       FOR EACH ROW EXECUTE FUNCTION torchyard.rules_hold()""",
    # Triggers run in the order of their names, so this one runs after `rows_follow`, which updates the times in
    # booking_gpus.
    """CREATE TRIGGER rules_of_moved AFTER UPDATE OF starts, ends ON torchyard.bookings
       FOR EACH ROW EXECUTE FUNCTION torchyard.rules_hold_moved()""",
]
# The function runs as the tables' owner, because the user who releases GPUs calls it to book them for another user, the
# owner of the waitlist entry. The caller chooses the GPUs and the time, so the function checks that they meet the
# request of the entry and that the rules allow the owner of the entry to book them.
SERVE = f"""
    CREATE FUNCTION torchyard.serve(waiting text, booking text, slots text[], starts timestamptz, ends timestamptz)
    RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER {PATH} AS $$
    DECLARE
      entry torchyard.waitlist;
      wish jsonb;
      fitting int;
      hosts int;
      slot text;
    BEGIN
      IF NOT EXISTS (SELECT 1 FROM torchyard.members AS m WHERE m.name = session_user)
         AND NOT pg_has_role(session_user, current_user, 'USAGE') THEN
        RAISE EXCEPTION 'torchyard: only members serve the waitlist' USING ERRCODE = 'insufficient_privilege';
      END IF;
      SELECT * INTO entry FROM torchyard.waitlist AS w WHERE w.id = waiting AND w.state = 'waiting' FOR UPDATE;
      IF NOT FOUND THEN
        RETURN false;
      END IF;
      wish := entry.wish::jsonb;
      SELECT count(*), count(DISTINCT g.host) INTO fitting, hosts FROM torchyard.gpus AS g
      WHERE g.id = ANY (slots)
      AND CASE WHEN jsonb_array_length(wish -> 'gpus') > 0 THEN wish -> 'gpus' ? g.id
               ELSE g.number IS NOT NULL AND (jsonb_array_length(wish -> 'hosts') = 0 OR wish -> 'hosts' ? g.host)
                 AND strpos(lower(g.model), lower(wish ->> 'model')) > 0
                 AND g.memory_mb >= (wish ->> 'min_memory_gb')::float8 * 1000 * 0.95 END;
      IF fitting <> (wish ->> 'count')::int OR fitting <> cardinality(slots)
         OR (wish ->> 'one_host')::boolean AND hosts > 1
         OR abs(extract(epoch FROM ends - starts)::float8 - (wish ->> 'length')::float8) >= 1
         OR starts < (wish ->> 'earliest')::timestamptz OR ends > (wish ->> 'latest')::timestamptz
         OR starts < torchyard.clock() - interval '5 minutes' THEN
        PERFORM torchyard.refuse('no_fit', 'this is not what the entry ' || waiting || ' of the waitlist asks for');
      END IF;
      PERFORM torchyard.refuse_length(starts, ends);
      INSERT INTO torchyard.bookings (id, owner, title, purpose, starts, ends, zone, state, created, changed,
                                      stop_at_end, uid)
      VALUES (booking, entry.owner, entry.title, '', starts, ends, entry.zone, 'booked',
              date_trunc('second', torchyard.clock()), date_trunc('second', torchyard.clock()), false, '');
      FOREACH slot IN ARRAY slots LOOP
        PERFORM torchyard.refuse_window(entry.owner, slot, starts, ends);
        INSERT INTO torchyard.booking_gpus (booking_id, gpu) VALUES (booking, slot);
      END LOOP;
      PERFORM torchyard.refuse_quota(booking);
      UPDATE torchyard.waitlist AS w SET state = 'booked', booking_id = booking WHERE w.id = waiting;
      RETURN true;
    END $$"""
_FUNCTIONS = """torchyard.clock(), torchyard.team_rules(), torchyard.to_utc(timestamp, text),
    torchyard.matches(text, text), torchyard.minutes(text), torchyard.refuse(text, text),
    torchyard.refuse_length(timestamptz, timestamptz), torchyard.refuse_window(text, text, timestamptz, timestamptz),
    torchyard.refuse_quota(text), torchyard.shared_s(timestamptz, timestamptz, timestamptz, timestamptz),
    torchyard.serve(text, text, text[], timestamptz, timestamptz)"""
PRIVILEGES = [
    f"REVOKE ALL ON FUNCTION {_FUNCTIONS} FROM PUBLIC",
    """REVOKE ALL ON FUNCTION torchyard.lengths_hold(), torchyard.rules_hold(), torchyard.rules_hold_moved()
       FROM PUBLIC""",
    f"GRANT EXECUTE ON FUNCTION {_FUNCTIONS} TO torchyard_member, torchyard_admin",
]
