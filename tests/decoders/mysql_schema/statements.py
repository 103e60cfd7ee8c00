"""Statements that the schema history must follow: every type, every form, and random ones."""

from __future__ import annotations

from random import Random

COLUMNS = """
a tinyint, b tinyint(1), b2 bool not null, b3 tinyint(1) unsigned, c smallint unsigned, d mediumint(5) unsigned zerofill,
e int(11), e2 integer unsigned, e3 int zerofill, f bigint(20) unsigned not null default 0, g decimal, g2 dec(5), g3 numeric(20,4) unsigned,
g4 fixed(9,9), h float, h2 float(7,3), h3 float(30), h4 float(20) unsigned, i double, i2 double precision(9,2), i3 real,
j bit, j2 bit(12), k date, l time, l2 time(3), m datetime, m2 datetime(6) default current_timestamp(6) on update current_timestamp(6),
n timestamp null, n2 timestamp(2) null default null, o year, o2 year(4), p char, p2 char(9) character set latin1, p3 character varying(20),
p4 varchar(300) charset utf8mb4 collate utf8mb4_bin, p5 national char(4), p6 nvarchar(9), p7 char(3) binary, p8 char(7) charset binary,
p9 varchar(8) collate latin1_german1_ci, pa nchar(3), pb char(5) ascii,
q binary, q2 binary(16), q3 varbinary(99), r tinytext, r2 text, r3 mediumtext, r4 longtext, r5 text(10), r6 text(20000) charset utf8mb4,
r7 text(70000), r8 long, r9 long varchar, ra text charset binary, s tinyblob, s2 blob, s3 mediumblob, s4 longblob, s5 blob(100), s6 blob(66000), s7 long varbinary,
t enum('a','b''c','d\\\\e','g\\\\','h\\ni','f,g)(','  h  ') default 'a', t2 set('x','y') charset latin1 not null, u json,
v geometry, v2 point not null, v3 geometrycollection, v4 polygon,
w int generated always as (a + 1) virtual, w2 int as (a * 2) stored, w3 int generated always as (a + 3) stored comment 'not null, primary key',
x int invisible, y int default (1 + 2), z varchar(10) default 'not null' comment 'primary key (a), ''b''', `strange ``name, (x)` int,
aa int check (aa > 0), ab int unique, ac varchar(20) not null default 'a' comment "it's"
"""  # noqa: E501

SEQUENCE = [
    "CREATE TABLE orders (id int primary key auto_increment, total decimal(10,2), note varchar(20)) engine=InnoDB "
    "comment='(x)'",
    "ALTER TABLE orders ADD COLUMN a int, ADD b int FIRST, ADD COLUMN (c text, d int not null), "
    "ADD INDEX (a), ADD e int AFTER id",
    "ALTER TABLE orders DROP COLUMN c, DROP d, MODIFY a bigint NOT NULL AFTER note, "
    "CHANGE b bb varchar(9) charset latin1",
    "ALTER TABLE orders CHANGE COLUMN a bb2 int, CHANGE bb a int, ALGORITHM=COPY, LOCK=SHARED",
    "ALTER TABLE orders RENAME COLUMN a TO bb2, RENAME COLUMN bb2 TO a",
    "ALTER TABLE orders ADD x int AFTER note, ADD z int FIRST, "
    "MODIFY id bigint unsigned auto_increment FIRST, ADD q int",
    "ALTER TABLE orders DROP COLUMN x, ADD COLUMN x varchar(5)",
    "ALTER TABLE orders MODIFY id int NOT NULL, DROP PRIMARY KEY, ADD PRIMARY KEY (id, a)",
    "ALTER TABLE orders DROP PRIMARY KEY, DROP COLUMN a, ADD PRIMARY KEY (id)",
    "ALTER TABLE orders CHANGE id order_id int NOT NULL",
    "ALTER TABLE orders DROP PRIMARY KEY",
    "ALTER TABLE orders ADD CONSTRAINT pk PRIMARY KEY USING BTREE (order_id)",
    "ALTER TABLE orders CONVERT TO CHARACTER SET latin1",
    "ALTER TABLE orders ADD t text, ADD tt tinytext, ADD m mediumtext, ADD l longtext, ADD en enum('a','b')",
    "ALTER TABLE orders CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "ALTER TABLE orders DEFAULT CHARACTER SET = latin2, ADD COLUMN l2 char(4)",
    "ALTER TABLE orders COLLATE utf8mb4_general_ci, COMMENT='DROP COLUMN l2'",
    "ALTER TABLE orders ADD COLUMN l3 char(4), ALTER COLUMN l2 SET DEFAULT 'x'",
    "ALTER TABLE orders ALTER l2 DROP DEFAULT",
    "ALTER TABLE orders ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4",
    "CREATE INDEX note_index ON orders (note)",
    "DROP INDEX note_index ON orders",
    "CREATE TABLE copy LIKE orders",
    "CREATE TABLE IF NOT EXISTS copy (nothing int)",
    "CREATE TABLE copy2 (LIKE orders)",
    "ALTER TABLE copy RENAME TO archive, ADD COLUMN since date",
    "RENAME TABLE orders TO tmp, archive TO orders, tmp TO archive",
    "ALTER TABLE archive RENAME AS archive2",
    "CREATE TABLE selected AS SELECT order_id, note, 1.5 AS d, 'x' AS t FROM orders",
    "TRUNCATE TABLE orders",
    "TRUNCATE archive2",
    "/* a comment */ ALTER /*!50000 TABLE */ orders ADD /* why */ COLUMN v int -- at the end",
    "ALTER TABLE orders ADD COLUMN vv int /*!80023 COMMENT 'x' */, # rest\n ADD vw int",
    "CREATE TABLE parts (id int not null, at date not null, primary key (id, at)) PARTITION BY RANGE (YEAR(at))"
    " (PARTITION p0 VALUES LESS THAN (2020), PARTITION p1 VALUES LESS THAN MAXVALUE)",
    "ALTER TABLE parts REORGANIZE PARTITION p1 INTO"
    " (PARTITION p1 VALUES LESS THAN (2025), PARTITION p2 VALUES LESS THAN MAXVALUE)",
    "ALTER TABLE parts DROP PARTITION p0",
    "ALTER TABLE parts ADD COLUMN more int",
    "CREATE TABLE hashed (id int primary key, a int)",
    "ALTER TABLE hashed ADD x int NOT NULL PARTITION BY KEY (id) PARTITIONS 2",
    "ALTER TABLE hashed MODIFY x bigint, CHANGE a b int NOT NULL REMOVE PARTITIONING",
    "ALTER TABLE hashed MODIFY b int PARTITION BY LINEAR KEY ALGORITHM=2 (id) PARTITIONS 2",
    "CREATE TABLE child (id int, parent int, primary key (id), key (parent), constraint fk foreign key (parent)"
    " references child (id) on delete set null)",
    "ALTER TABLE child DROP FOREIGN KEY fk, DROP KEY parent",
    "ALTER TABLE child ORDER BY id, parent",
    "CREATE TABLE `we``ird.name` (`a b` int, `primary` int, `key` int, primary key (`a b`))",
    "ALTER TABLE `we``ird.name` DROP COLUMN `key`, ADD `x,y` int AFTER `primary`",
    "CREATE TABLE utf (a varchar(10), b char(10) charset utf8, c text(300) charset utf8mb3) CHARSET=utf8",
    "CREATE VIEW view1 AS SELECT 1 AS a",
    "CREATE TEMPORARY TABLE child (other int)",
    "DROP TEMPORARY TABLE child",
    "DROP VIEW view1",
    "DROP TABLE IF EXISTS copy2, missing, `we``ird.name`",
    "DROP TABLE selected, archive2",
]  # fmt: skip

ONLY_MARIADB = [
    "CREATE OR REPLACE TABLE m (id int, a int)",
    "ALTER TABLE m ADD COLUMN IF NOT EXISTS a int, ADD COLUMN IF NOT EXISTS b int, DROP COLUMN IF EXISTS c",
    "ALTER TABLE m MODIFY COLUMN IF EXISTS z int, CHANGE IF EXISTS y yy int, ADD PRIMARY KEY (id)",
    "ALTER TABLE m RENAME COLUMN IF EXISTS nope TO yes",
    "ALTER TABLE IF EXISTS m NOWAIT ADD p int AS (a + 1) PERSISTENT",
    "ALTER TABLE m ADD u uuid, ADD i inet6, ADD i4 inet4, ADD c varchar(100) COMPRESSED, ADD t text COMPRESSED=zlib",
    "CREATE OR REPLACE TABLE m (id int primary key, r timestamp(6) generated always as row start,"
    " e timestamp(6) generated always as row end, period for system_time (r, e)) with system versioning",
    "SET STATEMENT max_statement_time=0 FOR ALTER TABLE m COMMENT='x'",
    "DROP INDEX IF EXISTS nope ON m",
    "CREATE TABLE seq (id int not null, constraint primary key (id))",
    "ALTER TABLE seq DROP CONSTRAINT `PRIMARY`",
    "RENAME TABLE IF EXISTS nope TO nope2, seq TO seq2",
]
ONLY_MYSQL = [
    "CREATE TABLE m (id int, a int invisible, v vector(3), g geomcollection, p point srid 4326 not null)",
    "ALTER TABLE m ALTER COLUMN a SET VISIBLE, ADD b int INVISIBLE, ADD INDEX f ((a + 1))",
    "ALTER TABLE m ALTER INDEX f INVISIBLE",
    "ALTER TABLE m RENAME INDEX f TO ff",
    "ALTER TABLE m ADD COLUMN c int, ALGORITHM=INSTANT",
    "ALTER TABLE m ADD CONSTRAINT chk CHECK (a > 0) NOT ENFORCED",
    "ALTER TABLE m ALTER CHECK chk ENFORCED",
    "ALTER TABLE m DROP CHECK chk",
]

TYPES = ["int", "bigint unsigned", "varchar(20)", "char(5) charset latin1", "text", "tinytext", "decimal(9,3)",
         "datetime(3)", "enum('a','b')", "json", "blob", "tinyint(1)", "double", "date not null", "int not null",
         "mediumtext charset utf8mb4",
         "varchar(30) collate latin1_bin"]  # fmt: skip


def random_statement(dice: Random, names: list[str], columns: list[str], known: dict[str, list[str]]) -> str:
    """Mostly one that the server accepts."""
    table, other = dice.sample(names, 2)
    there = sorted(known) or names
    match dice.choice(["create", "create", "like", *["alter"] * 7, "drop", "rename", "swap"]):
        case "create":
            chosen = dice.sample(columns, dice.randint(2, 5))
            key = f", primary key ({chosen[0]})" if dice.random() < 0.5 else ""
            charset = dice.choice(["", " charset=latin1", " collate=utf8mb4_bin"])
            return f"CREATE TABLE {table} ({', '.join(f'{c} {dice.choice(TYPES)}' for c in chosen)}{key}){charset}"
        case "like":
            return f"CREATE TABLE {table} LIKE {dice.choice(there)}"
        case "drop":
            return f"DROP TABLE IF EXISTS {table}"
        case "rename":
            return f"RENAME TABLE {dice.choice(there)} TO {other}"
        case "swap":
            return f"RENAME TABLE {table} TO swapping, {other} TO {table}, swapping TO {other}"
        case _:
            table = dice.choice(there)
            clauses = [_clause(dice, columns, known.get(table, columns)) for _ in range(dice.choice([1, 1, 2, 3]))]
            if any("CONVERT" in clause for clause in clauses):
                # Together with CONVERT, servers make tinyblob of blob, and the like.
                clauses = [clause for clause in clauses if "MODIFY" not in clause and "CHANGE" not in clause]
            return f"ALTER TABLE {table} " + ", ".join(clauses)


def _clause(dice: Random, columns: list[str], known: list[str]) -> str:
    column, other, kind = dice.choice(known), dice.choice(columns), dice.choice(TYPES)
    place = dice.choice(["", "", " FIRST", f" AFTER {dice.choice(known)}"])
    return dice.choice(
        [
            f"ADD COLUMN {other} {kind}{place}", f"ADD {other} {kind}{place}", f"DROP COLUMN {column}",
            f"MODIFY {column} {kind}{place}", f"CHANGE {column} {other} {kind}{place}",
            f"RENAME COLUMN {column} TO {other}",
            f"ADD PRIMARY KEY ({column})", "DROP PRIMARY KEY", f"ADD INDEX ({column}(3))",
            "CONVERT TO CHARACTER SET utf8mb4",
            "CONVERT TO CHARACTER SET latin1", f"RENAME TO t{dice.randint(0, 3)}", "COMMENT 'x'",
        ]
    )  # fmt: skip
