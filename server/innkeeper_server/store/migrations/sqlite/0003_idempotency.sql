-- Idempotency keys: what a call with a key came to, and which follow-up a key stands for. See
-- store/protocol.py for what the columns mean.

CREATE TABLE outcomes (
    tenant          TEXT NOT NULL,
    type            TEXT NOT NULL,
    id              TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    turn            TEXT NOT NULL,
    kept_at         REAL NOT NULL,  -- seconds of Unix time
    fingerprint     BLOB NOT NULL,
    outcome         BLOB NOT NULL,
    UNIQUE (tenant, type, id, idempotency_key)
);

CREATE INDEX old_outcomes ON outcomes (kept_at);

ALTER TABLE followups ADD COLUMN idempotency_key TEXT NOT NULL DEFAULT '';
ALTER TABLE followups ADD COLUMN fingerprint BLOB NOT NULL DEFAULT x'';

CREATE UNIQUE INDEX keyed_followups ON followups (tenant, type, id, idempotency_key)
    WHERE idempotency_key <> '';
