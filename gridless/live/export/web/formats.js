// Event files in plain JavaScript: `readEvents(name, buffer)` returns the columns that gridless.read_events returns.
// Nothing is repaired. A bad file throws an Error that begins with its name and says at which byte or line.
"use strict";
const readEvents = (() => {
  // A page holds at most this many events (17 bytes each), and unpacks at most this many bytes.
  const MOST_EVENTS = 30e6, MOST_BYTES = 2 ** 29, EXACT = Number.MAX_SAFE_INTEGER;
  const CAMERAS = {
    atis: [[34, 34], [304, 240]], dat: [[304, 240], [640, 480], [1280, 720]],
    evt2: [[640, 480], [1280, 720]], evt3: [[1280, 720]],
  };
  const GENERATIONS = {
    gen31: [640, 480], gen3: [640, 480], gen41: [1280, 720], gen4: [1280, 720], imx636: [1280, 720],
    imx646: [1280, 720], genx320: [320, 320],
  };
  const ALIASES = {
    x: ["x"], y: ["y"], t: ["t", "ts", "timestamp", "time"], p: ["p", "on", "pol", "polarity"],
  };

  class Fault extends Error {
    constructor(message, place) { super(place === undefined ? message : `${message} (at byte ${place})`); }
  }

  // Events in file order. Room for more is made as they come, so that no header can ask for memory.
  class Columns {
    constructor(sensor = null, cameras = []) {
      Object.assign(this, { sensor, cameras, count: 0 });
      this.time = new Float64Array(4096), this.x = new Int32Array(4096), this.y = new Int32Array(4096);
      this.polarity = new Uint8Array(4096);
    }

    add(time, x, y, polarity) {
      const i = this.count++;
      if (i === this.time.length) this.grow();
      this.time[i] = time, this.x[i] = x, this.y[i] = y, this.polarity[i] = polarity;
    }

    grow() {
      if (this.count > MOST_EVENTS) throw new Fault(`holds more than ${MOST_EVENTS.toLocaleString("en")} events`);
      for (const name of ["time", "x", "y", "polarity"]) {
        const larger = new this[name].constructor(2 * this[name].length);
        larger.set(this[name]), this[name] = larger;
      }
    }

    finished() {
      const { count, time, x, y } = this;
      let [width, height] = [1, 1];
      for (let i = 0; i < count; i++) width = Math.max(width, x[i] + 1), height = Math.max(height, y[i] + 1);
      const sensor = this.sensor || this.cameras.find(([w, h]) => width <= w && height <= h) || [width, height];
      for (let i = 0; i < count; i++) {
        if (!(time[i] >= 0 && time[i] <= EXACT)) throw new Fault(`event ${i} has the time ${time[i]}`);
        if (i && time[i] < time[i - 1]) throw new Fault(`event ${i} is at ${time[i]} us, before the one before it`);
        if (x[i] < 0 || y[i] < 0 || x[i] >= sensor[0] || y[i] >= sensor[1])
          throw new Fault(`event ${i} is at pixel (${x[i]}, ${y[i]}), outside the ${sensor[0]} x ${sensor[1]} sensor`);
      }
      // `known`: the file says its sensor, which else is a guess.
      const columns = { sensor, count, known: this.sensor !== null };
      for (const name of ["time", "x", "y", "polarity"]) columns[name] = this[name].subarray(0, count);
      return columns;
    }
  }

  class Source {
    constructor(buffer) { this.view = new DataView(buffer), this.bytes = new Uint8Array(buffer), this.size = buffer.byteLength; }

    text(from, to) {
      let text = "";
      for (let i = from; i < Math.min(to, this.size); i++) text += String.fromCharCode(this.bytes[i]);
      return text;
    }

    // Number of whole records from a byte on; half a record is refused.
    records(start, size, what) {
      const over = (this.size - start) % size;
      if (over) throw new Fault(`truncated: the last ${over} bytes are not a whole ${what} of ${size} bytes`, this.size - over);
      return (this.size - start) / size;
    }

    // The lines that begin with %, as a Map of words to the rest, and the byte where the data begins.
    header() {
      const fields = new Map();
      let start = 0;
      while (this.bytes[start] === 37) {
        let end = this.bytes.indexOf(10, start);
        if (end >= 0 && end - start > 1 << 16) end = -1;
        const line = this.text(start, end < 0 ? start + 256 : end).replace(/\r+$/, "");
        if (/[\x00-\x08\x0a-\x1f]/.test(line)) break;
        if (end < 0) throw new Fault("the header has no end", start);
        const [, key, value] = line.slice(1).trim().match(/^(\S*)\s*(.*)$/);
        fields.set(key, value.trim()), start = end + 1;
        if (line.startsWith("% end")) break;
      }
      return [fields, start];
    }
  }

  function sized(words, most) {
    const sensor = words.map(Number);
    if (!sensor.every(v => v > 0 && v <= most)) throw new Fault(`the header says the sensor is ${words[0]} x ${words[1]}`, 0);
    return sensor;
  }

  // Prophesee .raw: words of 32 bits (EVT2) or 16 bits (EVT3) that only make sense in sequence.
  function evt(source) {
    const [fields, start] = source.header(), format = fields.get("format") || "";
    const short = format.match(/^EVT(\d)(\d)?\b/);
    const version = fields.get("evt") || (short ? `${short[1]}.${short[2] || 0}` : "unknown");
    const settings = new Map(format.split(";").filter(part => part.includes("=")).map(part => part.split("=", 2)));
    const geometry = (fields.get("geometry") || "").match(/^(\d{1,9})\s*x\s*(\d{1,9})$/);
    let sensor = null;
    if (geometry) sensor = sized(geometry.slice(1), 2048);
    else if (/^\d+$/.test(settings.get("width")) && /^\d+$/.test(settings.get("height")))
      sensor = sized([settings.get("width"), settings.get("height")], 2048);
    else {
      const plugin = fields.get("plugin_name") || "";
      sensor = GENERATIONS[Object.keys(GENERATIONS).find(name => plugin.includes(name))] || null;
    }
    if (version === "2.0") return evt2(source, start, sensor);
    if (version === "3.0") return evt3(source, start, sensor);
    throw new Fault(`the encoding is EVT ${version}: EVT 2.0 and EVT 3.0 can be read`, 0);
  }

  function evt2(source, start, sensor) {
    const count = source.records(start, 4, "word"), out = new Columns(sensor, CAMERAS.evt2);
    let high = -1, base = 0, wraps = 0;
    for (let i = 0; i < count; i++) {
      const word = source.view.getUint32(start + 4 * i, true), kind = word >>> 28;
      if (kind <= 1 && high >= 0) out.add(base + (word >>> 22 & 63), word >>> 11 & 0x7FF, word & 0x7FF, kind);
      else if (kind === 8) {
        const now = word & 0x0FFFFFFF;
        if (high - now > 2 ** 27) wraps++;
        high = now, base = wraps * 2 ** 34 + now * 64;
      }
    }
    return out;
  }

  function evt3(source, start, sensor) {
    const count = source.records(start, 2, "word"), out = new Columns(sensor, CAMERAS.evt3);
    let high = -1, wraps = 0, now = 0, x = -1, y = -1, on = 0;
    for (let i = 0; i < count; i++) {
      const word = source.view.getUint16(start + 2 * i, true), kind = word >>> 12, value = word & 0xFFF;
      if (kind === 0) y = value & 0x7FF;
      else if (kind === 2) { if (high >= 0 && y >= 0) out.add(now, value & 0x7FF, y, value >>> 11); }
      else if (kind === 3) x = value & 0x7FF, on = value >>> 11;
      else if (kind === 4 || kind === 5) {
        const wide = kind === 4 ? 12 : 8;
        if (x < 0) continue;
        for (let k = 0; k < wide && high >= 0 && y >= 0; k++) if (value >>> k & 1) out.add(now, x + k, y, on);
        x += wide;
      } else if (kind === 6) now = Math.floor(now / 4096) * 4096 + value;
      else if (kind === 8 && value !== high) {
        // The low half follows in a word of its own.
        if (high - value > 2048) wraps++;
        high = value, now = wraps * 2 ** 24 + value * 4096;
      }
    }
    return out;
  }

  // Prophesee .dat: a header, the type and size of an event, then pairs of a time and an address.
  function dat(source) {
    const [fields, start] = source.header(), header = new Map([...fields].map(([k, v]) => [k.toLowerCase(), v]));
    const version = header.get("version") || "1";
    if (version !== "1" && version !== "2") throw new Fault(`version ${version}: versions 1 and 2 can be read`, 0);
    const sensor = header.has("width") && header.has("height") ? sized([header.get("width"), header.get("height")], 1 << 14) : null;
    const [kind, size] = [source.bytes[start], source.bytes[start + 1]];
    if (size === undefined) throw new Fault("truncated: the header is not followed by the type and size of an event", source.size);
    if ((kind !== 0 && kind !== 12) || size !== 8)
      throw new Fault(`holds events of type ${kind} and ${size} bytes, not contrast events (0 or 12) of 8`, start);
    const [xs, ys, ps, pmask] = version === "1" ? [9, 8, 17, 1] : [14, 14, 28, 15];
    const count = source.records(start + 2, 8, "event"), out = new Columns(sensor, CAMERAS.dat);
    let last = 0, base = 0;
    for (let i = 0; i < count; i++) {
      const at = start + 2 + 8 * i, stamp = source.view.getUint32(at, true), place = source.view.getUint32(at + 4, true);
      // The counter starts again after 2^32, and events from before that may come late.
      if (last - stamp > 2 ** 31) base += 2 ** 32;
      else if (base && stamp - last > 2 ** 32 - 2 ** 28) base -= 2 ** 32;
      last = stamp;
      const polarity = place >>> ps & pmask;
      if (polarity > 1) throw new Fault(`event ${i} has polarity ${polarity}, which must be 0 or 1`, at);
      out.add(base + stamp, place & 2 ** xs - 1, place >>> xs & 2 ** ys - 1, polarity);
    }
    return out;
  }

  // N-MNIST .bin: x, y, polarity and 23 bits of time. Rows with y = 240 mark an overflow of the counter.
  function atis(source) {
    const count = source.records(0, 5, "event"), out = new Columns(null, CAMERAS.atis);
    for (let at = 0; at < 5 * count; at += 5) {
      const rest = source.view.getUint32(at + 1);
      if (rest >>> 24 !== 240) out.add(rest & 0x7FFFFF, source.bytes[at], rest >>> 24, rest >>> 23 & 1);
    }
    return out;
  }

  // Event Stream .es: 5 bytes an event, the first of which holds the time since the last one.
  function es(source) {
    if (source.size < 20) throw new Fault("truncated: the header has 20 bytes", source.size);
    const { bytes, view, size } = source, kind = bytes[15];
    if (bytes[12] !== 2) throw new Fault(`version ${bytes[12]}: only version 2 can be read`, 12);
    if (kind !== 1 && kind !== 2) throw new Fault(`holds events of type ${kind}: types 1 and 2 can be read`, 15);
    const out = new Columns(sized([view.getUint16(16, true), view.getUint16(18, true)], 65535)), wide = kind === 2;
    let now = 0, at = 20;
    while (at < size) {
      const byte = bytes[at];
      if (byte >= (wide ? 0xFC : 0xFE)) {
        now += wide ? 63 * (byte & 3) : 127 * (byte & 1), at++;
        continue;
      }
      if (at + 5 > size) throw new Fault("truncated: the last event has no whole 5 bytes", at);
      now += wide ? byte >>> 2 : byte >>> 1;
      if (!(wide && byte & 1))
        out.add(now, view.getUint16(at + 1, true), view.getUint16(at + 3, true), wide ? byte >>> 1 & 1 : byte & 1);
      at += 5;
    }
    return out;
  }

  // A FlatBuffers table behind its size, read with every offset checked.
  class Table {
    constructor(bytes, identifier, place) {
      this.bytes = bytes, this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length), this.place = place;
      const name = String.fromCharCode(...bytes.subarray(8, 12));
      if (name !== identifier) throw new Fault(`expected a table ${identifier}, found ${JSON.stringify(name)}`, place);
      this.root = 4 + this.uint32(4), this.fields = this.root - this.int32(this.root);
      this.count = (this.uint16(this.fields) - 4) >> 1;
    }

    inside(at, size) {
      if (at < 0 || at + size > this.bytes.length) throw new Fault("a table points outside itself", this.place);
      return at;
    }
    uint16(at) { return this.view.getUint16(this.inside(at, 2), true); }
    uint32(at) { return this.view.getUint32(this.inside(at, 4), true); }
    int32(at) { return this.view.getInt32(this.inside(at, 4), true); }
    int64(at) { return Number(this.view.getBigInt64(this.inside(at, 8), true)); }

    // Where a field is stored, or 0 where it has its default.
    field(number) {
      const offset = number < this.count ? this.uint16(this.fields + 4 + 2 * number) : 0;
      return offset && this.root + offset;
    }

    // Where the elements of a vector begin, and how many there are.
    vector(number, size) {
      let at = this.field(number);
      if (!at) return [0, 0];
      at += this.uint32(at);
      const count = this.uint32(at);
      if (at + 4 + count * size > this.bytes.length) throw new Fault(`a table says it holds ${count} elements, more than its bytes`, this.place);
      return [at + 4, count];
    }
  }

  // AEDAT4: a header with a description in XML, then packets, each compressed on its own.
  function aedat4(source) {
    if (source.text(0, 14) !== "#!AER-DAT4.0\r\n") throw new Fault("only version 4.0 of AEDAT4 can be read", 0);
    const size = source.size >= 18 ? source.view.getUint32(14, true) : Infinity, start = 18 + size;
    if (start > source.size) throw new Fault("truncated: the header does not fit", 14);
    const header = new Table(source.bytes.subarray(14, start), "IOHE", 14);
    const [from, length] = header.vector(2, 1), streams = eventStreams(source.text(14 + from, 14 + from + length));
    const compression = header.field(0) ? header.int32(header.field(0)) : 0;
    let end = header.field(1) ? header.int64(header.field(1)) : -1;
    if (end > source.size) throw new Fault(`truncated: the header places a table at byte ${end}, but the file has ${source.size}`, source.size);
    if (end >= 0 && end < start) throw new Fault(`the header places a table at byte ${end}, inside itself`, 14);
    if (end < 0) end = source.size;
    if (streams.size !== 1) throw new Fault(`has ${streams.size} event streams: a page plays files with one`);
    const [[stream, sensor]] = streams, out = new Columns(sensor);
    for (let at = start; at < end;) {
      if (at + 8 > end) throw new Fault("truncated: the header of a packet is missing", at);
      const bytes = source.view.getInt32(at + 4, true), to = at + 8 + bytes;
      if (bytes < 0 || to > end) throw new Fault(`truncated: a packet of ${bytes} bytes does not fit`, at);
      if (source.view.getInt32(at, true) === stream) packet(unpacked(source.bytes.subarray(at + 8, to), compression, at + 8), at + 8, out);
      at = to;
    }
    return out;
  }

  function packet(bytes, place, out) {
    const table = new Table(bytes, "EVTS", place), [start, count] = table.vector(0, 16), view = table.view;
    for (let at = start; at < start + 16 * count; at += 16) {
      const polarity = bytes[at + 12];
      if (polarity > 1) throw new Fault(`event ${out.count} has polarity ${polarity}, which must be 0 or 1`, place);
      const time = view.getUint32(at, true) + 2 ** 32 * view.getInt32(at + 4, true);
      out.add(time, view.getInt16(at + 8, true), view.getInt16(at + 10, true), polarity);
    }
  }

  // The event streams that the description names: number to sensor, or to null.
  function eventStreams(text) {
    if (text.includes("<!")) throw new Fault("the description declares a document type, which no camera does", 14);
    const streams = new Map(), open = [];
    for (const [, close, kind, words, empty, inside] of text.matchAll(/<(\/?)(node|attr)\b([^<>]*?)(\/?)>([^<]*)/g)) {
      const named = name => (words.match(new RegExp(`\\b${name}="([^"]*)"`)) || [])[1];
      if (kind === "node" && !close) {
        open.push({ name: named("name"), values: {} });
        if (!empty) continue;
      }
      if (kind === "attr" && !close) {
        // Those of a stream's node, and of the nodes right inside it.
        for (const node of open.slice(-2)) node.values[named("key")] = inside;
      } else if (kind === "node") {
        const node = open.pop(), parent = open[open.length - 1], { typeIdentifier, sizeX, sizeY } = node ? node.values : {};
        if (!node || !parent || parent.name !== "outInfo" || typeIdentifier !== "EVTS" || !/^\d{1,9}$/.test(node.name)) continue;
        const known = [sizeX, sizeY].every(v => /^\d{1,5}$/.test(v) && Number(v));
        streams.set(Number(node.name), known ? [Number(sizeX), Number(sizeY)] : null);
      }
    }
    return streams;
  }

  function unpacked(bytes, compression, place) {
    if (compression === 0) return bytes.slice();
    if (compression > 2) throw new Fault("is compressed by ZSTD, which a page cannot unpack: gridless.write_events writes it as .es", place);
    try { return lz4(bytes); } catch (error) { throw new Fault(`a packet cannot be unpacked: ${error.message}`, place); }
  }

  // One LZ4 frame. Checksums are not compared.
  function lz4(data) {
    let at = 0, count = 0, out = new Uint8Array(Math.min(8 * data.length + 65536, MOST_BYTES));
    const next = () => { if (at >= data.length) throw new Error("it is cut short"); return data[at++]; };
    const word = () => (next() | next() << 8 | next() << 16 | next() << 24) >>> 0;
    const room = n => {
      if (count + n <= out.length) return;
      if (count + n > MOST_BYTES) throw new Error("it is too large");
      const larger = new Uint8Array(Math.min(2 * (count + n), MOST_BYTES));
      larger.set(out), out = larger;
    };
    const copy = (n, end) => {
      if (at + n > end) throw new Error("it is cut short");
      room(n), out.set(data.subarray(at, at + n), count), at += n, count += n;
    };
    const long = n => { if (n === 15) for (let more = 255; more === 255;) n += more = next(); return n; };
    if (word() !== 0x184D2204) throw new Error("it is no LZ4 frame");
    const flags = next();
    at += 1 + (flags & 8) + (flags & 1 ? 4 : 0) + 1;
    for (let size = word(); size; size = word()) {
      const end = at + (size & 0x7FFFFFFF);
      if (end > data.length) throw new Error("it is cut short");
      if (size >>> 31) copy(end - at, end);
      while (at < end) {
        const token = next();
        copy(long(token >>> 4), end);
        if (at >= end) break;
        const back = next() | next() << 8;
        let length = 4 + long(token & 15);
        if (!back || back > count) throw new Error("it points before its beginning");
        room(length);
        while (length--) out[count] = out[count - back], count++;
      }
      if (flags & 16) at += 4;
    }
    return out.slice(0, count);
  }

  // NumPy: one structured array with the fields x, y, t and p.
  function npy(source) {
    const long = source.bytes[6] > 1, start = (long ? 12 : 10);
    const size = source.size < start ? Infinity : long ? source.view.getUint32(8, true) : source.view.getUint16(8, true);
    if (size > 1 << 16 || start + size > source.size) throw new Fault("not a NumPy array: its header does not fit", 0);
    const header = source.text(start, start + size), shape = header.match(/'shape':\s*\(\s*(\d+)\s*,\s*\)/);
    const described = header.match(/'descr':\s*\[(.*?)\]\s*,\s*'/s);
    if (!described || !shape) throw new Fault("is no row of events: save a structured array with the fields x, y, t and p", start);
    const fields = {};
    let stride = 0, left = described[1];
    for (const [whole, name, order, kind, bytes] of described[1].matchAll(/\(\s*'([^']*)'\s*,\s*'([<>|=]?)([a-zA-Z?])(\d*)'\s*\),?/g)) {
      fields[name.toLowerCase()] = { at: stride, kind, bytes: Number(bytes || 1), little: order !== ">" };
      stride += Number(bytes || 1), left = left.replace(whole, "");
    }
    if (left.trim()) throw new Fault(`has a field that is no number: ${left.trim().slice(0, 60)}`, start);
    const count = Number(shape[1]), first = start + size;
    if (count * stride !== source.size - first) throw new Fault(`the header promises ${count} events of ${stride} bytes, but ${source.size - first} bytes follow`, first);
    const get = {};
    for (const [name, aliases] of Object.entries(ALIASES)) {
      const fits = aliases.filter(alias => alias in fields);
      if (fits.length !== 1) throw new Fault(`has ${fits.join(" and ") || "no " + aliases.join(" or ")}; its fields are ${Object.keys(fields).join(", ")}`, start);
      get[name] = number(source.view, fields[fits[0]], name);
    }
    const out = new Columns(), polarities = new Set();
    for (let i = 0, at = first; i < count; i++, at += stride) {
      const p = get.p(at);
      polarities.add(p), out.add(get.t(at), get.x(at), get.y(at), p > 0 ? 1 : 0);
    }
    checkPolarities(polarities);
    return out;
  }

  // A function that reads one field at a byte.
  function number(view, { at, kind, bytes, little }, name) {
    if (kind === "b" || kind === "?") return place => view.getUint8(place + at) ? 1 : 0;
    if (!"iu".includes(kind) || ![1, 2, 4, 8].includes(bytes)) throw new Fault(`${name} must hold integers, not ${kind}${bytes}`);
    const read = (bytes === 8 ? "getBig" : "get") + (kind === "i" ? "Int" : "Uint") + 8 * bytes;
    return place => Number(view[read](place + at, little));
  }

  function checkPolarities(values) {
    const bad = [...values].find(p => p !== 0 && p !== 1 && p !== -1);
    if (bad !== undefined || (values.has(0) && values.has(-1))) throw new Fault(`has the polarity ${bad ?? "0 as well as -1"}: give 0 and 1 alone, or -1 and 1`);
  }

  const WHOLE = /^[-+]?\d+$/, POINT = /^[-+]?(\d+\.?\d*|\.\d+)$/, NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$/, LOGICAL = /^(true|false)$/i;

  // Text: one event a line. A line of names says which column is which, or else the values do.
  function text(source) {
    let lines, at = 0, line = 0;
    try { lines = new TextDecoder("utf-8", { fatal: true }).decode(source.bytes); } catch { throw new Fault("is in no known format, and no text"); }
    const next = () => {
      const end = lines.indexOf("\n", at), from = at;
      at = end < 0 ? lines.length : end + 1, line++;
      return lines.slice(from, end < 0 ? lines.length : end).trim();
    };
    const cut = (words, mark) => mark === " " ? words.split(/\s+/) : words.replace(new RegExp(`${mark}$`), "").split(mark).map(cell => cell.trim());
    const between = words => [";", ",", "\t"].find(mark => words.includes(mark)) || " ";
    let sensor = null, words = "";
    while (at < lines.length && (!(words = next()) || /^[#%]/.test(words))) {
      const geometry = words.match(/^%\s*geometry\s*:\s*(\d{1,5})\s*,\s*(\d{1,5})$/);
      if (geometry) sensor = sized(geometry.slice(1), 99999);
      words = "";
    }
    if (!words) throw new Fault("has no line of events and no names of columns");
    let names = null, cells = cut(words, between(words));
    if (/[a-z]/i.test(cells.join("")) && !cells.every(cell => NUMBER.test(cell) || LOGICAL.test(cell))) {
      const lower = cells.map(cell => cell.replace(/^[ "]+|[ "]+$/g, "").toLowerCase());
      names = { columns: cells.length };
      for (const [name, aliases] of Object.entries(ALIASES)) {
        const fits = lower.map((word, i) => aliases.includes(word) ? i : -1).filter(i => i >= 0);
        if (fits.length !== 1) throw new Fault(`the names ${lower.join(", ").slice(0, 80)} do not say which column is ${name}`);
        names[name] = fits[0];
      }
      for (words = ""; at < lines.length && !words;) words = next();
      if (!words) return new Columns(sensor);
    }
    const mark = between(words), width = (cells = cut(words, mark)).length;
    if (width < 4 || width > 64 || (!names && width > 4)) throw new Fault(`an event has x, y, t and p, but line ${line} has ${width} columns, and no names say which`);
    if (names && names.columns !== width) throw new Fault(`line ${line} has ${width} columns, but ${names.columns} are named`);
    const points = cells.map((cell, i) => cell.includes(".") ? i : -1).filter(i => i >= 0);
    const decimal = points.length === 1 && (!names || points[0] === names.t) ? points[0] : -1;
    const kept = names ? [names.t, names.x, names.y, names.p] : [0, 1, 2, 3], begin = [at, line, words];
    for (const loose of [false, true]) {
      const table = kept.map(() => new Float64Array(1024)), fractions = new Set();
      let count = 0, again = false;
      for ([at, line, words] = begin; words !== null && !again; words = at < lines.length ? next() : null) {
        if (!words) continue;
        const cells = cut(words, mark);
        if (cells.length !== width) throw new Fault(`line ${line} has not ${width} columns`);
        if (count >= MOST_EVENTS) throw new Fault(`holds more than ${MOST_EVENTS.toLocaleString("en")} events`);
        if (count === table[0].length) table.forEach((old, k) => (table[k] = new Float64Array(2 * count)).set(old));
        for (let column = 0, k = 0; column < width; column++) {
          const cell = cells[column], logical = LOGICAL.test(cell);
          let value = logical ? Number(/^t/i.test(cell)) : Number(cell);
          if (!logical && !loose && column === decimal && POINT.test(cell)) value = microseconds(cell);
          else if (!logical && !WHOLE.test(cell)) {
            if (!NUMBER.test(cell)) throw new Fault(`line ${line} has ${JSON.stringify(cell.slice(0, 40))}, which is no number`);
            again = !loose;
            if (!Number.isInteger(value)) fractions.add(column);
          }
          if (Math.abs(value) > EXACT) throw new Fault(`line ${line} has a number too large`);
          k = kept.indexOf(column);
          if (k >= 0) table[k][count] = value;
        }
        count++;
      }
      if (again) continue;
      const found = loose ? decimalOf(fractions, decimal) : decimal;
      if (names && found >= 0 && found !== names.t) throw new Fault("only times may have a decimal point");
      if (loose && found >= 0) for (let i = 0, k = kept.indexOf(found); i < count; i++) table[k][i] = Math.round(1e6 * table[k][i]);
      return ordered(table, count, names ? "txyp" : guessed(table, count, found), sensor);
    }
  }

  function decimalOf(fractions, decimal) {
    const [first = decimal, second] = fractions;
    if (second !== undefined || (decimal >= 0 && first !== decimal)) throw new Fault("only times may be no whole numbers");
    return first;
  }

  // Seconds as microseconds, rounded by their seventh decimal.
  function microseconds(cell) {
    const [whole, part = ""] = cell.replace(/^[-+]/, "").split(".");
    const value = Number(whole || 0) * 1e6 + Number(part.slice(0, 6).padEnd(6, "0")) + (part[6] >= "5" ? 1 : 0);
    return cell[0] === "-" ? -value : value;
  }

  function guessed(table, count, decimal) {
    const fits = ["txyp", "xypt"].filter(order => {
      const time = table[order.indexOf("t")], p = table[order.indexOf("p")];
      if (decimal >= 0 && decimal !== order.indexOf("t")) return false;
      for (let i = 0; i < count; i++) if (Math.abs(p[i]) > 1 || (i && time[i] < time[i - 1])) return false;
      return true;
    });
    if (fits.length !== 1) throw new Fault("which column is which cannot be told: begin the file with a line of names, such as t,x,y,p");
    return fits[0];
  }

  function ordered(table, count, order, sensor) {
    const [t, x, y, p] = [..."txyp"].map(name => table[order.indexOf(name)]), out = new Columns(sensor), polarities = new Set();
    for (let i = 0; i < count; i++) {
      if (Math.max(Math.abs(x[i]), Math.abs(y[i])) >= 2 ** 31) throw new Fault(`event ${i} is at pixel (${x[i]}, ${y[i]}), which no camera has`);
      polarities.add(p[i]), out.add(t[i], x[i], y[i], p[i] > 0 ? 1 : 0);
    }
    checkPolarities(polarities);
    return out;
  }

  // Frames of `gridless stream`: a mark, a number and a count, then events of 16 bytes.
  function frames(source) {
    const out = new Columns();
    for (let at = 0; at < source.size;) {
      if (at + 12 > source.size) throw new Fault("truncated: a frame has a head of 12 bytes", at);
      const end = at + 12 + 16 * source.view.getUint32(at + 8, true);
      if (source.text(at, at + 4) !== "GLE1") throw new Fault("is no frame", at);
      if (end > source.size) throw new Fault("truncated: a frame does not fit", at);
      for (at += 12; at < end; at += 16)
        out.add(Number(source.view.getBigInt64(at, true)), source.view.getUint16(at + 8, true), source.view.getUint16(at + 10, true), source.bytes[at + 12]);
    }
    return out;
  }

  const OTHERS = [
    [/^PK\x03\x04/, "a .npz archive"], [/^\x89HDF/, "HDF5"], [/^MATLAB/, "a MATLAB file"], [/^#!AER-DAT[123]/, "AEDAT 1 to 3"],
    [/^#ROSBAG|^\x89MCAP|^SQLite/, "a recording of ROS"],
  ];

  // Contents say which format it is; the suffix counts only for .bin, which has no header.
  function reader(name, head) {
    if (head.startsWith("Event Stream")) return es;
    if (head.startsWith("#!AER-DAT4")) return aedat4;
    if (head.startsWith("GLE1") && head.length >= 12) return frames;
    if (head.startsWith("\x93NUMPY")) return npy;
    const other = OTHERS.find(([mark]) => mark.test(head));
    if (other) throw new Fault(`is ${other[1]}, which a page cannot read: gridless.write_events writes it as .es`);
    if (/^%/.test(head) && /% evt |% format EVT|% plugin_name/.test(head)) return evt;
    if (head.startsWith("% Data file containing") || (/^%/.test(head) && head.includes("% Version "))) return dat;
    if (/\.bin$/i.test(name)) return atis;
    if (!head) throw new Fault("is empty");
    if (/[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]/.test(head) || !/[0-9]|\bx\b/i.test(head)) throw new Fault("is in no format that a page knows: .raw, .dat, .bin, .csv, .aedat4, .es or .npy");
    return text;
  }

  return (name, buffer) => {
    try {
      if (buffer.byteLength > MOST_BYTES) throw new Fault("is larger than 512 MiB, which is all that a page reads");
      const source = new Source(buffer);
      return reader(name, source.text(0, 4096))(source).finished();
    } catch (error) {
      throw new Error(error instanceof Fault ? `${name} ${error.message}` : `${name} cannot be read: ${error.message}`);
    }
  };
})();
if (typeof module !== "undefined") module.exports = { readEvents };
