// The part of the engine that runs inside V8, before the user's script: an expression, whose value sandbox.py calls and
// keeps where no script finds it.
//
// Rows arrive as columns: numbers and flags in one ArrayBuffer (the arena), all text in one string. Events are plain
// objects, made by a function that is compiled once per structure. After the script ran, each returned event is compared
// with the columns it was made of: only what the script changed goes back, as columns again.
(() => {
  "use strict";
  const ROW = Symbol("tidemill.row"), ROUTE = Symbol("tidemill.route");
  const RealDate = Date, stringify = JSON.stringify, parse = JSON.parse, SAFE = Number.MAX_SAFE_INTEGER;
  const F64 = Float64Array, U8 = Uint8Array, U32 = Uint32Array, I32 = Int32Array, I64 = BigInt64Array, U64 = BigUint64Array;
  const Buffer = ArrayBuffer, Maker = Function, Table = Map, Names = Set, Later = Promise, List = Array, string = String;
  const {keys, hasOwn: own, is, getPrototypeOf, getOwnPropertyDescriptor, defineProperty: define} = Object, {ownKeys, apply} = Reflect, {abs, max} = Math;
  const raw = JSON.rawJSON, isArray = Array.isArray, MOST_NEW_COLUMNS = 1000, LONGEST_NAME = 255;
  const KIND = {NULL: 0, NUMBER: 1, STRING: 2, BOOL: 3, JSON: 4, ABSENT: 5, INTEGER: 6};
  let batch = null, single = null, options = {}, arena = null, text = "", out = new Buffer(1 << 16), grown = true;
  let base = 0;  // of this call's row numbers: an event that the script kept from an earlier call is none of them
  let now = 0, seed = "", state = 0, seeded = false, lines = [], unlogged = 0;
  const makers = new Table(), inbox = {text: ""};

  class Event {
    route(to) {
      if (to === null || typeof to !== "object") throw new TypeError("route() wants {topic, key, headers}");
      for (const name of keys(to)) {
        if (!["topic", "key", "headers"].includes(name)) throw new TypeError(`route() knows topic, key and headers, not "${name}"`);
      }
      this[ROUTE] = {...this[ROUTE], ...to};
      return this;
    }
  }

  // ---- what the script finds -------------------------------------------------------------------------------------

  function hide(names) { for (const name of names) if (!Reflect.deleteProperty(globalThis, name)) globalThis[name] = undefined; }

  function setUp(given) {
    options = given;
    // Threads and WebAssembly have memory that no limit of V8 counts; timers would run after the batch.
    trust();
    hide(["setTimeout", "clearTimeout", "__timer_manager", "SharedArrayBuffer", "Atomics", "WebAssembly"]);
    globalThis.console = {};
    for (const level of ["log", "info", "warn", "error", "debug"]) {
      globalThis.console[level] = (...parts) => {
        if (lines.length >= options.log_lines) { unlogged += 1; return; }
        lines.push([level, parts.map(shown).join(" ").slice(0, 1000).toWellFormed()]);
      };
    }
    if (!options.deterministic) return;
    hide(["WeakRef", "FinalizationRegistry"]);  // what they show depends on when memory is collected
    if (globalThis.Temporal) delete Temporal.Now;
    function FixedDate(...parts) {
      if (!new.target) return new RealDate(now).toString();
      return Reflect.construct(RealDate, parts.length ? parts : [now], new.target);
    }
    FixedDate.prototype = RealDate.prototype;
    RealDate.prototype.constructor = FixedDate;
    FixedDate.now = () => now;
    FixedDate.parse = RealDate.parse;
    FixedDate.UTC = RealDate.UTC;
    globalThis.Date = FixedDate;
    if (globalThis.Intl) fix(Intl.DateTimeFormat.prototype);
    Math.random = () => {  // mulberry32, begun with a hash of the event's identity
      if (!seeded) {
        state = 2166136261;
        for (let i = 0; i < seed.length; i++) state = Math.imul(state ^ seed.charCodeAt(i), 16777619);
        seeded = true;
      }
      state = (state + 0x6D2B79F5) | 0;
      let word = Math.imul(state ^ (state >>> 15), 1 | state);
      word = (word + Math.imul(word ^ (word >>> 7), 61 | word)) ^ word;
      return ((word ^ (word >>> 14)) >>> 0) / 4294967296;
    };
  }

  // Without a date they would show the clock's.
  function fix(dates) {
    const {get} = getOwnPropertyDescriptor(dates, "format"), parts = dates.formatToParts;
    define(dates, "format", {get() { const format = apply(get, this, []); return (date = now) => format(date); }, configurable: true});
    dates.formatToParts = function formatToParts(date = now) { return apply(parts, this, [date]); };
  }

  function shown(value) {
    if (typeof value === "string") return value;
    try { return stringify(value, (_, v) => typeof v === "bigint" ? `${v}n` : v) ?? string(value); } catch {}
    try { return string(value); } catch { return "a value that cannot be shown"; }
  }

  // The functions of V8 that this file goes by. A script that replaces one would change what is read back, or lose it.
  const trusted = [], computed = [];
  function trust() {
    const text = getPrototypeOf(""[Symbol.iterator]()), set = getPrototypeOf(new Names().values()), array = getPrototypeOf([][Symbol.iterator]()), map = getPrototypeOf(new Table().values());
    const typed = getPrototypeOf(U8.prototype);
    for (const [name, found] of [
      ["Array", List], ["String", string], ["Map", Table], ["Set", Names], ["RegExp", RegExp], ["Number", Number], ["BigInt", BigInt],
      ["Date", RealDate], ["Function", Maker], ["ArrayBuffer", Buffer],
    ]) note(name + ".prototype", found.prototype);
    note("%TypedArray%.prototype", typed); note("%TypedArray%", getPrototypeOf(U8));
    note("%ArrayIterator%", array); note("%StringIterator%", text); note("%MapIterator%", map); note("%SetIterator%", set);
  }
  function note(called, on) {
    for (const name of ownKeys(on)) {
      const {value, get} = getOwnPropertyDescriptor(on, name), one = {on, name, value, get, called: `${called}.${string(name)}`};
      if (get !== undefined) computed.push(one);
      else if (typeof value === "function" && name !== "constructor") trusted.push(one);
    }
  }
  function replaced() {
    for (let i = 0; i < trusted.length; i++) { const one = trusted[i]; if (one.on[one.name] !== one.value) return one.called; }
    for (let i = 0; i < computed.length; i++) { const one = computed[i]; if (getOwnPropertyDescriptor(one.on, one.name)?.get !== one.get) return one.called; }
    return [].toJSON === undefined && {}.toJSON === undefined ? null : "toJSON of every object";
  }

  function stand(event) { now = event.timestamp; seed = event.event_id; seeded = false; }

  function failure(error) {
    if (error === null || typeof error !== "object") return {name: "a value that is no Error", message: shown(error), stack: []};
    try {
      const stack = string(error.stack ?? "").split("\n").filter((line) => line.includes(options.script)).slice(0, 10);
      return {
        name: string(error.name ?? "Error").slice(0, 100).toWellFormed(), message: string(error.message ?? "").slice(0, 500).toWellFormed(),
        stack: stack.map((line) => line.trim().replace(/^at /, "").slice(0, 200).toWellFormed()),
      };
    } catch {
      return {name: "a value that is no Error", message: "", stack: []};  // its own getters throw
    }
  }

  // ---- columns in ------------------------------------------------------------------------------------------------

  // Values of a column as the script sees them; kept, so that what comes back can be compared with them.
  function column(c, rows) {
    const valid = c.valid < 0 ? null : new U8(arena, c.valid, rows);
    const values = new List(rows);
    const fill = (at) => { for (let i = 0; i < rows; i++) values[i] = valid !== null && valid[i] === 0 ? null : at(i); };
    if (c.kind === "number") {
      const numbers = new F64(arena, c.data, rows);
      if (valid === null && !c.odd && !c.omit) return numbers;
      fill((i) => numbers[i]);
    } else if (c.kind === "bool") {
      const flags = new U8(arena, c.data, rows);
      fill((i) => flags[i] !== 0);
    } else if (c.kind === "text") {
      const ends = new U32(arena, c.data, rows + 1), trim = c.trim, all = text;
      if (valid === null) for (let i = 0; i < rows; i++) values[i] = all.substring(ends[i] + trim, ends[i + 1] - trim);
      else fill((i) => all.substring(ends[i] + trim, ends[i + 1] - trim));
    } else if (c.kind === "json") {
      const ends = new U32(arena, c.data, rows + 1), all = text;
      fill((i) => read_json(all.substring(ends[i], ends[i + 1])));
    } else {
      const words = new (c.kind === "int64" ? I64 : U64)(arena, c.data, rows);
      if (options.integers === "bigint") fill((i) => words[i]);
      else fill((i) => {
        const number = Number(words[i]);
        return number <= SAFE && number >= -SAFE ? number : words[i].toString();
      });
    }
    for (const [row, exact] of c.odd ?? []) values[row] = exact;
    if (c.omit) { const omit = new U8(arena, c.omit, rows); for (let i = 0; i < rows; i++) if (omit[i]) values[i] = undefined; }
    return values;
  }

  // Makes the objects of one image: {name: values, ...} per row, null where there is none.
  function maker(columns) {
    const signature = stringify(columns.map((c) => [c.name, Boolean(c.omit)]));
    let made = makers.get("in" + signature);
    if (made === undefined) {
      const property = (c, n) => `${c.name === "__proto__" ? '["__proto__"]' : stringify(c.name)}: v${n}[i]`;
      const sent = (c, n) => c.name === "__proto__" ? `o = {...o, ${property(c, n)}};` : `o[${stringify(c.name)}] = v${n}[i];`;
      const parts = columns.some((c) => c.omit)
        ? "let o = {}; " + columns.map((c, n) => `if (v${n}[i] !== undefined) ${sent(c, n)}`).join(" ") + " images[i] = o;"
        : "images[i] = {" + columns.map(property).join(", ") + "};";
      made = new Maker("values", "there", "rows", "images", `
        const [${columns.map((_, n) => "v" + n).join(", ")}] = values;
        for (let i = 0; i < rows; i++) { if (there !== null && there[i] === 0) { images[i] = null; continue; } ${parts} }
        return images;`);
      makers.set("in" + signature, made);
    }
    return made;
  }

  function readImage(given, rows) {
    if (!given) return null;
    const there = given.there < 0 ? null : new U8(arena, given.there, rows);
    const values = given.columns.map((c) => column(c, rows));
    return {there, columns: given.columns, values, images: maker(given.columns)(values, there, rows, new List(rows))};
  }

  function events(head, sides) {
    const {rows} = head, made = new List(rows);
    const ops = new U8(arena, head.op, rows), places = new I32(arena, head.position, rows), times = new F64(arena, head.time, rows);
    const transactions = new F64(arena, head.tx_id, rows), ordinals = new F64(arena, head.ordinal, rows);
    const subs = head.sub < 0 ? null : new F64(arena, head.sub, rows);
    const {source_id, database, schema, table, schema_version} = head, old = sides.before?.images, key = sides.key?.images, after = sides.after?.images;
    for (let i = 0; i < rows; i++) {
      const ev = new Event(), position = places[i] < 0 ? null : head.positions[places[i]], tx = transactions[i];
      ev.event_id = source_id + ":" + (position ?? "") + ":" + ordinals[i] + (subs !== null && subs[i] ? "." + subs[i] : "");  // `identity`
      ev.source_id = source_id;
      ev.database = database;
      ev.schema = schema;
      ev.table = table;
      ev.op = options.ops[ops[i]];
      ev.tx_id = tx !== tx ? null : tx;
      ev.position = position;
      ev.ordinal = ordinals[i];
      ev.timestamp = times[i];
      ev.schema_version = schema_version;
      ev.before = (old && old[i]) ?? (key && key[i]) ?? null;
      ev.after = after ? after[i] : null;
      ev[ROW] = base + i;
      made[i] = ev;
    }
    const after_columns = sides.after?.columns ?? [];
    if (after_columns.some((c) => c.omit)) {
      for (let i = 0; i < rows; i++) {
        const names = after_columns.filter((c, n) => c.omit && sides.after.values[n][i] === undefined).map((c) => c.name);
        if (names.length) made[i].unchanged = names;
      }
    }
    return made;
  }

  function identity(head, i) {
    const {rows} = head, place = new I32(arena, head.position, rows)[i], sub = head.sub < 0 ? 0 : new F64(arena, head.sub, rows)[i];
    return head.source_id + ":" + (place < 0 ? "" : head.positions[place]) + ":" + new F64(arena, head.ordinal, rows)[i] + (sub ? "." + sub : "");
  }

  // ---- columns out -----------------------------------------------------------------------------------------------

  class Changes {
    constructor(name, form, scale) { this.name = name; this.form = form; this.scale = scale; this.rows = []; this.values = []; }
    add(row, value) { this.rows.push(row); this.values.push(value !== null && typeof value === "object" ? this.read(value) : value); }
    read(value) {  // at once: the script may use the object for its next event, too
      if (value instanceof Written) return value;
      if (!(value instanceof RealDate)) return new Written(text_of(value, this.name));
      if (value.getTime() !== value.getTime()) throw new TypeError(`column "${this.name}" was given a Date that is no time`);
      return value.toISOString();
    }
  }
  class Written { constructor(text) { this.text = whole(text); } }  // JSON that is ready

  // V8 writes half of a surrogate pair as an escape, which no strict parser reads.
  const ESCAPE = /\\(?:ud[89a-f][0-9a-f]{2}|.)/g;
  function whole(json) { return json.includes("\\ud") ? json.replace(ESCAPE, (one) => one.length > 2 ? "\uFFFD" : one) : json; }

  // Compares images with the columns they were made of. Compiled once per structure.
  function comparer(columns) {
    const signature = stringify(columns.map((c) => [c.name, c.kind]));
    let made = makers.get("out" + signature);
    if (made === undefined) {
      const parts = columns.map((c, n) => {
        const at = c.name in {} ? `(own(o, ${stringify(c.name)}) ? o[${stringify(c.name)}] : undefined)` : `o[${stringify(c.name)}]`;  // "constructor"
        if (c.kind === "json") return `{ const x = ${at}; if (x !== v${n}[r] || (x !== null && typeof x === "object")) json(${n}, k, r, x); if (x !== undefined) seen += 1; }`;
        const differs = c.kind === "number" ? `x !== v${n}[r] && (x === x || v${n}[r] === v${n}[r])` : `x !== v${n}[r]`;
        return `{ const x = ${at}; if (${differs}) changed[${n}].add(k, x); if (x !== undefined) seen += 1; }`;
      });
      made = new Maker("values", "changed", "json", "added", "own", `
        const [${columns.map((_, n) => "v" + n).join(", ")}] = values;
        return (o, k, r) => {
          let seen = 0; ${parts.join("\n")}
          for (const name in o) if (o[name] !== undefined) seen -= 1;
          if (seen !== 0) added(o, k);
        };`);
      makers.set("out" + signature, made);
    }
    return made;
  }

  function side(name, read, head) {
    const columns = read ? read.columns : head.columns, values = read ? read.values : columns.map(() => new List(head.rows).fill(undefined));
    const changed = columns.map((c) => new Changes(c.name, c.form, c.scale)), more = new Table(), known = new Names(columns.map((c) => c.name));
    const json = (n, k, r, x) => {
      const c = columns[n], was = values[n][r];
      if (was !== undefined && x !== undefined) {
        // The script may have changed the very object that it was given: its text is made again from the column.
        const valid = c.valid < 0 ? null : new U8(arena, c.valid, head.rows), ends = new U32(arena, c.data, head.rows + 1);
        const document = valid !== null && valid[r] === 0 ? "null" : text.substring(ends[r], ends[r + 1]);
        const written = quickly(x);
        if (stringify(read_json(document)) === written) return;
        if (x !== null) { changed[n].add(k, new Written(written === undefined || INEXACT.test(document) ? text_of(x, c.name, document) : written)); return; }
      }
      changed[n].add(k, x);
    };
    const added = (o, k) => {
      for (const key of keys(o)) {
        if (known.has(key) || o[key] === undefined) continue;
        if (!more.has(key)) {
          if (key.length > LONGEST_NAME || !key.isWellFormed()) throw new TypeError("the name of a new column is longer than 255 characters, or no text");
          if (more.size >= MOST_NEW_COLUMNS) throw new TypeError("a call adds more than 1,000 columns");
          more.set(key, new Changes(key, "new", 0));
        }
        more.get(key).add(k, o[key]);
      }
    };
    const compare = comparer(columns)(values, changed, json, added, own);
    return {name, known, there: read ? read.there : new U8(head.rows), compare, changed, more};
  }

  // Takes what the script returns, event by event; `answer` is all of it. An event without an identity is of row `whose`, or of that
  // of the event before it.
  function reader(head, sides) {
    const {rows} = head, src = [], ops = [], used = new U8(rows);
    const after = side("after", sides.after, head), before = side("before", sides.before, head), key = side("key", sides.key, head);
    const there = [], AFTER = 1, BEFORE = 2, KEY = 4, errors = [];  // `there`: which images an event has
    const routes = [new Changes("topic", "route", 0), new Changes("key", "route", 0), new Changes("headers", "headers", 0)];
    const was = new U8(arena, head.op, rows);
    let same = true, last = 0, byId = null, opChanged = false, flagged = false;

    function take(e, whose = last) {
      const k = src.length;
      if (e === null || typeof e !== "object") throw new TypeError(`it returned an array whose element ${k} is no event`);
      let r = e[ROW];
      if (r !== undefined) { r -= base; if (!(r >= 0 && r < rows)) r = undefined; }
      if (r === undefined && typeof e.event_id === "string") {
        if (byId === null) { byId = new Table(); for (let i = 0; i < rows; i++) byId.set(identity(head, i), i); }
        r = byId.get(e.event_id);
      }
      if (r === undefined) r = whose;
      last = r;
      if (used[r] || r !== k) same = false;
      used[r] = 1;
      const op = options.ops.indexOf(e.op ?? "insert");
      src.push(r); ops.push(op); there.push(0);
      if (op !== was[r]) opChanged = true;
      if (op < 1 || op > 3 && op !== was[r]) errors.push([r, e.op === "read" ? 'op "read" is of rows that a snapshot read' : "op must be insert, update or delete"]);
      const a = e.after ?? null, hadAfter = sides.after !== null && (after.there === null || after.there[r] !== 0);
      if (a !== null) {
        if (typeof a !== "object") { errors.push([r, "after must be an object or null"]); return; }
        there[k] |= AFTER;
        after.compare(a, k, r);
      }
      if ((a !== null) !== hadAfter) flagged = true;
      const b = e.before ?? null, hadOld = sides.before !== null && (before.there === null || before.there[r] !== 0);
      const hadKey = sides.key !== null && (key.there === null || key.there[r] !== 0);
      if (b !== null) {
        if (typeof b !== "object") { errors.push([r, "before must be an object or null"]); return; }
        if (hadKey && !hadOld && keys(b).every((name) => key.known.has(name))) { there[k] |= KEY; key.compare(b, k, r); }
        else if (hadKey && !hadOld) { there[k] |= BEFORE; before.compare(b, k, r); flagged = true; }  // a row where a key was: it has the key
        else { there[k] |= hadKey ? BEFORE | KEY : BEFORE; before.compare(b, k, r); if (!hadOld) flagged = true; }
      } else if (hadOld || hadKey) flagged = true;
      const to = e[ROUTE];
      if (to !== undefined) {
        if (to.topic !== undefined) routes[0].add(k, to.topic);
        if (to.key !== undefined) routes[1].add(k, to.key);
        if (to.headers !== undefined) routes[2].add(k, to.headers);
      }
    }

    function answer() {
      const packed = new Packed(), count = src.length;
      same &&= count === rows;
      const made = {rows: count, same, errors, src: same ? -1 : packed.put(I32.from(src)), op: opChanged ? packed.put(U8.from(ops)) : -1, there: {}, changes: []};
      if (flagged) for (const [name, bit] of [["after", AFTER], ["before", BEFORE], ["key", KEY]]) made.there[name] = packed.put(U8.from(there, (bits) => bits & bit));
      for (const one of [after, before, key]) {
        for (const changes of [...one.changed, ...one.more.values()]) if (changes.rows.length) made.changes.push(packed.changes(one.name, changes));
      }
      for (const changes of routes) if (changes.rows.length) made.changes.push(packed.changes("route", changes));
      made.bytes = packed.used;
      return made;
    }
    return {take, answer};
  }

  // Writes into the outgoing buffer, eight-byte aligned.
  class Packed {
    constructor() { this.used = 0; }
    room(bytes) {
      if (this.used + bytes <= out.byteLength) return;
      const larger = new Buffer(max(out.byteLength * 2, this.used + bytes));
      new U8(larger).set(new U8(out, 0, this.used));
      out = larger; grown = true;
    }
    put(array) {
      this.room(array.byteLength + 8);
      const at = this.used;
      new U8(out).set(new U8(array.buffer, array.byteOffset, array.byteLength), at);
      this.used = (at + array.byteLength + 7) & ~7;
      return at;
    }
    changes(side, {name, form, scale, rows, values}) {
      const count = rows.length, kinds = new U8(count), numbers = new F64(count), strings = [];
      let kind = -1, mixed = false;
      for (let i = 0; i < count; i++) {
        const value = values[i];
        let is;
        if (value instanceof Written) { is = KIND.JSON; strings.push(value.text); }
        else if (form === "json" && value !== undefined && value !== null) { is = KIND.JSON; strings.push(whole(text_of(value, name))); }
        else switch (typeof value) {
          case "number":
            if (form === "decimal" && value === value && abs(value) < 1e21) { is = KIND.STRING; strings.push(value.toFixed(scale)); }
            else if (form === "route") { is = KIND.STRING; strings.push(string(value)); }
            else { is = KIND.NUMBER; numbers[i] = value; }
            break;
          case "string": is = KIND.STRING; strings.push(value); break;
          case "boolean": is = KIND.BOOL; numbers[i] = value ? 1 : 0; break;
          case "bigint": is = form === "route" ? KIND.STRING : KIND.INTEGER; strings.push(value.toString()); break;
          case "undefined": is = KIND.ABSENT; break;
          case "object": is = KIND.NULL; break;
          default: throw new TypeError(`column "${name}" was given a ${typeof value}`);
        }
        kinds[i] = is;
        if (kind === -1) kind = is; else if (kind !== is) mixed = true;
      }
      const made = {side, name, form, count, rows: this.put(I32.from(rows)), kind: mixed ? -1 : kind, kinds: mixed ? this.put(kinds) : -1, numbers: -1, ends: -1, text: -1, size: 0};
      if (mixed || kind === KIND.NUMBER || kind === KIND.BOOL) made.numbers = this.put(numbers);
      if (strings.length) this.strings(made, strings);
      return made;
    }
    strings(made, strings) {
      const ends = new I32(strings.length + 1);
      let most = 0;
      for (const one of strings) most += one.length;
      this.room(3 * most + 8);
      const bytes = new U8(out), begin = this.used;
      let at = begin;
      for (let n = 0; n < strings.length; n++) {
        const one = strings[n];
        for (let i = 0; i < one.length; i++) {
          let code = one.charCodeAt(i);
          if (code < 0x80) { bytes[at++] = code; continue; }
          if (code < 0x800) { bytes[at++] = 0xC0 | code >> 6; bytes[at++] = 0x80 | code & 63; continue; }
          if (code >= 0xD800 && code < 0xE000) {
            const next = i + 1 < one.length ? one.charCodeAt(i + 1) : 0;
            if (code < 0xDC00 && next >= 0xDC00 && next < 0xE000) {
              code = 0x10000 + ((code - 0xD800) << 10) + (next - 0xDC00);
              i += 1;
              bytes[at++] = 0xF0 | code >> 18; bytes[at++] = 0x80 | code >> 12 & 63; bytes[at++] = 0x80 | code >> 6 & 63; bytes[at++] = 0x80 | code & 63;
              continue;
            }
            code = 0xFFFD;  // half of a pair is no character
          }
          bytes[at++] = 0xE0 | code >> 12; bytes[at++] = 0x80 | code >> 6 & 63; bytes[at++] = 0x80 | code & 63;
        }
        ends[n + 1] = at - begin;
      }
      made.text = begin;
      made.size = at - begin;
      this.used = (at + 7) & ~7;
      made.ends = this.put(ends);
    }
  }

  // JSON.parse of V8 14 takes a key of one character that is written as an escape for the key "\\", where an object of the
  // same keys before it had that one: it compares what is written. Such keys are read under a longer name.
  const ESCAPED_KEY = /"(\\(?:u[0-9a-fA-F]{4}|[^u]))"(?=\s*:)/g;
  function read_json(document, reviver) {
    if (!document.includes('"\\')) return parse(document, reviver);
    let mark = "\uE0F1";
    while (document.includes(mark)) mark += "\uE0F1";
    const marked = document.replace(ESCAPED_KEY, `"$1${mark}"`);
    return marked === document ? parse(document, reviver) : rename(parse(marked, reviver), mark);
  }

  function rename(value, mark) {
    if (value === null || typeof value !== "object" || value instanceof Exact) return value;
    const names = keys(value), made = names.some((name) => name.endsWith(mark)) ? {} : value;
    for (const name of names) {
      const to = name.endsWith(mark) ? name.slice(0, -mark.length) : name;
      define(made, to, {value: rename(value[name], mark), writable: true, enumerable: true, configurable: true});
    }
    return made;
  }

  // A value as JSON. Given the document that it was made of, numbers keep the digits that they had there: JavaScript has
  // rounded them, and the script did not mean to.
  function text_of(value, name, document = "") {
    const replacer = INEXACT.test(document) ? digits(document, name) : (_, v) => typeof v === "bigint" ? raw(v.toString()) : v;
    try {
      return stringify(value, replacer) ?? "null";
    } catch (error) {
      if (error instanceof Ambiguous || string(error?.stack).includes(options.script)) throw error;
      throw new TypeError(`column "${name}" was given an object that is no JSON`);
    }
  }

  // JSON without a replacer, which makes V8 slow; undefined where that does not do: a BigInt, or what is no JSON at all.
  function quickly(value) { try { return stringify(value); } catch { return undefined; } }

  // Text with a number that JavaScript may write otherwise: many digits, an exponent, a zero at the end, -0.
  const INEXACT = /\d[\d.]{15}|\d[eE]|\.\d*0(?!\d)|-0(?![\d.])/;
  class Exact { constructor(number, source) { this.number = number; this.source = source; } }
  class Ambiguous extends TypeError {}

  // For `stringify`. A number that stands where it stood has its old text; one that the script moved is known by its
  // value, unless two of the document are the same to JavaScript.
  function digits(document, name) {
    const moved = new Table(), plain = new Names(), places = new Table();
    const tree = read_json(document, (_, value, {source}) => {
      if (typeof value !== "number") return value;
      const canonical = source === stringify(value), exact = canonical ? value : new Exact(value, source), other = moved.get(value);
      if (canonical || significant(source) === significant(string(value))) plain.add(value);
      else moved.set(value, other === undefined || other?.source === source ? exact : null);
      return exact;
    });
    for (const value of plain) if (moved.has(value)) moved.set(value, null);
    return function (key, value) {
      if (typeof value === "bigint") return raw(value.toString());
      const holder = places.has(this) ? places.get(this) : {"": tree};
      const old = holder !== null && typeof holder === "object" && own(holder, key) ? holder[key] : undefined;
      if (value !== null && typeof value === "object") places.set(value, isArray(value) && isArray(old) && value.length !== old.length ? null : old);
      if (typeof value !== "number") return value;
      if (old instanceof Exact && is(old.number, value)) return raw(old.source);
      if (is(old, value)) return value;
      const exact = moved.get(value);
      if (exact === null) throw new Ambiguous(`column "${name}" was given a number that JavaScript cannot tell from another of its document`);
      return exact === undefined ? value : raw(exact.source);
    };
  }

  function significant(number) {
    const [mantissa, exponent = "0"] = number.toLowerCase().split("e"), [whole, fraction = ""] = mantissa.replace("-", "").split(".");
    const all = (whole + fraction).replace(/^0+/, ""), some = all.replace(/0+$/, "");
    return some === "" ? "0" : `${some}e${Number(exponent) - fraction.length + all.length - some.length}`;
  }

  // ---- one call --------------------------------------------------------------------------------------------------

  function array(value, called) {
    if (isArray(value)) return value;
    if (value instanceof Later) throw new TypeError(`${called} returned a Promise; asynchronous functions are not supported`);
    throw new TypeError(`${called} must return an array of events`);
  }

  function one(event) {
    stand(event);
    const made = single(event);
    if (made === null || made === undefined) return [];
    if (made instanceof Later) throw new TypeError("process returned a Promise; asynchronous functions are not supported");
    return isArray(made) ? made : [made];
  }

  // Calls the script, and gives what it returns to `results`; answers which events it failed on. What `process` returns is read
  // before it is called again, so that it may use an object twice.
  function ask(made, results) {
    const failed = [];
    if (batch !== null) {
      stand(made[0]);
      const returned = array(batch(made), "processBatch"), count = returned.length;
      if (replaced() === null) for (let k = 0; k < count; k++) results.take(returned[k]);
      return failed;
    }
    for (let i = 0; i < made.length; i++) {
      try { for (const ev of one(made[i])) results.take(ev, i); }
      catch (error) { failed.push([i, failure(error)]); if (failed.length >= 1000) break; }
    }
    return failed;
  }

  // Runs the script over the events and returns what changed, as JSON; `rows` of it are in the arena.
  function run(head) {
    lines = []; unlogged = 0; text = inbox.text;
    base = (base + 65536) & 0x3fffffff;  // small enough to be V8's cheapest kind of number
    let answer;
    try {
      const sides = {before: readImage(head.before, head.rows), key: readImage(head.key, head.rows), after: readImage(head.after, head.rows)};
      const results = reader(head, sides), failed = ask(events(head, sides), results);
      answer = replaced() !== null ? {} : failed.length ? {failed} : results.answer();
    } catch (error) {
      answer = {thrown: failure(error)};
    }
    const broken = replaced();  // again: getters of the script ran since
    if (broken !== null) answer = {broken};
    answer.lines = lines; answer.unlogged = unlogged; answer.grown = grown;
    grown = false;
    return stringify(answer);
  }

  return {
    setUp,
    use(processBatch, process) {
      batch = typeof processBatch === "function" ? processBatch : null;
      single = typeof process === "function" ? process : null;
      return stringify({found: batch !== null || single !== null, broken: replaced()});
    },
    room(bytes) { arena = new Buffer(bytes); return arena; },
    inbox,
    get out() { return out; },
    run,
  };
})()
