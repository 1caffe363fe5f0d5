-- One row per model call. No reference to its session: what was spent stays counted when the session is deleted.
-- `day` is the local date of `at`, fixed when the row is written; `cost_usd` is NULL where no price was known.
CREATE TABLE spending (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    session     TEXT NOT NULL,
    at          REAL NOT NULL,
    day         TEXT NOT NULL,
    person      TEXT NOT NULL,
    model       TEXT NOT NULL,
    purpose     TEXT NOT NULL,
    input       INTEGER NOT NULL,
    output      INTEGER NOT NULL,
    cache_read  INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    reasoning   INTEGER NOT NULL,
    cost_usd    REAL
) STRICT;
-- With all that the sums read, which are taken before every call.
CREATE INDEX spending_by_session ON spending (session, input, output, cache_read, cache_write, cost_usd);
CREATE INDEX spending_by_day ON spending (day, person, input, output, cache_read, cache_write, cost_usd);

-- Set aside for calls under way. Numbers are never used again: a late release frees nobody else's hold.
CREATE TABLE holds (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    session  TEXT NOT NULL,
    person   TEXT NOT NULL,
    owner    TEXT NOT NULL,
    tokens   INTEGER NOT NULL,
    cost_usd REAL NOT NULL
) STRICT;

-- Conversations from before. An answer that forks have copied was paid for once: its oldest entry stands for all.
-- The model is the last word of the answer's origin, with its provider where the session names it.
WITH answers AS MATERIALIZED (
    SELECT id, session, seq, at, body -> '$.message.usage' AS usage, coalesce(body ->> '$.message.origin', '') AS origin
    FROM entries
    WHERE CASE WHEN json_valid(body) THEN body ->> '$.message.usage' END IS NOT NULL  -- no other message has usage
),
named AS (
    SELECT *, substr(origin, 1 + length(rtrim(origin, replace(origin, ' ', '')))) AS model FROM answers
)
INSERT INTO spending (
    session, at, day, person, model, purpose, input, output, cache_read, cache_write, reasoning, cost_usd
)
SELECT
    session,
    at,
    date(at, 'unixepoch', 'localtime'),
    'local',
    coalesce(
        (
            SELECT label.model
            FROM sessions AS label
            WHERE label.id = named.session AND substr(label.model, -1 - length(named.model)) = ':' || named.model
        ),
        model
    ),
    'turn',
    coalesce(usage ->> 'input', 0),
    coalesce(usage ->> 'output', 0),
    coalesce(usage ->> 'cache_read', 0),
    coalesce(usage ->> 'cache_write', 0),
    coalesce(usage ->> 'reasoning', 0),
    NULL
FROM named
GROUP BY at, seq, usage, origin
ORDER BY min(id);
