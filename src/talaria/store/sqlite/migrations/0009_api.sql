-- Who may use the HTTP API. Of a token only its SHA-256 is kept.
CREATE TABLE api_tokens (
    name                TEXT PRIMARY KEY,
    digest              TEXT NOT NULL UNIQUE,
    scopes              TEXT NOT NULL,
    created_at          REAL NOT NULL,
    expires_at          REAL,
    tokens_per_day      INTEGER,
    usd_per_day         REAL,
    requests_per_minute INTEGER
) STRICT;

-- What a conversation reads like with its entry `seq`, for programs that send all of it with each request.
CREATE TABLE histories (
    session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    seq     INTEGER NOT NULL,
    person  TEXT NOT NULL,
    digest  TEXT NOT NULL,
    PRIMARY KEY (session, seq, person, digest)
) STRICT, WITHOUT ROWID;
CREATE INDEX histories_by_digest ON histories (person, digest);
