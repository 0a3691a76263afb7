-- Alarms, and what is done with them. See store/protocol.py for what the columns mean.

CREATE TABLE alarms (
    tenant  text COLLATE "C" NOT NULL,
    type    text COLLATE "C" NOT NULL,
    id      text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    due     double precision NOT NULL,  -- seconds of Unix time
    every   double precision,
    receipt text COLLATE "C" NOT NULL DEFAULT '',  -- the follow-up of its last time
    message bytea            NOT NULL,
    PRIMARY KEY (tenant, type, id, name)
);

CREATE INDEX due_alarms ON alarms (due);

-- A commit that also sets and cancels alarms: `changes` is a JSON list of them, and one without
-- `due` is cancelled. Refused beyond what `innkeeper_commit` refuses: alarms, where the agent would
-- have more than `most`; `stored` is then how many.
CREATE FUNCTION innkeeper_commit_alarms(
    t text, y text, i text, expected_epoch bigint, expected_version bigint, new_state bytea,
    settled text, settled_state text, settled_outcome bytea,
    key text, key_print bytea, key_turn text, key_outcome bytea,
    chunk_turn text, chunk_epoch bigint, chunk_first bigint, chunk_last bigint,
    chunk_ended boolean, chunk_data bytea, kept bigint, moment double precision,
    changes text, most bigint,
    OUT refused text, OUT stored bigint
) LANGUAGE plpgsql AS $$
DECLARE
    names text[] := ARRAY(
        SELECT change ->> 'name' FROM json_array_elements(changes::json) AS change);
    fresh bigint := (
        SELECT count(*) FROM json_array_elements(changes::json) AS change
        WHERE change ->> 'due' IS NOT NULL);
BEGIN
    SELECT * INTO refused, stored
    FROM innkeeper_check(t, y, i, expected_epoch, expected_version);
    IF refused <> '' THEN
        RETURN;
    END IF;
    stored := fresh + (
        SELECT count(*) FROM alarms
        WHERE tenant = t AND type = y AND id = i AND name <> ALL (names));
    IF fresh > 0 AND stored > most THEN
        refused := 'alarms';
        RETURN;
    END IF;
    SELECT * INTO refused, stored FROM innkeeper_commit(
        t, y, i, expected_epoch, expected_version, new_state, settled, settled_state,
        settled_outcome, key, key_print, key_turn, key_outcome, chunk_turn, chunk_epoch,
        chunk_first, chunk_last, chunk_ended, chunk_data, kept, moment);
    IF refused <> '' THEN
        RETURN;
    END IF;
    DELETE FROM alarms
    USING json_array_elements(changes::json) AS change
    WHERE tenant = t AND type = y AND id = i AND name = change ->> 'name'
        AND change ->> 'due' IS NULL;
    INSERT INTO alarms AS a (tenant, type, id, name, due, every, message)
    SELECT
        t, y, i, change ->> 'name', (change ->> 'due')::double precision,
        (change ->> 'every')::double precision, decode(change ->> 'message', 'base64')
    FROM json_array_elements(changes::json) AS change
    WHERE change ->> 'due' IS NOT NULL
    ON CONFLICT (tenant, type, id, name) DO UPDATE
    SET due = excluded.due, every = excluded.every, message = excluded.message;
END $$;

-- The follow-up that an alarm became. No row: it is not due then any more, or what it became the
-- time before has not ended. The agent's lock comes first, as everywhere.
CREATE FUNCTION innkeeper_fire(
    t text, y text, i text, alarm text, expected_due double precision,
    following double precision, new_receipt text, moment double precision
) RETURNS SETOF followups LANGUAGE plpgsql AS $$
DECLARE fired alarms%ROWTYPE;
BEGIN
    PERFORM 1 FROM agents WHERE tenant = t AND type = y AND id = i FOR UPDATE;
    SELECT * INTO fired FROM alarms
    WHERE tenant = t AND type = y AND id = i AND name = alarm AND due = expected_due
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF following IS NULL THEN
        DELETE FROM alarms WHERE tenant = t AND type = y AND id = i AND name = alarm;
    ELSE
        UPDATE alarms SET due = following
        WHERE tenant = t AND type = y AND id = i AND name = alarm;
    END IF;
    PERFORM 1 FROM followups WHERE receipt = fired.receipt AND settled_at IS NULL;
    IF FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT * FROM innkeeper_accept(
        new_receipt, t, y, i, fired.message, moment, NULL, false, '', '');
    UPDATE alarms SET receipt = new_receipt
    WHERE tenant = t AND type = y AND id = i AND name = alarm;
END $$;

CREATE OR REPLACE FUNCTION innkeeper_delete(
    t text, y text, i text, moment double precision, OUT lived boolean
) LANGUAGE plpgsql AS $$
BEGIN
    UPDATE agents SET deleted = true, state = NULL, epoch = epoch + 1, updated_at = moment
    WHERE tenant = t AND type = y AND id = i AND NOT deleted;
    lived := FOUND;
    UPDATE followups SET state = 'cancelled', settled_at = moment
    WHERE tenant = t AND type = y AND id = i AND settled_at IS NULL;
    DELETE FROM outcomes WHERE tenant = t AND type = y AND id = i;
    DELETE FROM events WHERE tenant = t AND type = y AND id = i;
    DELETE FROM alarms WHERE tenant = t AND type = y AND id = i;
END $$;
