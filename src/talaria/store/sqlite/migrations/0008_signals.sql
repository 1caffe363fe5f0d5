-- What people ask of a turn that runs. Whoever runs the session leaves `new` once, for either of the others.
CREATE TABLE signals (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    key        TEXT NOT NULL UNIQUE,
    session    TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    turn       TEXT NOT NULL,
    kind       TEXT NOT NULL CHECK (kind IN ('stop', 'steer', 'answer')),
    person     TEXT NOT NULL,
    surface    TEXT NOT NULL,
    text       TEXT NOT NULL,
    question   TEXT NOT NULL,
    answer     TEXT NOT NULL,
    state      TEXT NOT NULL DEFAULT 'new' CHECK (state IN ('new', 'obeyed', 'late')),
    created_at REAL NOT NULL,
    outcome    TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX signals_by_session ON signals (session, state);
CREATE INDEX signals_over ON signals (created_at) WHERE state <> 'new';
