-- Where somebody was told their pairing code: there they are told that they were let in.

ALTER TABLE pairing_requests ADD COLUMN address TEXT NOT NULL DEFAULT '';
