-- Which request a handoff is: whoever greets in the chat can tell this one from an earlier one.
ALTER TABLE sessions ADD COLUMN handoff_id TEXT;

-- The chats that a running handoff has bound to its session, and what each was about before. A failure binds them back.
CREATE TABLE handoff_chats (
    session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    key     TEXT NOT NULL,
    address TEXT NOT NULL,
    before  TEXT,
    PRIMARY KEY (session, key)
) STRICT;

-- Who chose the home channel: in a group where everybody has a conversation of their own, theirs is meant.
CREATE TABLE home_people (
    platform TEXT PRIMARY KEY,
    person   TEXT NOT NULL
) STRICT;
