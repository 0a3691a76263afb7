-- What a call of the store does inside a transaction: a function for each, so that a group of calls
-- is one statement, however many they are. Each looks first, under the lock of its agent's row, and
-- writes only where nothing forbids it: so a call that is refused leaves nothing, and the others of
-- its group go on. `refused` says why: '' (it was done), missing, deleted, epoch, version, settled,
-- outcome.

-- Lock an agent's row for a writer, and compare its numbers. `expected_version`: null where the
-- state is not touched.
CREATE FUNCTION innkeeper_check(
    t text, y text, i text, expected_epoch bigint, expected_version bigint,
    OUT refused text, OUT stored bigint
) LANGUAGE plpgsql AS $$
DECLARE row agents%ROWTYPE;
BEGIN
    SELECT * INTO row FROM agents WHERE tenant = t AND type = y AND id = i FOR UPDATE;
    refused := '';
    IF NOT FOUND THEN
        refused := 'missing';
    ELSIF row.deleted THEN
        refused := 'deleted';
    ELSIF row.epoch <> expected_epoch THEN
        refused := 'epoch'; stored := row.epoch;
    ELSIF row.version <> expected_version THEN
        refused := 'version'; stored := row.version;
    END IF;
END $$;

-- Log a chunk of events, and cut the log to the newest ones now and then. The agent is locked.
CREATE FUNCTION innkeeper_log(
    t text, y text, i text, chunk_turn text, chunk_epoch bigint, chunk_first bigint,
    chunk_last bigint, chunk_ended boolean, chunk_data bytea, kept bigint, moment double precision
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    before bigint := coalesce(
        (SELECT max(position) FROM events WHERE tenant = t AND type = y AND id = i), 0);
    place bigint := before + chunk_last - chunk_first + 1;
    step bigint := greatest(kept / 16, 1);
BEGIN
    INSERT INTO events VALUES (
        t, y, i, place, chunk_turn, chunk_epoch, chunk_first, chunk_last, chunk_ended, moment,
        chunk_data);
    IF place > kept AND place / step <> before / step THEN
        DELETE FROM events
        WHERE tenant = t AND type = y AND id = i AND position <= place - kept;
    END IF;
END $$;

CREATE FUNCTION innkeeper_hydrate(
    t text, y text, i text, interrupted bytea, kept bigint, moment double precision,
    OUT new_epoch bigint, OUT new_version bigint, OUT new_state bytea,
    OUT created double precision, OUT waits boolean
) LANGUAGE plpgsql AS $$
DECLARE broken events%ROWTYPE;
BEGIN
    INSERT INTO agents AS a VALUES (t, y, i, 1, 0, false, moment, moment, NULL)
    ON CONFLICT (tenant, type, id) DO UPDATE SET epoch = a.epoch + 1 WHERE NOT a.deleted
    RETURNING a.epoch, a.version, a.state, a.created_at
    INTO new_epoch, new_version, new_state, created;
    IF new_epoch IS NULL THEN
        RETURN;  -- a tombstone
    END IF;
    SELECT * INTO broken FROM events
    WHERE tenant = t AND type = y AND id = i ORDER BY position DESC LIMIT 1;
    IF FOUND AND NOT broken.ended AND interrupted <> '' THEN
        PERFORM innkeeper_log(
            t, y, i, broken.turn, broken.epoch, broken.last + 1, broken.last + 1, true,
            interrupted, kept, moment);
    END IF;
    waits := EXISTS (
        SELECT 1 FROM followups
        WHERE tenant = t AND type = y AND id = i AND settled_at IS NULL AND passive);
END $$;

CREATE FUNCTION innkeeper_commit(
    t text, y text, i text, expected_epoch bigint, expected_version bigint, new_state bytea,
    settled text, settled_state text, settled_outcome bytea,
    key text, key_print bytea, key_turn text, key_outcome bytea,
    chunk_turn text, chunk_epoch bigint, chunk_first bigint, chunk_last bigint,
    chunk_ended boolean, chunk_data bytea, kept bigint, moment double precision,
    OUT refused text, OUT stored bigint
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT * INTO refused, stored
    FROM innkeeper_check(t, y, i, expected_epoch, expected_version);
    IF refused <> '' THEN
        RETURN;
    END IF;
    IF settled IS NOT NULL THEN
        PERFORM 1 FROM followups WHERE receipt = settled AND settled_at IS NULL FOR UPDATE;
        IF NOT FOUND THEN
            refused := 'settled';
            RETURN;
        END IF;
        UPDATE followups SET state = settled_state, outcome = settled_outcome, settled_at = moment
        WHERE receipt = settled;
    END IF;
    IF key IS NOT NULL THEN
        INSERT INTO outcomes VALUES (t, y, i, key, key_turn, moment, key_print, key_outcome)
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            refused := 'outcome';
            RETURN;
        END IF;
    END IF;
    IF chunk_turn IS NOT NULL THEN
        PERFORM innkeeper_log(
            t, y, i, chunk_turn, chunk_epoch, chunk_first, chunk_last, chunk_ended, chunk_data,
            kept, moment);
    END IF;
    IF new_state IS NOT NULL THEN
        UPDATE agents SET state = new_state, version = version + 1, updated_at = moment
        WHERE tenant = t AND type = y AND id = i;
    END IF;
END $$;

CREATE FUNCTION innkeeper_append(
    t text, y text, i text, expected_epoch bigint, chunk_turn text, chunk_epoch bigint,
    chunk_first bigint, chunk_last bigint, chunk_ended boolean, chunk_data bytea, kept bigint,
    moment double precision, OUT refused text, OUT stored bigint
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT * INTO refused, stored FROM innkeeper_check(t, y, i, expected_epoch, NULL);
    IF refused = '' THEN
        PERFORM innkeeper_log(
            t, y, i, chunk_turn, chunk_epoch, chunk_first, chunk_last, chunk_ended, chunk_data,
            kept, moment);
    END IF;
END $$;

CREATE FUNCTION innkeeper_delete(
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
END $$;

-- The row that stands for it: the new one, or the one with the same key. No row: a tombstone.
-- The lock keeps a deletion that is under way from missing what is accepted beside it.
CREATE FUNCTION innkeeper_accept(
    new_receipt text, t text, y text, i text, new_message bytea, moment double precision,
    until double precision, is_passive boolean, key text, print bytea
) RETURNS SETOF followups LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM agents WHERE tenant = t AND type = y AND id = i FOR SHARE;
    PERFORM 1 FROM agents WHERE tenant = t AND type = y AND id = i AND deleted;
    IF FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY INSERT INTO followups (
        receipt, tenant, type, id, passive, accepted_at, expires_at, message, idempotency_key,
        fingerprint)
    VALUES (new_receipt, t, y, i, is_passive, moment, until, new_message, key, print)
    ON CONFLICT (tenant, type, id, idempotency_key) WHERE idempotency_key <> '' DO NOTHING
    RETURNING *;
    IF NOT FOUND THEN
        RETURN QUERY SELECT * FROM followups
        WHERE tenant = t AND type = y AND id = i AND idempotency_key = key;
    END IF;
END $$;

CREATE FUNCTION innkeeper_begin(
    begun text, moment double precision, OUT attempts integer
) LANGUAGE plpgsql AS $$
BEGIN
    UPDATE followups SET attempt = attempt + 1, started_at = moment
    WHERE receipt = begun AND settled_at IS NULL RETURNING attempt INTO attempts;
    attempts := coalesce(attempts, 0);
END $$;

CREATE FUNCTION innkeeper_give_back(given text, OUT done boolean) LANGUAGE plpgsql AS $$
BEGIN
    UPDATE followups SET attempt = attempt - 1
    WHERE receipt = given AND settled_at IS NULL AND attempt > 0;
    done := FOUND;
END $$;

CREATE FUNCTION innkeeper_settle(
    ended text, new_state text, new_outcome bytea, moment double precision, OUT done boolean
) LANGUAGE plpgsql AS $$
BEGIN
    UPDATE followups SET state = new_state, outcome = new_outcome, settled_at = moment
    WHERE receipt = ended AND settled_at IS NULL;
    done := FOUND;
END $$;

CREATE FUNCTION innkeeper_keep(
    t text, y text, i text, key text, print bytea, key_turn text, key_outcome bytea,
    moment double precision, OUT done boolean
) LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outcomes VALUES (t, y, i, key, key_turn, moment, print, key_outcome)
    ON CONFLICT DO NOTHING;
    done := FOUND;
END $$;
