-- Times are seconds since the epoch. JSON bodies are msgspec-encoded structs of talaria.model.

CREATE TABLE owners (
    id         TEXT PRIMARY KEY,
    kind       TEXT NOT NULL,
    pid        INTEGER NOT NULL,
    joined_at  REAL NOT NULL
) STRICT;

CREATE TABLE sessions (
    id               TEXT PRIMARY KEY,
    source           TEXT NOT NULL,
    model            TEXT NOT NULL,
    cwd              TEXT NOT NULL,
    system_prompt    TEXT NOT NULL,
    tools            TEXT NOT NULL,
    title            TEXT UNIQUE,
    parent           TEXT REFERENCES sessions (id) ON DELETE SET NULL CHECK (parent <> id),
    created_at       REAL NOT NULL,
    updated_at       REAL NOT NULL,
    owner            TEXT,
    epoch            INTEGER NOT NULL DEFAULT 0,
    open_turn        TEXT,
    last_seq         INTEGER NOT NULL DEFAULT 0,
    message_count    INTEGER NOT NULL DEFAULT 0,
    usage            TEXT NOT NULL DEFAULT '{}',
    preview          TEXT NOT NULL DEFAULT '',
    handoff_state    TEXT CHECK (handoff_state IN ('pending', 'running', 'completed', 'failed')),
    handoff_platform TEXT,
    handoff_error    TEXT
) STRICT;
CREATE INDEX sessions_by_source ON sessions (source, updated_at DESC, id DESC);
CREATE INDEX sessions_by_activity ON sessions (updated_at DESC);
CREATE INDEX sessions_interrupted ON sessions (updated_at DESC) WHERE open_turn IS NOT NULL;
CREATE INDEX sessions_handoff ON sessions (handoff_state) WHERE handoff_state IS NOT NULL;

-- Append-only. `id` is the order over all sessions, which the search index follows; `seq` the order inside one.
CREATE TABLE entries (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    seq     INTEGER NOT NULL,
    at      REAL NOT NULL,
    body    TEXT NOT NULL,
    UNIQUE (session, seq)
) STRICT;

CREATE TABLE calls (
    session    TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    id         TEXT NOT NULL,
    turn       TEXT NOT NULL,
    name       TEXT NOT NULL,
    arguments  TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('intent', 'started', 'done')),
    created_at REAL NOT NULL,
    started_at REAL,
    ended_at   REAL,
    result     TEXT,
    PRIMARY KEY (session, id)
) STRICT;

CREATE TABLE inbox (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    platform    TEXT NOT NULL,
    account     TEXT NOT NULL,
    chat        TEXT NOT NULL,
    message_id  TEXT NOT NULL,
    session     TEXT NOT NULL,
    body        TEXT NOT NULL,
    state       TEXT NOT NULL DEFAULT 'new' CHECK (state IN ('new', 'taken', 'done')),
    turn        TEXT,
    received_at REAL NOT NULL,
    UNIQUE (platform, account, chat, message_id)
) STRICT;
CREATE INDEX inbox_waiting ON inbox (session, id) WHERE state <> 'done';

CREATE TABLE cursors (
    platform TEXT NOT NULL,
    account  TEXT NOT NULL,
    value    TEXT NOT NULL,
    PRIMARY KEY (platform, account)
) STRICT;

CREATE TABLE outbox (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    session    TEXT NOT NULL,
    target     TEXT NOT NULL,
    body       TEXT NOT NULL,
    key        TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    state      TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'started', 'sent', 'failed', 'expired')),
    attempts   INTEGER NOT NULL DEFAULT 0,
    sent_id    TEXT,
    error      TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX outbox_due ON outbox (id) WHERE state IN ('pending', 'started');

-- Entries that were deleted and are still to be taken out of the search index.
CREATE TABLE unindexed (
    entry INTEGER PRIMARY KEY
) STRICT;
