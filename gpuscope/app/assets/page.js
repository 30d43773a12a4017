// The page: connects the timeline with the server, Dash's figures, the tables and the address.
(function () {
  "use strict";

  const { element, ARROWS } = window.gpuscope;
  const byId = (name) => document.getElementById(name);

  async function ask(path, values) {
    const answer = await fetch(`${path}?${new URLSearchParams(values)}`).catch(() => ({}));
    if (!answer.ok) throw new Error(answer.status === 400 ? "That cannot be asked for." : "gpuscope does not answer: is it still running?");
    return answer.json();
  }

  // The address: all of the state, times in ns from the first operation.

  function write(api, device) {
    const state = api.state(), query = new URLSearchParams({ from: state.low, to: state.high });
    const { rows, paints, ranges } = api.meta;
    if (state.range >= 0) query.set("range", ranges[state.range].name.length <= 100 ? ranges[state.range].name : `#${state.range}`);
    if (state.brush) query.set("select", state.brush.join("-"));
    if (state.picked) query.set("op", `${state.picked.row}.${state.picked.item}`);
    if (state.find) query.set("find", state.find);
    if (state.rows) query.set("rows", state.rows);
    if (state.hidden.size) query.set("hide", [...state.hidden].map((paint) => paints[paint].name).join());
    const folds = rows.map((row, number) => number).filter((number) => state.folded.has(number) === rows[number].unfolded);
    if (folds.length) query.set("fold", folds.join());
    if (state.order.some((number, at) => number !== at)) query.set("order", state.order.join());
    if (device) query.set("device", device);
    query.set("theme", document.documentElement.dataset.theme);
    history.replaceState(null, "", `?${query}`);
  }

  function read(api) {
    const query = new URLSearchParams(location.search), { rows, paints, ranges } = api.meta;
    const numbers = (name, mark) => (query.get(name) || "").split(mark).filter(Boolean).map(Number).filter(Number.isInteger);
    const folded = new Set(api.state().folded);
    for (const number of numbers("fold", ",")) if (number < rows.length && !folded.delete(number)) folded.add(number);
    const name = query.get("range") || "";
    const order = numbers("order", ",");
    const select = (query.get("select") || "").match(/^(-?\d+)-(-?\d+)$/);
    api.set({
      range: name.startsWith("#") ? Math.min(+name.slice(1) || 0, ranges.length - 1) : ranges.findIndex((range) => range.name === name),
      brush: select && +select[2] > +select[1] ? [+select[1], +select[2]] : null,
      find: query.get("find") || "", rows: query.get("rows") || "", folded,
      hidden: new Set((query.get("hide") || "").split(",").map((each) => paints.findIndex((paint) => paint.name === each)).filter((at) => at >= 0 && at < api.meta.hideable)),
      order: new Set(order).size === rows.length && order.every((number) => number in rows) ? order : api.state().order,
    });
    const [low] = numbers("from", " "), [high] = numbers("to", " ");
    if (high > low) {
      const range = ranges[api.state().range];
      api.show(low, high, Boolean(range) && range.low === low && range.high === high);
    } else {
      api.fit();
    }
    const [row, item] = (query.get("op") || "").split(".").map(Number);
    if (row in rows && item >= 0) pickItem(api, row, item);
  }

  // What is picked

  async function pickItem(api, row, item, mark) {
    const known = mark || (await ask("/item", { row, item }).then((facts) => facts.mark, () => null));
    if (known) api.pick({ row, item, ...known });
  }

  function fillDetails(api, mark) {
    const place = byId("details");
    place.replaceChildren();
    place.classList.toggle("open", Boolean(mark));
    if (!mark) return;
    ask("/item", { row: mark.row, item: mark.item }).then((facts) => {
      if (api.state().picked !== mark) return;
      api.arrows(facts.arrows);
      place.replaceChildren();
      const head = element("div", "details-head", place);
      element("h3", "", head).textContent = facts.title;
      const close = element("button", "icon", head, { type: "button", "aria-label": "Close", "data-act": "clear" });
      close.textContent = "×";
      if (facts.why) element("p", "why", place).textContent = facts.why;
      const list = element("dl", "", place);
      for (const [name, text] of facts.facts) {
        element("dt", "", list).textContent = name;
        element("dd", "", list).textContent = text;
      }
      for (const arrow of facts.arrows) {
        const button = element("button", arrow.decisive ? "link decisive" : "link", place, { type: "button" });
        element("span", "where", button).textContent = ARROWS[arrow.kind] || "launches";
        element("span", "", button).textContent = ` ${arrow.name}`;
        button.addEventListener("click", () => go(api, arrow));
      }
    }, () => {});
  }

  // Show an item and pick it.
  function go(api, mark) {
    const { low, high } = api.state(), wide = high - low;
    if (mark.start < low || mark.end > high || (mark.end - mark.start) < wide / 400) {
      const size = Math.max(20 * (mark.end - mark.start), 1000);
      api.show((mark.start + mark.end - size) / 2, (mark.start + mark.end + size) / 2);
    }
    api.pick(mark);
  }

  // Go to the next operation, or the one before, whose name is searched for.
  function find(api, direction) {
    const { picked, low, find: text } = api.state(), at = picked ? picked.start : low;
    const span = direction > 0 ? { low: at, high: api.meta.end_ns + 1 } : { low: -1, high: at };
    ask("/operations", { ...span, find: text, sort: "start", descending: direction > 0 ? 0 : 1 }).then(({ rows }) => {
      const other = (row) => !picked || row.row !== picked.row || row.item !== picked.item;
      const beyond = (row) => (direction > 0 ? row.start >= at : row.start <= at);
      const found = rows.find((row) => other(row) && beyond(row) && !(picked && row.start === at && (row.item - picked.item) * direction < 0));
      if (found) go(api, found);
    }, () => {});
  }

  // Tables

  function tables(api) {
    const order = { operations: ["start", 1], findings: [3, -1], ranges: [5, -1] };
    let open = "operations", count = 0, seen = false;
    const tabs = byId("tabs");
    for (const name of Object.keys(order)) {
      const tab = element("button", "tab", tabs, { type: "button", role: "tab", "aria-selected": "false", "aria-controls": "table" });
      tab.textContent = name;
      tab.addEventListener("click", () => { open = name; fill(); });
    }
    function draw(columns, rows, keys) {
      const [sorted, direction] = order[open];
      const place = byId("table"), table = element("table", "");
      const head = element("tr", "", element("thead", "", table));
      columns.forEach((name, at) => {
        const key = keys ? keys[at] : at;
        const cell = element("th", "", head, { scope: "col", "aria-sort": key === sorted ? (direction > 0 ? "ascending" : "descending") : "none" });
        const button = element("button", "", cell, { type: "button" });
        button.textContent = name + (key === sorted ? (direction > 0 ? " ▲" : " ▼") : "");
        button.addEventListener("click", () => { order[open] = [key, key === sorted ? -direction : 1]; fill(); });
      });
      const body = element("tbody", "", table), { picked } = api.state();
      for (const row of rows) {
        const line = element("tr", "", body, { tabindex: "0" });
        if (picked && row.item !== undefined && picked.row === row.row && picked.item === row.item) line.className = "picked";
        for (const text of row.cells) element("td", "", line, { title: text }).textContent = text;
        const use = () => {
          if (row.item !== undefined) go(api, row);
          else if (row.window) {
            if (row.range !== undefined && row.range !== null) api.state().range = row.range;
            api.show(...row.window, row.range !== undefined && row.range !== null);
          }
        };
        line.addEventListener("click", use);
        line.addEventListener("keydown", (event) => { if (event.key === "Enter") use(); });
      }
      place.replaceChildren(table);
      const chosen = place.querySelector(".picked");
      if (chosen) place.scrollTop = Math.max(0, chosen.offsetTop - place.clientHeight / 2);
    }
    // What nobody sees is not filled.
    new IntersectionObserver(([entry]) => { seen = entry.isIntersecting; fill(); }).observe(byId("table"));
    function fill() {
      if (!seen) return;
      const mine = ++count, state = api.state(), [sorted, direction] = order[open];
      for (const tab of tabs.children) tab.setAttribute("aria-selected", String(tab.textContent === open));
      if (open !== "operations") {
        const { columns, rows } = api.meta.tables[open];
        const found = state.find ? new RegExp(state.find, "i") : null;
        const kept = rows.filter((row) => !found || row.cells.some((text) => found.test(text)));
        kept.sort((a, b) => direction * (a.keys[sorted] < b.keys[sorted] ? -1 : a.keys[sorted] > b.keys[sorted] ? 1 : 0));
        byId("table-count").textContent = `${kept.length} ${open}`;
        draw(columns, kept);
        return;
      }
      const [low, high] = state.brush || [state.low, state.high];
      ask("/operations", { low, high, find: state.find, sort: sorted, descending: direction < 0 ? 1 : 0 }).then((answer) => {
        if (mine !== count) return;
        const more = answer.total > answer.rows.length ? `, the first ${answer.rows.length} shown` : "";
        byId("table-count").textContent = `${answer.total.toLocaleString("en-US")} operations in ${state.brush ? "the selection" : "view"}${more}`;
        draw(api.meta.columns, answer.rows, api.meta.columns);
      }, () => {});
    }
    return fill;
  }

  function start(meta) {
    const source = { view: ({ low, high, pixels, rows, find }) => ask("/view", { low, high, pixels, rows: rows.join(), find }) };
    let device = +(new URLSearchParams(location.search).get("device") || 0), fill = null, waiting = 0, late = 0;
    const tell = (state) => {
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        write(api, device);
        window.dash_clientside.set_props("view", { data: { low: state.low, high: state.high, range: state.range, brush: state.brush, device, theme: document.documentElement.dataset.theme } });
      }, 120);
      clearTimeout(late);
      late = setTimeout(() => { if (fill) fill(); }, 250);
    };
    const api = window.gpuscope.timeline(byId("timeline"), meta, source, {
      picked: (mark) => fillDetails(api, mark),
      hovered: ({ row, item }) => ask("/item", { row, item }).then(({ title, facts, why }) => [title, ...facts.map(([name, text]) => `${name}: ${text}`), ...(why ? [why] : [])]),
    });
    window.gpuscope.page = api;
    api.listen(tell);
    window.gpuscope.connect(api, {
      csv: () => {
        const { low, high, brush, find } = api.state();
        const [from, to] = brush || [low, high];
        location.assign(`/operations.csv?${new URLSearchParams({ low: from, high: to, find })}`);
      },
      // Beyond what is loaded, the server knows what comes next of the names that are searched for.
      next: () => (api.state().find ? find(api, 1) : api.step(1)),
      previous: () => (api.state().find ? find(api, -1) : api.step(-1)),
      link: () => { write(api, device); return navigator.clipboard.writeText(location.href); },
    });
    fill = tables(api);
    read(api);
    byId("device").value = String(device);
    byId("device").addEventListener("change", (event) => { device = +event.target.value; tell(api.state()); });
    document.addEventListener("click", (event) => {
      if (!event.target.closest) return;
      const evidence = event.target.closest("[data-op]");
      if (evidence) pickItem(api, ...evidence.dataset.op.split(".").map(Number));
      const card = event.target.closest("[data-device]");
      if (card) { device = +card.dataset.device; byId("device").value = String(device); tell(api.state()); }
    });
    fill();
  }

  const waiting = setInterval(() => {
    const empty = document.querySelector(".panel.empty");
    if (!byId("timeline") && !empty) return;
    clearInterval(waiting);
    if (empty) window.gpuscope.connect(null, {});
    else ask("/describe", {}).then(start);
  }, 30);
})();
