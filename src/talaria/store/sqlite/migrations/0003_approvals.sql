-- Questions whether a call may run. Each step is guarded by the state that it leaves, and is taken once.
CREATE TABLE approvals (
    id         TEXT PRIMARY KEY,
    session    TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    turn       TEXT NOT NULL,
    call       TEXT NOT NULL,
    owner      TEXT NOT NULL,
    requester  TEXT NOT NULL,
    tool       TEXT NOT NULL,
    question   TEXT NOT NULL,
    digest     TEXT NOT NULL,
    expires_at REAL NOT NULL,
    state      TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'allowed', 'denied', 'used')),
    created_at REAL NOT NULL,
    decided_by TEXT,
    decided_at REAL
) STRICT;
CREATE INDEX approvals_by_session ON approvals (session);
CREATE INDEX approvals_pending ON approvals (expires_at) WHERE state = 'pending';

-- What people have allowed beforehand; without a session it holds in every one.
CREATE TABLE grants (
    id         TEXT PRIMARY KEY,
    person     TEXT NOT NULL,
    tool       TEXT NOT NULL,
    what       TEXT NOT NULL,
    cwd        TEXT NOT NULL,
    session    TEXT REFERENCES sessions (id) ON DELETE CASCADE,
    created_at REAL NOT NULL,
    expires_at REAL
) STRICT;
CREATE INDEX grants_by_session ON grants (session);
