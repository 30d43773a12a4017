// The report: what the page asks the server for, from what the file holds.
(function () {
  "use strict";

  const { timeline, connect, showDetails, formatNs } = window.gpuscope;
  const report = JSON.parse(document.getElementById("data").textContent);
  const { meta, view, told, sums } = report;
  const place = document.getElementById("timeline");
  const formatRatio = (ratio) => (ratio === null ? "–" : `${(100 * ratio).toFixed(1)} %`);

  // Operations

  const places = new Map(); // of the operations that are drawn by themselves, by trace and number
  const calls = new Map();
  for (const [row, { marks }] of Object.entries(view.rows)) {
    const { kind, trace } = meta.rows[row], known = { stream: places, thread: calls }[kind];
    if (known) marks.forEach(([, , , items], part) => items.forEach((item, at) => known.set(`${trace}.${item}`, [+row, part, at])));
  }

  function markAt([row, part, at]) {
    const [paint, starts, lengths, items, names] = view.rows[row].marks[part];
    return { row, paint, item: items[at], start: starts[at], end: starts[at] + lengths[at], name: view.names[names[at]] };
  }

  const capital = (text) => text[0].toUpperCase() + text.slice(1);

  function details(mark) {
    const { kind, trace, label } = meta.rows[mark.row], length = mark.end - mark.start;
    const facts = [["class", meta.paints[mark.paint].name], ["duration", `${formatNs(length)} (${length.toLocaleString("en-US")} ns)`], ["start", `at ${(mark.start / 1e6).toFixed(6)} ms`]];
    const found = { title: mark.name, facts, why: "", arrows: [] };
    const spot = ["stream", "engine", "idle"].includes(kind) ? places.get(`${trace}.${mark.item}`) : undefined;
    if (!spot) {
      facts.push([kind === "thread" || kind === "mpi" ? "thread" : "row", label || kind]);
      return found;
    }
    const [row, part, at] = spot;
    const [reason, since, cost, before, call, size] = told[row][part].map((column) => column[at]);
    facts.push(["stream", meta.rows[row].label]);
    if (size) facts.push(["size", `${(size / 1e6).toFixed(1)} MB${length ? ` · ${(size / length).toFixed(1)} GB/s` : ""}`]);
    const [type, sentence] = report.sentences[reason];
    found.why = `${capital(sentence.replace("{since}", formatNs(since)))}${cost > 0 && type !== "unknown" ? report.cost.replace("{cost}", formatNs(cost)) : ""}.`;
    const launch = calls.get(`${trace}.${call}`), other = places.get(`${trace}.${before}`);
    const from = (spot) => ({ ...markAt(spot), decisive: type === "host" });
    if (launch) found.arrows.push({ ...from(launch), kind: "launch", at: from(launch).start });
    if (other) found.arrows.push({ ...from(other), kind: type, at: from(other).end, decisive: true });
    return found;
  }

  // Figures of a stretch

  // The time of each set of classes between two times: from the marks, or in whole steps.
  function stretch(band, low, high) {
    const steps = sums[band], sets = new Map();
    let from = Infinity, to = -Infinity;
    const add = (paint, time) => sets.set(paint, (sets.get(paint) || 0) + time);
    if (steps) {
      const { low_ns, step_ns } = steps, lists = Object.entries(steps.sets);
      const count = lists.length ? lists[0][1].length : 0;
      const first = Math.max(0, Math.floor((low - low_ns) / step_ns)), last = Math.min(count, Math.ceil((high - low_ns) / step_ns));
      for (const [paint, times] of lists) {
        for (let at = first; at < last; at++) {
          if (!times[at]) continue;
          add(+paint, times[at]);
          from = Math.min(from, low_ns + at * step_ns);
          to = Math.max(to, low_ns + (at + 1) * step_ns);
        }
      }
      return { from, to, sets };
    }
    const busy = (paint) => meta.paints[paint].classes.some((name) => !meta.hosts.includes(name));
    for (const [paint, starts, lengths] of view.rows[band].marks) {
      starts.forEach((start, at) => {
        const begin = Math.max(low, start), end = Math.min(high, start + lengths[at]);
        if (end <= begin) return;
        add(paint, end - begin);
        if (!busy(paint)) return;
        from = Math.min(from, begin);
        to = Math.max(to, end);
      });
    }
    return { from, to, sets };
  }

  function figures(band, low, high) {
    const { from, to, sets } = stretch(band, low, high);
    if (to <= from) return null;
    const busy = {}, overlap = {}, parts = {};
    let work = 0;
    for (const [paint, time] of sets) {
      const { classes } = meta.paints[paint], engines = classes.filter((name) => !meta.hosts.includes(name));
      for (const a of classes) {
        busy[a] = (busy[a] || 0) + time;
        for (const b of classes) overlap[`${a} ∩ ${b}`] = (overlap[`${a} ∩ ${b}`] || 0) + time;
      }
      if (!engines.length) continue;
      parts[engines.join(" ")] = (parts[engines.join(" ")] || 0) + time;
      work += time;
    }
    parts.idle = to - from - work;
    return { from, to, busy, overlap, parts };
  }

  // The figures of a panel in the same form as those of the whole trace, which it has at first.
  function write(panel, whole, found) {
    const made = whole.cloneNode(true), span = found.to - found.from, { idle } = found.parts;
    made.querySelector(".sums").textContent = `span ${formatNs(span)} · busy ${formatNs(span - idle)} · idle ${formatNs(idle)}`;
    for (const piece of made.querySelectorAll(".partition [data-set]")) {
      const time = found.parts[piece.dataset.set] || 0, name = piece.dataset.set.split(" ").join(" + ");
      piece.style.width = `${(100 * time) / span}%`;
      piece.title = `${name}: ${formatNs(time)}, ${formatRatio(time / span)} of the span`;
      const label = piece.querySelector(".label"), text = `${name} ${((100 * time) / span).toFixed(0)} %`;
      if (label) label.textContent = time / span > 0.0125 * text.length ? text : "";
    }
    let listed = 0;
    for (const line of made.querySelectorAll(".parts [data-set]")) {
      const time = found.parts[line.dataset.set] || 0;
      line.style.display = time ? "" : "none";
      listed += time;
      line.lastChild.textContent = `${formatRatio(time / span)} · ${formatNs(time)}`;
    }
    const rest = made.querySelector(".parts li:not([data-set])");
    if (rest) rest.textContent = `and smaller parts, ${formatRatio((span - listed) / span)}`;
    for (const cell of made.querySelectorAll(".matrix td")) {
      const [a, b] = cell.title.split(" ∩ "), least = Math.min(found.busy[a] || 0, found.busy[b] || 0);
      const time = found.overlap[cell.title] || 0, ratio = a === b || !least ? null : time / least;
      cell.querySelector("b").textContent = a === b ? formatNs(found.busy[a] || 0) : formatRatio(ratio);
      cell.querySelector("span").textContent = a === b ? "busy" : ratio === null ? "" : formatNs(time);
      cell.style.background = `color-mix(in srgb, var(--accent) ${60 * (ratio || 0)}%, transparent)`;
    }
    panel.querySelector(".figures").replaceWith(made);
  }

  function follow(panel) {
    const { band } = panel.dataset, whole = panel.querySelector(".figures").cloneNode(true), title = panel.querySelector(".scope-title");
    return ({ low, high, brush, range }) => {
      const template = range >= 0 && !brush ? document.querySelector(`template[data-scope="${band}.${range}"]`) : null;
      if (template) {
        const made = whole.cloneNode(false);
        made.append(template.content.cloneNode(true));
        panel.querySelector(".figures").replaceWith(made);
        title.textContent = template.dataset.title;
        return;
      }
      if (!brush && low <= 0 && high >= meta.end_ns) {
        panel.querySelector(".figures").replaceWith(whole.cloneNode(true));
        title.textContent = "whole trace";
        return;
      }
      const found = figures(band, ...(brush || [low, high])), what = brush ? "selection" : "visible window";
      title.textContent = !found ? `${what}: nothing ran here` : sums[band] ? `${what}, in steps of ${formatNs(sums[band].step_ns)}` : what;
      if (found) write(panel, whole, found);
    };
  }

  // The page

  const source = { whole: true, view: () => Promise.resolve(view) };
  const api = place && timeline(place, meta, source, {
    picked(mark) {
      const panel = document.getElementById("details");
      panel.replaceChildren();
      panel.classList.toggle("open", Boolean(mark));
      if (!mark || mark.item < 0) return;
      const facts = details(mark);
      api.arrows(facts.arrows);
      api.say(`${facts.title}, ${formatNs(mark.end - mark.start)}. ${facts.why}`);
      showDetails(panel, facts, (arrow) => { api.reveal(arrow); api.pick(arrow); });
    },
    hovered: (mark) => {
      const { title, facts, why } = details(mark);
      return Promise.resolve([title, ...facts.map(([name, text]) => `${name}: ${text}`), ...(why ? [why] : [])]);
    },
  });
  window.gpuscope.page = api;
  connect(api, {});
  if (!api) return;
  let waiting = 0;
  const followers = [...document.querySelectorAll("[data-band]")].map(follow);
  api.listen((state) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => followers.forEach((each) => each(state)), 60);
  });
  document.addEventListener("click", (event) => {
    const evidence = event.target.closest && event.target.closest("[data-op]");
    if (!evidence) return;
    const [row, item] = evidence.dataset.op.split(".").map(Number), spot = places.get(`${meta.rows[row].trace}.${item}`);
    if (spot) api.pick(markAt(spot));
  });
  api.fit();
})();
