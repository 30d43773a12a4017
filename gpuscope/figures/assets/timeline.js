// The timeline on a canvas: for the page, whose server sends what a view needs, and for the report,
// which holds what it shows. Names are drawn or set as text, never as markup.
(function () {
  "use strict";

  const { element, findIn, formatNs, formatAt, ticks, canvasPainter, svgPainter } = window.gpuscope;
  const GUTTER = 228, RULER = 26; // names in pictures are always given so much; on the page the style sheet says
  const HEIGHT = { group: 22, device: 34, idle: 16, range: 20, stream: 26, engine: 24, thread: 22, nvtx: 20, mpi: 20 };
  const MIN_WIDTH_NS = 20, CHARACTER = 6.3;
  const NEAR = 200, NARROW = 4; // as on the server: so many marks in view are all bars; of more, those that wide
  const EXPOSED = ["h2d", "d2h", "p2p", "comm", "uvm"], COMPUTE = ["kernel", "fused"];
  const IDLE = {
    "idle: host": "its launch by the host", "idle: stream": "its stream", "idle: event": "an event",
    "idle: null-stream": "the legacy null stream", "idle: engine": "its copy engine",
    "idle: sm": "room on the GPU", "idle: unknown": "something that the trace does not tell",
  };

  const NAMELESS = { range: "NVTX on the GPU", nvtx: "NVTX" };

  // Operations of an engine that run at once lie beside each other: the lane of each mark, and how
  // many lanes the marks that overlap it share.
  function spread(marks) {
    const all = marks.flatMap((mark, part) => mark[1].map((start, i) => ({ part, i, start, end: start + mark[2][i] })));
    all.sort((a, b) => a.start - b.start || a.end - b.end);
    const lanes = marks.map((mark) => new Array(mark[1].length));
    let together = [], free = [], reach = -Infinity;
    const close = () => { for (const each of together) lanes[each.part][each.i] = [each.lane, free.length]; };
    for (const each of all) {
      if (each.start >= reach) { close(); together = []; free = []; }
      let lane = free.findIndex((end) => end <= each.start);
      if (lane < 0) lane = free.length;
      free[lane] = each.end;
      each.lane = lane;
      together.push(each);
      reach = Math.max(reach, each.end);
    }
    close();
    return lanes;
  }

  // Decode the columns once, as running sums: any stretch is then two look-ups.
  function decode(reply, kinds) {
    for (const [number, row] of Object.entries(reply.rows)) {
      row.lanes = kinds(number) === "engine" ? spread(row.marks) : null;
      row.columns = row.columns.map(([paint, text]) => {
        const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
        const sums = new Float64Array(bytes.length + 1);
        for (let i = 0; i < bytes.length; i++) sums[i + 1] = sums[i] + bytes[i] / 255;
        return [paint, sums];
      });
    }
    if (reply.rest) decode(reply.rest, kinds);
    return reply;
  }

  // meta: what Timeline.describe returns. source: {view(request) -> promise of Timeline.view's
  // answer, while names are searched with `rest`, the answer without the search; whole: true where the
  // answer holds all there is}. hooks: picked(mark),
  // hovered(mark) -> promise of lines for the tip, leap() before another place is shown, touched(row)
  // before what is in a row is picked or selected.
  function timeline(root, meta, source, hooks) {
    const { rows, paints } = meta;
    const fitLow = -Math.max(1, Math.round(meta.end_ns * 0.02)), fitHigh = meta.end_ns - fitLow;
    const state = {
      low: fitLow, high: fitHigh, range: -1, brush: null, picked: null,
      hidden: new Set(), folded: new Set(), find: "", rows: "", order: rows.map((_, number) => number),
    };
    rows.forEach((row, number) => { if (!row.unfolded) state.folded.add(number); });
    let noRow = false, theme = "light", colors = {}, data = null, asked = null, next = null, shown = [], total = 0;
    let pointer = null, drag = null, arrows = [], drawing = false, stale = true;
    const sought = { rows: { text: "", hits: null }, names: { text: "", hits: null } };
    const scene = document.createElement("canvas");

    root.replaceChildren();
    root.classList.add("tl");
    const legend = element("div", "tl-legend", root, { role: "group", "aria-label": "Classes: press to hide or show" });
    const trouble = element("div", "tl-trouble", root, { role: "alert" });
    const top = element("div", "tl-top", root);
    element("div", "tl-corner", top);
    const ruler = element("canvas", "tl-ruler", top, { "aria-hidden": "true" });
    const scroller = element("div", "tl-scroll", root);
    const space = element("div", "tl-space", scroller);
    const labels = element("div", "tl-labels", space, { role: "tree", "aria-label": "Rows" });
    const canvas = element("canvas", "tl-canvas", space, {
      tabindex: "0", role: "application",
      "aria-label": "Timeline. W and S zoom, A and D move, N and P go from one operation to the next, F fits, slash searches, question mark lists the keys.",
    });
    const tip = element("div", "tl-tip", document.body, { role: "tooltip" });
    const said = element("div", "unseen", root, { role: "status" });

    let across = 50; // asking the browser costs more than all else
    const width = () => across;
    const scale = () => width() / (state.high - state.low);
    const xOf = (t) => (t - state.low) * scale();
    const timeAt = (x) => state.low + x / scale();
    const colorsOf = (paint) => paints[paint][theme];

    // Rows

    // Say what did not work, until something does.
    function fail(text) {
      if (trouble.textContent !== text) trouble.textContent = text;
    }

    // Find an expression in the rows, or the names of a report; `then` follows once it is found.
    function seek(what, text, names, then) {
      const mine = sought[what];
      if (mine.text === text) return;
      mine.text = text;
      if (!text) { mine.hits = null; return; }
      findIn(text, names).then((hits) => { fail(""); return hits; }, (error) => { fail(error.message); return null; }).then((hits) => {
        if (mine.text !== text) return;
        mine.hits = hits;
        then();
      });
    }

    function arrange() {
      seek("rows", state.rows, rows.map((row) => `${row.label} ${row.note}`), arrange);
      const wanted = sought.rows.hits, matches = (number) => wanted[number];
      let y = 0, foldedAt = Infinity, path = [];
      const kept = new Set();
      for (const number of state.order) {
        path = path.filter((above) => rows[above].level < rows[number].level);
        if (wanted && (matches(number) || path.some(matches))) {
          kept.add(number);
          path.forEach((above) => kept.add(above));
        }
        path.push(number);
      }
      shown = [];
      for (const number of state.order) {
        const row = rows[number];
        if (row.level > foldedAt) continue;
        foldedAt = state.folded.has(number) ? row.level : Infinity;
        if (wanted && !kept.has(number)) continue;
        if (row.paints.length && row.paints.every((paint) => state.hidden.has(paint))) continue;
        const height = HEIGHT[row.kind];
        shown.push({ number, y, height });
        y += height;
      }
      total = y;
      if (noRow !== Boolean(wanted && !kept.size)) {
        noRow = !noRow;
        fail(noRow ? "No row is called so." : "");
      }
      const most = Math.max(160, window.innerHeight * 0.62);
      scroller.style.height = `${Math.min(total + 2, most)}px`;
      space.style.height = `${total}px`;
      label();
      fit_canvas();
    }

    const foldable = (number) => {
      const at = state.order.indexOf(number);
      return at + 1 < state.order.length && rows[state.order[at + 1]].level > rows[number].level;
    };

    function label() {
      const focused = labels.contains(document.activeElement) ? document.activeElement.dataset.row : null;
      labels.replaceChildren();
      for (const { number, y, height } of shown) {
        const row = rows[number], folds = foldable(number);
        const made = element("div", `tl-label ${row.kind}`, labels, {
          role: "treeitem", tabindex: "-1", "data-row": number, "aria-level": row.level + 1, draggable: "true",
          title: [row.label, row.note].filter(Boolean).join(" · "),
          ...(row.label ? {} : { "aria-label": `${NAMELESS[row.kind] || row.kind}, next row` }),
          ...(folds ? { "aria-expanded": String(!state.folded.has(number)) } : {}),
        });
        made.style.cssText = `top:${y}px;height:${height}px;padding-left:${8 + 13 * row.level}px`;
        element("span", "tl-fold", made, { "aria-hidden": "true" }).textContent = folds ? (state.folded.has(number) ? "▸" : "▾") : "";
        element("span", "tl-name", made).textContent = row.label;
        made.append(" ");
        element("span", "tl-note", made).textContent = row.note;
      }
      const first = labels.querySelector(focused === null ? ".tl-label" : `[data-row="${focused}"]`);
      if (first) {
        first.tabIndex = 0;
        if (focused !== null) first.focus();
      }
    }

    function fold(number) {
      if (!foldable(number)) return;
      if (!state.folded.delete(number)) state.folded.add(number);
      arrange();
      changed();
    }

    // The rows that belong to a row move with it, among its siblings.
    function block(number) {
      const from = state.order.indexOf(number);
      let to = from + 1;
      while (to < state.order.length && rows[state.order[to]].level > rows[number].level) to++;
      return [from, to];
    }

    function parentOf(number) {
      for (let at = state.order.indexOf(number) - 1; at >= 0; at--) {
        if (rows[state.order[at]].level < rows[number].level) return state.order[at];
      }
      return -1;
    }

    function place(number, other, after) {
      if (number === other || rows[number].level !== rows[other].level || parentOf(number) !== parentOf(other)) return;
      const [from, to] = block(number);
      const moved = state.order.splice(from, to - from);
      const [begin, end] = block(other);
      state.order.splice(after ? end : begin, 0, ...moved);
      arrange();
    }

    function sibling(number, step) {
      const same = state.order.filter((each) => rows[each].level === rows[number].level && parentOf(each) === parentOf(number));
      return same[same.indexOf(number) + step];
    }

    labels.addEventListener("click", (event) => {
      const made = event.target.closest(".tl-label");
      if (!made) return;
      labels.querySelectorAll(".tl-label").forEach((each) => { each.tabIndex = -1; });
      made.tabIndex = 0;
      made.focus({ preventScroll: true });
      fold(+made.dataset.row);
    });
    labels.addEventListener("keydown", (event) => {
      const made = event.target.closest(".tl-label");
      const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (!made || event.ctrlKey || event.metaKey) return;
      const number = +made.dataset.row;
      if (step && event.altKey) {
        const other = sibling(number, step);
        if (other !== undefined) place(number, other, step > 0);
      } else if (step) {
        const other = step > 0 ? made.nextElementSibling : made.previousElementSibling;
        if (other) { made.tabIndex = -1; other.tabIndex = 0; other.focus(); }
      } else if (event.key === "Enter" || event.key === " ") {
        fold(number);
      } else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
        if (state.folded.has(number) === (event.key === "ArrowRight")) fold(number);
      } else {
        return;
      }
      event.preventDefault();
      event.stopPropagation();
    });
    let carried = null;
    labels.addEventListener("dragstart", (event) => { carried = +event.target.dataset.row; });
    labels.addEventListener("dragover", (event) => event.preventDefault());
    labels.addEventListener("drop", (event) => {
      event.preventDefault();
      const made = event.target.closest(".tl-label");
      if (!made || carried === null) return;
      place(carried, +made.dataset.row, state.order.indexOf(carried) < state.order.indexOf(+made.dataset.row));
    });

    // Classes

    function fillLegend() {
      legend.replaceChildren();
      const used = new Set(rows.flatMap((row) => row.paints));
      for (const paint of [...used].filter((each) => each < meta.hideable).sort((a, b) => a - b)) {
        const chip = element("button", "tl-chip", legend, { type: "button", "aria-pressed": String(!state.hidden.has(paint)), title: "Hide or show this class" });
        element("span", "swatch", chip).style.background = colorsOf(paint)[0];
        element("span", "", chip).textContent = paints[paint].name;
        chip.addEventListener("click", () => {
          if (!state.hidden.delete(paint)) state.hidden.add(paint);
          fillLegend();
          arrange();
          changed();
        });
      }
      const key = (name, title, color) => {
        const made = element("span", "tl-key", legend, { title });
        element("span", color ? "swatch" : "swatch line", made).style.background = color || "";
        element("span", "", made).textContent = name;
      };
      if (rows.some((row) => row.kind === "device")) key("exposed", "A copy or communication under no kernel");
      for (const paint of [...used].filter((each) => each >= meta.hideable && each < meta.first_set).sort((a, b) => a - b)) {
        const { name } = paints[paint];
        if (name === "wait") key("waiting call", "A CUDA call that waits for the GPU", colorsOf(paint)[0]);
        else if (IDLE[name]) key(name, `Nothing ran: the next operation waited for ${IDLE[name]}`, colorsOf(paint)[0]);
      }
    }

    // Data

    function request() {
      const above = scroller.scrollTop - 200, below = scroller.scrollTop + scroller.clientHeight + 200;
      const numbers = shown.filter(({ number, y, height }) => rows[number].paints.length && y + height > above && y < below).map((row) => row.number);
      const wide = state.high - state.low;
      return { low: Math.floor(state.low - wide / 2), high: Math.ceil(state.high + wide / 2), pixels: 2 * Math.ceil(width()), rows: numbers, find: state.find };
    }

    function suffices() {
      if (!data) return false;
      if (source.whole) return true;
      const { made } = data, wanted = request();
      return made.find === state.find && data.low_ns <= state.low && data.high_ns >= state.high &&
        Math.abs((wanted.high - wanted.low) / (made.high - made.low) - 1) < 0.01 && made.pixels >= wanted.pixels &&
        wanted.rows.every((number) => made.rows.includes(number));
    }

    function load() {
      if (suffices()) return;
      if (asked) { next = true; return; }
      asked = request();
      const made = asked;
      source.view(made).then((reply) => {
        data = decode(reply, (number) => rows[number].kind);
        data.made = made;
        fail("");
      }, (error) => { fail(error.message || "no answer"); if (data) data.made.find = made.find; }).then(() => {
        asked = null;
        draw();
        if (next) { next = false; load(); }
      });
    }

    // Drawing

    function fit_canvas() {
      const ratio = window.devicePixelRatio || 1;
      across = Math.max(50, scroller.clientWidth - labels.offsetWidth);
      const size = (made, w, h) => {
        if (made.width !== Math.round(w * ratio) || made.height !== Math.round(h * ratio)) {
          made.width = Math.round(w * ratio);
          made.height = Math.round(h * ratio);
          made.style.width = `${w}px`;
          made.style.height = `${h}px`;
        }
      };
      size(ruler, width(), RULER);
      size(canvas, width(), Math.max(10, scroller.clientHeight));
      draw();
      load();
    }

    // All but the pointer is kept on a canvas of its own, so that a moving mouse costs nothing.
    function draw() {
      stale = true;
      refresh();
    }

    function refresh() {
      if (drawing) return;
      drawing = true;
      requestAnimationFrame(() => {
        drawing = false;
        const began = performance.now();
        const ratio = window.devicePixelRatio || 1, painted = stale;
        if (stale) {
          stale = false;
          const above = ruler.getContext("2d"), below = scene.getContext("2d");
          if (scene.width !== canvas.width || scene.height !== canvas.height) { scene.width = canvas.width; scene.height = canvas.height; }
          for (const [pen, high] of [[above, RULER], [below, scroller.clientHeight]]) {
            pen.setTransform(ratio, 0, 0, ratio, 0, 0);
            pen.clearRect(0, 0, width(), high);
          }
          paintRuler(canvasPainter(above), 0, 0);
          paintRows(canvasPainter(below), 0, -scroller.scrollTop, scroller.clientHeight);
        }
        const context = canvas.getContext("2d");
        context.setTransform(1, 0, 0, 1, 0, 0);
        context.clearRect(0, 0, canvas.width, canvas.height);
        context.drawImage(scene, 0, 0);
        context.setTransform(ratio, 0, 0, ratio, 0, 0);
        if (pointer) paintPointer(canvasPainter(context));
        if (painted) api.paint_ms = performance.now() - began;
      });
    }

    function paintRuler(painter, x0, y0) {
      for (const [t, text] of ticks(state.low, state.high, width() / 130)) {
        const x = x0 + xOf(t);
        painter.rects([x, y0 + RULER - 6, 1, 6], [colors.muted]);
        if (x + 4 + text.length * CHARACTER < x0 + width()) painter.text(x + 4, y0 + 12, text, colors.muted);
      }
      if (state.brush) {
        const [a, b] = state.brush.map((t) => Math.min(width(), Math.max(0, xOf(t))));
        painter.rects([x0 + a, y0 + RULER - 8, Math.max(2, b - a), 8], [colors.accent], 0.5);
        painter.text(x0 + (a + b) / 2, y0 + 12, formatNs(state.brush[1] - state.brush[0]), colors.accent, "center", true);
      }
    }

    function paintRows(painter, x0, y0, height) {
      painter.clip(x0, Math.max(0, y0), width(), height, () => {
        for (const [t] of ticks(state.low, state.high, width() / 130)) painter.rects([x0 + xOf(t), 0, 1, y0 + Math.max(height, total)], [colors.line]);
        const visible = shown.filter((row) => y0 + row.y + row.height > 0 && row.y + y0 < y0 + scroller.scrollTop + height + total);
        for (const row of visible) {
          if (rows[row.number].kind === "device") painter.rects([x0, y0 + row.y, width(), 1], [colors.line]);
          if (rows[row.number].kind === "group") painter.rects([x0, y0 + row.y + row.height - 1, width(), 1], [colors.line]);
        }
        const paint = (reply) => {
          const drawn = visible.filter(({ number }) => reply.rows[number]).map((row) => ({ row, y: y0 + row.y, reply, found: reply.rows[row.number], under: [] }));
          for (const each of drawn) paintColumns(painter, each, x0);
          painter.flush();
          for (const each of drawn) paintMarks(painter, each, x0);
        };
        if (data && data.rest) painter.pale(() => paint(data.rest));
        if (data) paint(data);
        if (state.brush) {
          const [a, b] = state.brush.map(xOf);
          painter.rects([x0, 0, Math.max(0, a), y0 + total, x0 + b, 0, Math.max(0, width() - b), y0 + total], [colors.surface], 0.55);
          painter.rects([x0 + a, 0, 1, y0 + total, x0 + b, 0, 1, y0 + total], [colors.accent]);
        }
        paintPicked(painter, x0, y0);
      });
    }

    const hiddenPaint = (paint) => {
      if (state.hidden.has(paint)) return true;
      const { classes } = paints[paint];
      if (paint < meta.first_set) return false;
      if (classes.every((name) => meta.hosts.includes(name))) return true;  // nothing ran on the GPU
      return classes.every((name) => state.hidden.has(paints.findIndex((each) => each.name === name)));
    };

    const inset = (kind) => (kind === "device" ? 4 : 2);
    const exposed = (kind, paint) => kind === "device" && EXPOSED.some((name) => paints[paint].classes.includes(name)) && !COMPUTE.some((name) => paints[paint].classes.includes(name));

    // A report that has all marks of a row, and so no columns of it, shows many narrow ones as the
    // server does: by their share of each column.
    function sharesOfMarks(found) {
      const seen = (start, length) => start <= state.high && start + length >= state.low;
      const marks = source.whole && !found.columns.length ? found.marks.filter(([paint]) => !hiddenPaint(paint)) : [];
      let count = 0;
      for (const [, starts, lengths] of marks) starts.forEach((start, i) => { count += seen(start, lengths[i]); });
      found.crowded = count > NEAR;
      if (!found.crowded) return [];
      const wide = Math.floor(width()), wanted = sought.names.hits;
      return marks.map(([paint, starts, lengths, , name]) => {
        const shares = new Float32Array(wide);
        starts.forEach((start, i) => {
          if (!seen(start, lengths[i]) || lengths[i] * scale() >= NARROW || (wanted && paint < meta.first_set && !wanted[name[i]])) return;
          const left = Math.max(0, xOf(start)), right = Math.min(wide, xOf(start + lengths[i]));
          for (let x = Math.floor(left); x < Math.min(wide, Math.max(right, left + 1e-6)); x++) shares[x] = Math.min(1, shares[x] + Math.max(1e-6, Math.min(right, x + 1) - Math.max(left, x)));
        });
        return [paint, shares];
      });
    }

    function paintColumns(painter, { row: { number, height }, y, reply, found, under }, x0) {
      const { kind } = rows[number], tall = height - 2 * inset(kind);
      const columns = found.columns.filter(([paint]) => !hiddenPaint(paint)).concat(sharesOfMarks(found));
      if (!columns.length) return;
      // The more runs together, the lower it lies.
      if (kind === "device") columns.sort(([a], [b]) => paints[b].classes.length - paints[a].classes.length || a - b);
      const wide = Math.floor(width());
      const at = (sums, t) => {
        const count = sums.length - 1;
        const place = Math.min(count, Math.max(0, (t - reply.low_ns) / reply.column_ns)), whole = Math.floor(place);
        return sums[whole] + (whole < count ? (place - whole) * (sums[whole + 1] - sums[whole]) : 0);
      };
      const sum = new Float32Array(wide), alone = new Float32Array(wide), foot = new Float32Array(wide).fill(tall);
      const size = 1 / scale() / reply.column_ns;
      const heights = columns.map(([paint, known]) => {
        const shares = new Float32Array(wide), bare = exposed(kind, paint), counted = known instanceof Float32Array;
        let before = counted ? 0 : at(known, state.low);
        for (let x = 0; x < wide; x++) {
          const now = counted ? 0 : at(known, timeAt(x + 1)), share = counted ? known[x] : (now - before) / size;
          before = now;
          if (share <= 1e-9) continue;
          shares[x] = share;
          sum[x] += share;
          if (bare) alone[x] += share;
        }
        return shares;
      });
      // At least 2 px, so that what ran is seen; at most the row.
      const feet = heights.map((high) => {
        const below = foot.slice();
        for (let x = 0; x < wide; x++) {
          if (!high[x]) continue;
          high[x] *= tall * Math.max(Math.min(1, 1 / sum[x]), Math.min(1, 2 / tall / sum[x]));
          foot[x] -= high[x];
        }
        return below;
      });
      for (let x = 0; x < wide; x++) {
        if (alone[x] <= 0.02 || alone[x] <= 0.5 * sum[x]) continue;
        const last = under.length - 4;
        if (last >= 0 && under[last] + under[last + 2] === x0 + x) under[last + 2]++;
        else under.push(x0 + x, y + height - 3, 1, 2.5);
      }
      painter.stacks(x0, y + inset(kind), tall, feet, heights, columns.map(([paint]) => colorsOf(paint)));
    }

    function paintMarks(painter, { row: { number, height }, y, reply, found, under }, x0) {
      const { kind } = rows[number], top = y + inset(kind), tall = height - 2 * inset(kind);
      const names = [], edges = [], wanted = source.whole ? sought.names.hits : null;
      found.marks.forEach(([paint, starts, lengths, , name], part) => {
        if (hiddenPaint(paint)) return;
        const list = [], pale = [];
        for (let i = 0; i < starts.length; i++) {
          if (starts[i] > state.high || starts[i] + lengths[i] < state.low) continue;
          const left = Math.max(-2, xOf(starts[i])), right = Math.min(width() + 2, xOf(starts[i] + lengths[i]));
          const wide = Math.max(1, right - left);
          if (found.crowded && lengths[i] * scale() < NARROW) continue; // among the columns
          const dim = wanted && paint < meta.first_set && !wanted[name[i]];
          const [lane, count] = found.lanes ? found.lanes[part][i] : [0, 1], high = tall / count, begin = top + lane * high;
          (dim ? pale : list).push(x0 + left, begin, wide, count > 1 ? Math.max(0.5, high - 0.5) : high);
          if (exposed(kind, paint)) under.push(x0 + left, y + height - 3, wide, 2.5);
          if (wide > 3) edges.push(x0 + right - 1, begin, 1, high);
          const room = Math.floor((wide - Math.max(0, -left) - 8) / CHARACTER);
          if (room >= 3 && high >= 11 && kind !== "device" || room >= 12) {
            const text = reply.names[name[i]];
            names.push([x0 + Math.max(0, left) + 4, begin + high / 2, text.length > room ? `${text.slice(0, room - 1)}…` : text, paint]);
          }
        }
        painter.rects(list, colorsOf(paint));
        if (pale.length) painter.pale(() => painter.rects(pale, colorsOf(paint)));
      });
      painter.rects(edges, [colors.surface], 0.8);
      painter.rects(under, [colors.bad]);
      for (const [x, middle, text, paint] of names) {
        const mixed = colorsOf(paint).length > 1;
        if (mixed) painter.rects([x - 3, middle - 7, text.length * CHARACTER + 6, 14], [colors.surface], 0.86);
        painter.text(x, middle, text, mixed ? colors.text : kind === "range" || kind === "nvtx" || kind === "idle" ? colors.text : paints[paint].ink[theme]);
      }
    }

    const rowOf = (number) => shown.find((row) => row.number === number);

    function paintPicked(painter, x0, y0) {
      const { picked } = state;
      if (!picked || picked.start === undefined) return;
      const row = rowOf(picked.row);
      if (!row) return;
      const left = xOf(picked.start), wide = Math.max(3, xOf(picked.end) - left), y = y0 + row.y;
      painter.path([x0 + left, y + 1, x0 + left + wide, y + 1, x0 + left + wide, y + row.height - 1, x0 + left, y + row.height - 1, x0 + left, y + 1], colors.text, 2);
      for (const arrow of arrows) {
        const other = rowOf(arrow.row);
        if (!other) continue;
        const from = [x0 + xOf(arrow.at), y0 + other.y + other.height / 2], to = [x0 + left, y + row.height / 2];
        const bend = Math.max(24, Math.abs(to[0] - from[0]) / 3);
        const color = arrow.decisive ? colors.bad : colors.text;
        painter.path([...from, from[0] + bend, from[1], to[0] - bend, to[1], ...to], color, arrow.decisive ? 2 : 1.2, arrow.kind === "launch" ? [] : [4, 3]);
        painter.path([to[0] - 6, to[1] - 4, to[0], to[1], to[0] - 6, to[1] + 4], color, 1.5);
        painter.rects([from[0] - 2.5, from[1] - 2.5, 5, 5], [color]);
      }
    }

    function paintPointer(painter) {
      painter.rects([pointer.x, 0, 1, scroller.clientHeight], [colors.muted], 0.6);
      const text = formatAt(timeAt(pointer.x), (state.high - state.low) / 100);
      const right = pointer.x > width() - 120;
      painter.text(pointer.x + (right ? -5 : 5), scroller.clientHeight - 8, text, colors.muted, right ? "right" : "left");
    }

    // What lies at a place

    function markAt(x, y) {
      const row = shown.find((each) => y >= each.y && y < each.y + each.height);
      const found = row && data && data.rows[row.number];
      if (!found) return null;
      const t = timeAt(x), slack = 2 / scale();
      let best = null;
      const level = (y - row.y - inset("engine")) / (row.height - 2 * inset("engine"));
      found.marks.forEach(([paint, starts, lengths, items, names], part) => {
        if (hiddenPaint(paint)) return;
        for (let i = 0; i < starts.length; i++) {
          const [lane, count] = found.lanes ? found.lanes[part][i] : [0, 1];
          if (count > 1 && Math.floor(level * count) !== lane) continue;
          const off = Math.max(starts[i] - t, t - starts[i] - lengths[i], 0);
          if (off <= slack && (!best || off < best.off || (off === best.off && lengths[i] < best.end - best.start))) {
            best = { off, row: row.number, item: items[i], paint, start: starts[i], end: starts[i] + lengths[i], name: data.names[names[i]] };
          }
        }
      });
      if (best) return best;
      const at = Math.floor((t - data.low_ns) / data.column_ns);
      const shares = found.columns.filter(([paint, sums]) => !hiddenPaint(paint) && at >= 0 && at + 1 < sums.length && sums[at + 1] > sums[at]).map(([paint, sums]) => [paints[paint].name, sums[at + 1] - sums[at]]);
      return shares.length ? { row: row.number, shares } : null;
    }

    let hovering = 0;
    function hover(event) {
      const mark = pointer && !drag ? markAt(pointer.x, pointer.y + scroller.scrollTop) : null;
      const count = ++hovering;
      if (!mark) { tip.style.display = "none"; return; }
      const write = (lines) => {
        if (count !== hovering) return;
        tip.replaceChildren();
        lines.forEach((line, at) => { element("div", at ? "" : "tl-first", tip).textContent = line; });
        tip.style.display = "block";
        const box = tip.getBoundingClientRect();
        tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - box.width - 8)}px`;
        tip.style.top = `${event.clientY + 18 + box.height > window.innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
      };
      if (mark.shares) {
        write(mark.shares.map(([name, share]) => `${name} ${(100 * share).toFixed(0)} %`).concat(`of ${formatNs(data.column_ns)} here; zoom in to see each`));
        return;
      }
      const word = paints[mark.paint].name;
      write([mark.name, `${word === mark.name ? "" : `${word} · `}${formatNs(mark.end - mark.start)} (${Math.round(mark.end - mark.start)} ns)`, `at ${formatNs(mark.start)}`]);
      if (hooks.hovered && mark.item >= 0) setTimeout(() => {
        if (count === hovering) hooks.hovered(mark).then((lines) => { if (lines.length) write(lines); }, () => {});
      }, 60);
    }

    // Moving

    const listeners = [];
    function changed() {
      for (const listener of listeners) listener(state);
    }

    // Show a stretch of time: that of a range if its number is given.
    function show(low, high, range = -1) {
      const widest = 2 * (fitHigh - fitLow), wide = Math.min(Math.max(high - low, MIN_WIDTH_NS), widest);
      const middle = (low + high) / 2;
      const begin = Math.min(Math.max(middle - wide / 2, fitLow - wide / 2), fitHigh - wide / 2);
      state.low = Math.round(begin);
      state.high = Math.round(begin + wide);
      state.range = range;
      draw();
      load();
      changed();
    }

    function zoom(factor, x) {
      const at = x === undefined ? width() / 2 : x, t = timeAt(at), wide = Math.max(MIN_WIDTH_NS, (state.high - state.low) * factor);
      show(t - (at / width()) * wide, t + (1 - at / width()) * wide);
    }

    function move(share) {
      const step = (state.high - state.low) * share;
      show(state.low + step, state.high + step);
    }

    function fit(number = state.range) {
      const range = meta.ranges && meta.ranges[number];
      if (range) show(range.low, range.high, number);
      else show(fitLow, fitHigh);
    }

    // Show where an item is, unless it is seen well already.
    function reveal(mark) {
      if (mark.start >= state.low && mark.end <= state.high && mark.end - mark.start >= (state.high - state.low) / 400) return;
      const size = Math.max(20 * (mark.end - mark.start), 1000);
      show((mark.start + mark.end - size) / 2, (mark.start + mark.end + size) / 2);
    }

    // Unfold what a row lies in, and scroll it into sight.
    function uncover(number) {
      let folded = false;
      for (let above = parentOf(number); above >= 0; above = parentOf(above)) folded = state.folded.delete(above) || folded;
      if (folded) arrange();
      const row = shown.find((each) => each.number === number), high = scroller.clientHeight;
      if (row && (row.y < scroller.scrollTop || row.y + row.height > scroller.scrollTop + high)) scroller.scrollTop = row.y - high / 3;
    }

    function pick(mark) {
      if (mark && hooks.touched) hooks.touched(mark.row);
      state.picked = mark;
      arrows = [];
      if (mark) uncover(mark.row);
      draw();
      changed();
      if (mark) said.textContent = `${mark.name}, ${formatNs(mark.end - mark.start)}`;
      if (hooks.picked) hooks.picked(mark);
    }

    const marksOf = (number) => (data.rows[number] ? data.rows[number].marks : []).flatMap(([paint, starts, lengths, items, names]) =>
      hiddenPaint(paint) ? [] : starts.map((start, i) => ({ row: number, item: items[i], paint, start, end: start + lengths[i], name: data.names[names[i]], known: names[i] })));

    // What a report draws of what is searched for, in the order of the page: a range where its work is, or on its thread.
    function soughtMarks() {
      const kinds = ["stream", "range", "nvtx", "thread", "mpi"], kind = (mark) => rows[mark.row].kind, id = (mark) => `${rows[mark.row].trace}.${mark.item}`;
      const found = rows.flatMap((row, number) => (kinds.includes(row.kind) ? marksOf(number).filter((mark) => sought.names.hits[mark.known]) : []));
      const onGpu = new Set(found.filter((mark) => kind(mark) === "range").map(id));
      return found.filter((mark) => kind(mark) !== "nvtx" || !onGpu.has(id(mark))).sort((a, b) => a.start - b.start || a.row - b.row || a.item - b.item);
    }

    // From one operation to the next in the row of the picked one, or the first row with any.
    function step(direction) {
      if (!data) return;
      const { picked } = state;
      if (source.whole && sought.names.hits) {
        const all = soughtMarks(), at = picked ? all.findIndex((mark) => mark.row === picked.row && mark.item === picked.item) : -1;
        const found = at >= 0 ? all[(at + direction + all.length) % all.length] : all.find((mark) => mark.start >= (picked || { start: state.low }).start) || all[0];
        if (!found) return;
        reveal(found);
        pick(found);
        return;
      }
      const numbers = picked ? [picked.row] : shown.filter(({ number }) => ["stream", "engine"].includes(rows[number].kind)).map((row) => row.number);
      for (const number of numbers) {
        const all = marksOf(number).sort((a, b) => a.start - b.start);
        const at = picked ? all.findIndex((mark) => mark.item === picked.item) : -1;
        const found = picked ? all[at + direction] : all.find((mark) => mark.start >= state.low);
        if (!found) continue;
        if (found.start < state.low || found.end > state.high) {
          const wide = Math.max(state.high - state.low, 1.2 * (found.end - found.start));
          show(found.start - wide / 3, found.start + (2 * wide) / 3);
        }
        pick(found);
        return;
      }
    }

    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      // Fingers that pinch come as a wheel with Ctrl, in steps a tenth of a wheel's.
      const [by, most] = event.ctrlKey ? [10 * event.deltaY, 120] : [event.deltaY, 400];
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move((event.deltaX || event.deltaY) / 1000);
      else zoom(Math.exp(Math.max(-most, Math.min(most, by)) / 500), event.offsetX);
    }, { passive: false });
    const brushing = (event) => event.shiftKey || event.target === ruler;
    for (const place of [canvas, ruler]) {
      place.addEventListener("pointerdown", (event) => {
        if (event.button) return;
        place.setPointerCapture(event.pointerId);
        drag = { x: event.offsetX, y: event.clientY, low: state.low, high: state.high, top: scroller.scrollTop, brush: brushing(event) ? timeAt(event.offsetX) : null, moved: false };
      });
      place.addEventListener("pointermove", (event) => {
        pointer = place === canvas ? { x: event.offsetX, y: event.offsetY } : { x: event.offsetX, y: -1 };
        if (drag && (drag.moved || Math.abs(event.offsetX - drag.x) + Math.abs(event.clientY - drag.y) > 3)) {
          drag.moved = true;
          if (drag.brush !== null) {
            const other = timeAt(event.offsetX);
            state.brush = [Math.round(Math.min(drag.brush, other)), Math.round(Math.max(drag.brush, other))];
            draw();
            changed();
          } else {
            scroller.scrollTop = drag.top - (event.clientY - drag.y);
            const moved = ((drag.x - event.offsetX) / width()) * (drag.high - drag.low);
            show(drag.low + moved, drag.high + moved);
          }
        }
        refresh();
        hover(event);
      });
      place.addEventListener("pointerup", (event) => {
        if (drag && !drag.moved) {
          if (drag.brush !== null) { state.brush = null; changed(); }
          else if (place === canvas) {
            const mark = markAt(event.offsetX, event.offsetY + scroller.scrollTop);
            if (mark && mark.shares) zoom(0.2, event.offsetX);
            else if (mark && mark.item < 0) {
              if (hooks.touched) hooks.touched(mark.row);
              state.brush = [mark.start, mark.end];
              changed();
            }
            else pick(mark);
          }
        }
        drag = null;
        draw();
      });
      place.addEventListener("pointerleave", () => { pointer = null; hovering++; tip.style.display = "none"; refresh(); });
    }
    canvas.addEventListener("dblclick", () => api.fit());
    scroller.addEventListener("scroll", () => { draw(); load(); });
    new ResizeObserver(() => arrange()).observe(root);

    // Pictures

    function picture(painter) {
      const legendUsed = [...new Set(shown.flatMap(({ number }) => rows[number].paints))].filter((paint) => paint < meta.hideable);
      painter.rects([0, 0, GUTTER + width(), 30 + RULER + total], [colors.surface]);
      let x = GUTTER;
      for (const paint of legendUsed) {
        painter.rects([x, 9, 12, 12], colorsOf(paint));
        painter.text(x + 17, 15, paints[paint].name, colors.text);
        x += 34 + CHARACTER * paints[paint].name.length;
      }
      paintRuler(painter, GUTTER, 30);
      for (const { number, y, height } of shown) {
        painter.text(8 + 13 * rows[number].level, 30 + RULER + y + height / 2, rows[number].label, colors.text, "left", rows[number].kind === "device");
      }
      const kept = scroller.scrollTop;
      paintRows(painter, GUTTER, 30 + RULER, total);
      scroller.scrollTop = kept;
    }

    function svg() {
      const painter = svgPainter(GUTTER + width(), 30 + RULER + total);
      picture(painter);
      return painter.done();
    }

    function png() {
      const made = document.createElement("canvas");
      made.width = 2 * (GUTTER + width());
      made.height = 2 * (30 + RULER + total);
      const context = made.getContext("2d");
      context.scale(2, 2);
      picture(canvasPainter(context));
      return new Promise((resolve) => made.toBlob(resolve, "image/png"));
    }

    const leaping = (go) => (...where) => { if (hooks.leap) hooks.leap(); go(...where); };
    const api = {
      // Tell who listens to the page.
      say(text) { said.textContent = text; },
      meta, show: leaping(show), reveal: leaping(reveal), see: reveal, fit: leaping(fit), zoom, move, pick, step, svg, png, paint_ms: 0,
      state: () => state,
      listen: (listener) => listeners.push(listener),
      set(values) {
        Object.assign(state, values);
        if (source.whole && data) seek("names", state.find, data.names, draw);
        fillLegend();
        arrange();
        changed();
      },
      arrows(list) { arrows = list; draw(); },
      idle: () => !asked && !next && !drawing && suffices(),
      drawn: () => data,
      theme(name) {
        theme = name;
        const style = getComputedStyle(document.documentElement);
        for (const each of ["text", "muted", "line", "surface", "accent", "bad"]) colors[each] = style.getPropertyValue(`--${each}`).trim();
        fillLegend();
        draw();
      },
      // Where an item is drawn, for whoever wants to point at it: page coordinates.
      place(mark) {
        const row = rowOf(mark.row), box = canvas.getBoundingClientRect();
        return row && { x: box.left + Math.max(2, xOf((mark.start + mark.end) / 2)), y: box.top + row.y - scroller.scrollTop + row.height / 2 };
      },
    };
    api.theme(document.documentElement.dataset.theme || "light");
    arrange();
    return api;
  }

  window.gpuscope.timeline = timeline;
})();
