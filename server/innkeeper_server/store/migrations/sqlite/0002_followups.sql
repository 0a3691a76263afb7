-- Follow-ups: one row for each that was accepted, until its retention is over. See
-- store/protocol.py for what the columns mean.

CREATE TABLE followups (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again
    receipt     TEXT    NOT NULL UNIQUE,
    tenant      TEXT    NOT NULL,
    type        TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    passive     INTEGER NOT NULL CHECK (passive IN (0, 1)),
    attempt     INTEGER NOT NULL,
    state       TEXT    NOT NULL,
    accepted_at REAL    NOT NULL,  -- seconds of Unix time
    expires_at  REAL,
    started_at  REAL,
    settled_at  REAL    CHECK ((settled_at IS NULL) = (state = 'accepted')),
    message     BLOB    NOT NULL,
    outcome     BLOB
);

-- What is still to be done costs its own length, however many have ended.
CREATE INDEX pending_followups ON followups (passive, seq) WHERE settled_at IS NULL;
CREATE INDEX pending_by_agent ON followups (tenant, type, id, seq) WHERE settled_at IS NULL;
CREATE INDEX settled_followups ON followups (settled_at) WHERE settled_at IS NOT NULL;
