-- Signals of one more kind: a line that waits for the end of a turn. SQLite cannot change a CHECK, so the table is made
-- again; ids go on where they were.
CREATE TABLE signals_with_queue (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    key        TEXT NOT NULL UNIQUE,
    session    TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    turn       TEXT NOT NULL,
    kind       TEXT NOT NULL CHECK (kind IN ('stop', 'steer', 'answer', 'queue')),
    person     TEXT NOT NULL,
    surface    TEXT NOT NULL,
    text       TEXT NOT NULL,
    question   TEXT NOT NULL,
    answer     TEXT NOT NULL,
    state      TEXT NOT NULL DEFAULT 'new' CHECK (state IN ('new', 'obeyed', 'late')),
    created_at REAL NOT NULL,
    outcome    TEXT NOT NULL DEFAULT ''
) STRICT;
INSERT INTO sqlite_sequence (name, seq)
    SELECT 'signals_with_queue', seq FROM sqlite_sequence WHERE name = 'signals';
INSERT INTO signals_with_queue (
    id, key, session, turn, kind, person, surface, text, question, answer, state, created_at, outcome
)
    SELECT id, key, session, turn, kind, person, surface, text, question, answer, state, created_at, outcome
    FROM signals;
DROP TABLE signals;
ALTER TABLE signals_with_queue RENAME TO signals;
CREATE INDEX signals_by_session ON signals (session, state);
CREATE INDEX signals_over ON signals (created_at) WHERE state <> 'new';
