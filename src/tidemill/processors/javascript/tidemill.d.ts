// Types of what a Tidemill script sees, for editors. Put a copy beside your script and begin it with
// `/// <reference path="./tidemill.d.ts" />`. docs/processors/javascript.md explains every field.

declare namespace Tidemill {
  /** Decimals, dates, times, bytes (base64) and integers beyond 2^53 are strings; JSON columns and lists are objects, and
   * keep digits of numbers that a script does not set. In a column that the table does not have, a number becomes a double,
   * also a whole one, and a bigint an integer. */
  type Value = null | boolean | number | bigint | string | Value[] | { [name: string]: Value };
  type Row = { [column: string]: Value };

  interface Event {
    /** Names the event for ever: the same after any replay. */
    readonly event_id: string;
    readonly source_id: string;
    readonly database: string;
    readonly schema: string;
    readonly table: string;
    /** May become insert, update (with `after`) or delete (with the old row or its key in `before`, and no `after`). */
    op: "insert" | "update" | "delete" | "read";
    readonly tx_id: number | null;
    readonly position: string | null;
    readonly ordinal: number;
    /** When the transaction was committed: milliseconds since 1970. */
    readonly timestamp: number;
    readonly schema_version: string;
    /** The old row, or its key where the source sent only that. */
    before: Row | null;
    after: Row | null;
    /** Columns that the source did not send: they are not in `after`, and stay as they are at the destination unless the
     * script sets them. Undefined, never empty, in events that have all columns: always for inserts, deletes and rows of
     * snapshots; for updates unless the source left out a large value that did not change (PostgreSQL's TOAST) or sends
     * partial rows (MySQL's binlog_row_image). Write `ev.unchanged?.includes("note")`. */
    readonly unchanged?: string[];
    /** Where sinks with topics, streams or subjects send the event. */
    route(to: { topic?: string; key?: string; headers?: { [name: string]: string } }): Event;
  }
}

/** Returns the events that go on, in any number. */
declare function processBatch(events: Tidemill.Event[]): Tidemill.Event[];
/** Returns the event, null to drop it, or several. */
declare function process(event: Tidemill.Event): Tidemill.Event | Tidemill.Event[] | null | undefined;

declare const console: Record<"log" | "info" | "warn" | "error" | "debug", (...parts: unknown[]) => void>;
