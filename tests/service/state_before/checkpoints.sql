BEGIN TRANSACTION;
CREATE TABLE checkpoints (
    pipeline TEXT NOT NULL,
    version  INTEGER NOT NULL,
    "offset" INTEGER NOT NULL,
    position TEXT NOT NULL,
    saved_at TEXT NOT NULL,
    note     TEXT NOT NULL,
    base     INTEGER,
    writer   TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (pipeline, version)
) WITHOUT ROWID
;
INSERT INTO "checkpoints" VALUES('p',1,12,'0/30','2026-11-16T22:11:49.874+00:00','',NULL,'');
INSERT INTO "checkpoints" VALUES('p',2,20,'0/40','2026-11-16T22:11:49.876+00:00','',NULL,'');
COMMIT;
