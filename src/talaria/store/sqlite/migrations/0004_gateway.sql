-- Who began a conversation; until now that was the person at the terminal.
ALTER TABLE sessions ADD COLUMN person TEXT NOT NULL DEFAULT 'local';
-- With the person, so that the list of one person's reads no rows but theirs.
DROP INDEX sessions_by_activity;
CREATE INDEX sessions_by_activity ON sessions (updated_at DESC, id DESC, person);

-- The chat whose binding gave the message its session; empty: nobody's.
ALTER TABLE inbox ADD COLUMN key TEXT NOT NULL DEFAULT '';
CREATE INDEX inbox_by_chat ON inbox (key) WHERE state = 'new';
CREATE INDEX inbox_done ON inbox (received_at) WHERE state = 'done';

-- `is_reworded`: another text came for the row while it was started, so what is on the wire is not its last word.
ALTER TABLE outbox ADD COLUMN started_at REAL;
ALTER TABLE outbox ADD COLUMN is_reworded INTEGER NOT NULL DEFAULT 0;
DROP INDEX outbox_due;
CREATE INDEX outbox_due ON outbox (target, id) WHERE state IN ('pending', 'started');
CREATE INDEX outbox_by_session ON outbox (session, id);
CREATE INDEX outbox_by_state ON outbox (state, id);

-- Which session a chat is about; `id` is the order of binding. The session may be made later, as for the inbox.
CREATE TABLE chats (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    key       TEXT NOT NULL UNIQUE,
    session   TEXT NOT NULL,
    address   TEXT NOT NULL,
    busy_mode TEXT CHECK (busy_mode IN ('queue', 'steer', 'interrupt'))
) STRICT;
CREATE INDEX chats_by_session ON chats (session, id);

CREATE TABLE homes (
    platform TEXT PRIMARY KEY,
    address  TEXT NOT NULL
) STRICT;

-- People who were let in by a pairing code.
CREATE TABLE members (
    platform TEXT NOT NULL,
    user     TEXT NOT NULL,
    name     TEXT NOT NULL,
    since    REAL NOT NULL,
    PRIMARY KEY (platform, user)
) STRICT;

CREATE TABLE pairing_requests (
    platform   TEXT NOT NULL,
    user       TEXT NOT NULL,
    name       TEXT NOT NULL,
    digest     TEXT NOT NULL,
    expires_at REAL NOT NULL,
    PRIMARY KEY (platform, user)
) STRICT;

-- Wrong codes of the last hour or, while a platform is locked, of the hour before that.
CREATE TABLE pairing_failures (
    platform TEXT NOT NULL,
    at       REAL NOT NULL
) STRICT;
CREATE INDEX pairing_failures_by_platform ON pairing_failures (platform, at);
