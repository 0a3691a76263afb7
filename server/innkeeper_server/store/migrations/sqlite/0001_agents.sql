-- Agents: one row for each that ever lived. See store/protocol.py for what the columns mean.
--
-- Text compares by bytes of UTF-8, which is the order of code points. The state stands last, so
-- that a large one spills out of the row behind the columns that are read without it.

CREATE TABLE schema_version (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    version  INTEGER NOT NULL
);

CREATE TABLE agents (
    tenant     TEXT    NOT NULL,
    type       TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    epoch      INTEGER NOT NULL,
    version    INTEGER NOT NULL,
    deleted    INTEGER NOT NULL CHECK (deleted IN (0, 1)),
    created_at REAL    NOT NULL,  -- seconds of Unix time
    updated_at REAL    NOT NULL,
    state      BLOB    CHECK (deleted = 0 OR state IS NULL),
    UNIQUE (tenant, type, id)
);

-- A page of a list costs its own length, however many tombstones lie between.
CREATE INDEX living_agents ON agents (tenant, type, id) WHERE deleted = 0;
