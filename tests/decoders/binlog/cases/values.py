"""Values whose form in the binlog is special: changes of JSON documents, dates, vectors, other alphabets."""

from __future__ import annotations

from itertools import pairwise

from tests.decoders.binlog.cases.case import MINIMAL, Case, ddl, delete, insert, update

_LONG = '"a rather long text that makes a diff worth it, longer and longer"'
_CELLS = (f"[{_LONG}, 1, 2]", f"[{_LONG}, 1, 2, 1.5]", f'["first", {_LONG}, 1, 2, 1.5]',
          f'["first", {_LONG}, 1, 2, "last"]', f'["first", {_LONG}, 1, "last"]')  # fmt: skip

VALUES: tuple[Case, ...] = (
    Case(
        # In the lists of character columns a VECTOR is one, of binary strings.
        "vector_before_texts",
        [
            "CREATE TABLE v (id int PRIMARY KEY, v vector(3), c text CHARACTER SET latin1, d text CHARACTER SET cp1251,"
            " w vector, e varchar(9) CHARACTER SET utf8mb4)"
        ],
        ["INSERT INTO v VALUES (1, TO_VECTOR('[1, -2.5, 1e10]'), 'é', 'Пр', NULL, '日本')"],
        [insert(0, "v", {"id": 1, "v": [1.0, -2.5, 1e10], "c": "é", "d": "Пр", "w": None, "e": "日本"})],
        servers=["mysql"],
    ),
    Case(
        "partial_json",
        [
            "CREATE TABLE j (id int PRIMARY KEY, doc json, other json)",
            """INSERT INTO j VALUES
            (1, '{"a": [1, 2, {"b": "a rather long text that makes a diff worth it"}], "c": null}', '[1]'),
            (2, '{"a": 1, "long": "another rather long text, long enough for a diff"}', NULL)""",
        ],
        [
            "SET SESSION binlog_row_value_options = PARTIAL_JSON",
            "UPDATE j SET doc = JSON_SET(doc, '$.a[1]', 2.5, '$.a[2].\"x y\"', 'new') WHERE id = 1",
            "UPDATE j SET doc = JSON_REMOVE(doc, '$.c'), other = JSON_ARRAY_APPEND(other, '$', 7) WHERE id = 1",
            "UPDATE j SET doc = JSON_REPLACE(doc, '$.a', 'longer than before') WHERE id = 2",
        ],
        [
            update(
                0,
                "j",
                {
                    "id": 1,
                    "doc": '{"a": [1, 2.5, {"b": "a rather long text that makes a diff worth it", "x y": "new"}], '
                    '"c": null}',
                    "other": "[1]",
                },
                before={
                    "id": 1,
                    "doc": '{"a": [1, 2, {"b": "a rather long text that makes a diff worth it"}], "c": null}',
                    "other": "[1]",
                },
            ),
            update(
                1,
                "j",
                {
                    "id": 1,
                    "doc": '{"a": [1, 2.5, {"b": "a rather long text that makes a diff worth it", "x y": "new"}]}',
                    "other": "[1, 7]",
                },
                before={
                    "id": 1,
                    "doc": '{"a": [1, 2.5, {"b": "a rather long text that makes a diff worth it", "x y": "new"}], '
                    '"c": null}',
                    "other": "[1]",
                },
            ),
            update(
                2,
                "j",
                {
                    "id": 2,
                    "doc": '{"a": "longer than before", "long": "another rather long text, long enough for a diff"}',
                    "other": None,
                },
                before={
                    "id": 2,
                    "doc": '{"a": 1, "long": "another rather long text, long enough for a diff"}',
                    "other": None,
                },
            ),
        ],
        servers=["mysql"],
    ),
    Case(
        # The server writes the path as the statement has it: behind the end, or counted from there.
        "partial_json_by_cells_that_are_not_there",
        [
            "CREATE TABLE j (id int PRIMARY KEY, doc json)",
            f"INSERT INTO j VALUES (1, '{_CELLS[0]}')",
        ],
        [
            "SET SESSION binlog_row_value_options = PARTIAL_JSON",
            "UPDATE j SET doc = JSON_SET(doc, '$[9]', 1.5)",
            "UPDATE j SET doc = JSON_SET(doc, '$[last-9]', 'first')",
            "UPDATE j SET doc = JSON_REPLACE(doc, '$[last]', 'last')",
            "UPDATE j SET doc = JSON_REMOVE(doc, '$[last-1]')",
        ],
        [
            update(i, "j", {"id": 1, "doc": after}, before={"id": 1, "doc": before})
            for i, (before, after) in enumerate(pairwise(_CELLS))
        ],
        servers=["mysql"],
    ),
    Case(
        "partial_json_without_the_old_value",
        [
            "CREATE TABLE j (id int PRIMARY KEY, doc json)",
            "INSERT INTO j VALUES "
            """(1, '{"a": 1, "long": "a rather long text that makes a diff worth it, longer and longer"}')""",
        ],
        [
            MINIMAL,
            "SET SESSION binlog_row_value_options = PARTIAL_JSON",
            "UPDATE j SET doc = JSON_SET(doc, '$.a', 2)",
            "UPDATE j SET doc = JSON_REMOVE(doc, '$.a')",
        ],
        [
            update(
                0,
                "j",
                {"id": 1, "doc": None},
                key={"id": 1},
                odd={"after.doc": '[{"op": "replace", "path": "$.a", "value": 2}]'},
            ),
            update(
                1, "j", {"id": 1, "doc": None}, key={"id": 1}, odd={"after.doc": '[{"op": "remove", "path": "$.a"}]'}
            ),
        ],
        servers=["mysql"],
    ),
    Case(
        "names_and_statements_in_other_alphabets",
        ["CREATE TABLE `Größe ✓` (`Ключ` int PRIMARY KEY, `a b` varchar(9))"],
        [
            "INSERT INTO `Größe ✓` VALUES (1, 'é')",
            "SET NAMES latin1",
            "CREATE TABLE `é` (id int)",
            "SET NAMES utf8mb4",
            "DELETE FROM `Größe ✓`",
        ],
        [
            insert(0, "Größe ✓", {"Ключ": 1, "a b": "é"}),
            ddl(1, "é", "CREATE TABLE `é`"),
            delete(2, "Größe ✓", before={"Ключ": 1, "a b": "é"}),
        ],
        ddls={"CREATE TABLE `é`": ("é", False)},
        barrier=True,
    ),
    Case(
        "zero_dates",
        ["CREATE TABLE z (id int PRIMARY KEY, d date, dt datetime(2), ts timestamp(3) NULL)"],
        [
            "INSERT INTO z VALUES (1, '0000-00-00', '2024-00-00 10:00:00.25', '0000-00-00'), (2, '2024-02-29', "
            "'2024-02-29 01:02:03.45', '2024-02-29 01:02:03.456')"
        ],
        [
            insert(
                0,
                "z",
                {"id": 1, "d": None, "dt": None, "ts": None},
                odd={
                    "after.d": "0000-00-00",
                    "after.dt": "2024-00-00 10:00:00.25",
                    "after.ts": "0000-00-00 00:00:00.000",
                },
            ),
            insert(
                0,
                "z",
                {
                    "id": 2,
                    "d": "2024-02-29",
                    "dt": "2024-02-29T01:02:03.450000",
                    "ts": "2024-02-29T01:02:03.456000+00:00",
                },
            ),
        ],
    ),
    Case(
        "old_temporal_formats",
        [
            "SET GLOBAL mysql56_temporal_format = OFF",
            "CREATE TABLE o (id int PRIMARY KEY, d datetime, ts timestamp NULL, t time)",
            "SET GLOBAL mysql56_temporal_format = ON",
            "SET time_zone = '+00:00'",
        ],
        [
            "INSERT INTO o VALUES (1, '2024-02-29 23:59:58', '2024-02-29 01:02:03', '-12:34:56'), "
            "(2, '0000-00-00', '0000-00-00', '838:59:59'), (3, NULL, NULL, NULL)"
        ],
        [
            insert(0, "o", {"id": 1, "d": "2024-02-29T23:59:58", "ts": "2024-02-29T01:02:03+00:00", "t": "-12:34:56"}),
            insert(
                0,
                "o",
                {"id": 2, "d": None, "ts": None, "t": "838:59:59"},
                odd={"after.d": "0000-00-00 00:00:00", "after.ts": "0000-00-00 00:00:00"},
            ),
            insert(0, "o", {"id": 3, "d": None, "ts": None, "t": None}),
        ],
        servers=["mariadb"],
    ),
    Case(
        # The binlog has no word of the digits: the catalog has.
        "old_temporal_formats_with_fractions",
        [
            "SET GLOBAL mysql56_temporal_format = OFF",
            "CREATE TABLE f (id int PRIMARY KEY, d datetime(6), e datetime(1), ts timestamp(3) NULL, t time(2),"
            " v text)",
            "SET GLOBAL mysql56_temporal_format = ON",
        ],
        [
            "INSERT INTO f VALUES (1, '2024-02-29 23:59:58.123456', '0001-01-01 00:00:00.9', '2024-02-29 01:02:03.456',"
            " '-12:34:56.78', 'a'), (2, '0000-00-00', '2024-02-00 00:00:00.5', '0000-00-00', '-00:00:00.01', 'b'),"
            " (3, NULL, NULL, NULL, '838:59:59.99', 'c')"
        ],
        [
            insert(
                0,
                "f",
                {
                    "id": 1,
                    "d": "2024-02-29T23:59:58.123456",
                    "e": "0001-01-01T00:00:00.900000",
                    "ts": "2024-02-29T01:02:03.456000+00:00",
                    "t": "-12:34:56.78",
                    "v": "a",
                },
            ),
            insert(
                0,
                "f",
                {"id": 2, "d": None, "e": None, "ts": None, "t": "-00:00:00.01", "v": "b"},
                odd={
                    "after.d": "0000-00-00 00:00:00.000000",
                    "after.e": "2024-02-00 00:00:00.5",
                    "after.ts": "0000-00-00 00:00:00.000",
                },
            ),
            insert(0, "f", {"id": 3, "d": None, "e": None, "ts": None, "t": "838:59:59.99", "v": "c"}),
        ],
        servers=["mariadb"],
        known={
            "golden.f": [
                ("id", "int(11)", ""),
                ("d", "datetime(6)", ""),
                ("e", "datetime(1)", ""),
                ("ts", "timestamp(3)", ""),
                ("t", "time(2)", ""),
                ("v", "text", "utf8mb4"),
            ]
        },
        keys={"golden.f": ["id"]},
    ),
)
