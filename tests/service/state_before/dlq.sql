BEGIN TRANSACTION;
CREATE TABLE followed (
    number        INTEGER PRIMARY KEY,
    since         INTEGER NOT NULL,
    superseded    TEXT NOT NULL DEFAULT '',
    superseded_by INTEGER,
    keys          TEXT NOT NULL DEFAULT ''
);
INSERT INTO "followed" VALUES(1,5,'',NULL,'');
INSERT INTO "followed" VALUES(2,7,'',NULL,'');
CREATE TABLE letters (
    number   INTEGER PRIMARY KEY AUTOINCREMENT,
    sink     TEXT NOT NULL,
    event_id TEXT NOT NULL,
    source   TEXT NOT NULL,
    "table"  TEXT NOT NULL,
    op       TEXT NOT NULL,
    "offset" INTEGER NOT NULL,
    position TEXT NOT NULL,
    ordinal  INTEGER NOT NULL,
    reason   TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    first_at TEXT NOT NULL,
    last_at  TEXT NOT NULL,
    bytes    INTEGER NOT NULL,
    payload  BLOB NOT NULL,
    UNIQUE (sink, event_id)
);
INSERT INTO "letters" VALUES(1,'s','src:0/5:0','src','public.orders','insert',5,'0/5',0,'still too large',2,'2026-11-16T22:11:49.409+00:00','2026-11-16T22:11:49.794+00:00',10,X'78787878787878787878');
INSERT INTO "letters" VALUES(2,'s','src:0/7:0','src','public.orders','insert',7,'0/7',0,'too large',1,'2026-11-16T22:11:49.409+00:00','2026-11-16T22:11:49.409+00:00',10,X'78787878787878787878');
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('letters',2);
COMMIT;
