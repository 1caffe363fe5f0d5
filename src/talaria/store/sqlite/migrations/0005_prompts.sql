-- What a conversation began with is long and never changes; its row changes with every turn, and is short now.

CREATE TABLE prompts (
    session       TEXT PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE,
    system_prompt TEXT NOT NULL,
    tools         TEXT NOT NULL
) STRICT;
INSERT INTO prompts SELECT id, system_prompt, tools FROM sessions;
ALTER TABLE sessions DROP COLUMN system_prompt;
ALTER TABLE sessions DROP COLUMN tools;
