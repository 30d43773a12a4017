// The page: connects the timeline with the server, Dash's figures, the tables and the address.
(function () {
  "use strict";

  const { element, findIn, formatNs, showDetails } = window.gpuscope;
  const byId = (name) => document.getElementById(name);

  async function ask(path, values) {
    const answer = await fetch(`${path}?${new URLSearchParams(values)}`).catch(() => ({}));
    if (answer.status === 400) throw new Error((await answer.text()).split("<")[0].trim() || "That cannot be asked for.");
    if (!answer.ok) throw new Error("gpuscope does not answer: is it still running?");
    return answer.json();
  }

  // Without https and away from localhost there is no clipboard.
  const copied = async (text) => navigator.clipboard.writeText(text);

  // The address: all of the state, times in ns from the first operation.

  // A leap has an entry of its own in the browser's history, so that Back leads to before it.
  function write(api, device, table, leap) {
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
    const [open, sorted, direction, filters] = table;
    if (open !== "operations" || sorted !== "start" || direction < 0 || filters !== "{}") query.set("table", [open, sorted, direction].join("."));
    if (filters !== "{}") query.set("where", filters);
    query.set("theme", document.documentElement.dataset.theme);
    if (`?${query}` === location.search) return;
    if (leap) history.pushState(null, "", `?${query}`);
    else history.replaceState(null, "", `?${query}`);
  }

  async function read(api) {
    const query = new URLSearchParams(location.search), { rows, paints, ranges } = api.meta;
    const numbers = (name, mark) => (query.get(name) || "").split(mark).filter(Boolean).map(Number).filter(Number.isInteger);
    const folded = new Set(rows.map((row, number) => number).filter((number) => !rows[number].unfolded));
    for (const number of numbers("fold", ",")) if (number < rows.length && !folded.delete(number)) folded.add(number);
    const name = query.get("range") || "";
    const order = numbers("order", ",");
    const select = (query.get("select") || "").match(/^(-?\d+)-(-?\d+)$/);
    api.set({
      range: name.startsWith("#") ? Math.min(+name.slice(1) || 0, ranges.length - 1) : ranges.findIndex((range) => range.name === name),
      brush: select && +select[2] > +select[1] ? [+select[1], +select[2]] : null,
      find: query.get("find") || "", rows: query.get("rows") || "", folded,
      hidden: new Set((query.get("hide") || "").split(",").map((each) => paints.findIndex((paint) => paint.name === each)).filter((at) => at >= 0 && at < api.meta.hideable)),
      order: new Set(order).size === rows.length && order.every((number) => number in rows) ? order : rows.map((row, number) => number),
    });
    const [low] = numbers("from", " "), [high] = numbers("to", " ");
    if (high > low) {
      const range = ranges[api.state().range];
      api.show(low, high, range && range.low === low && range.high === high ? api.state().range : -1);
    } else {
      api.fit();
    }
    const [row, item] = (query.get("op") || "").split(".").map(Number);
    if (row in rows && item >= 0) await pickItem(api, row, item);
    else if (api.state().picked) api.pick(null);
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
      api.say(`${facts.title}, ${formatNs(mark.end - mark.start)}. ${facts.why}`);
      showDetails(place, facts, (arrow) => go(api, arrow));
    }, () => {});
  }

  // Show an item and pick it.
  function go(api, mark) {
    api.reveal(mark);
    api.pick(mark);
  }

  // How many things are called what is searched for, and which of them is gone to.
  let asked = 0, going = false;
  function count(text, step) {
    const mine = ++asked, place = byId("find-count");
    if (!step) { going = false; place.textContent = ""; }
    if (!text) return Promise.resolve(null);
    return ask("/found", { find: text, ...step }).then(({ total, number, mark }) => {
      if (mine !== asked) return null;
      const all = total.toLocaleString("en-US");
      place.textContent = number ? `${number.toLocaleString("en-US")} of ${all}` : `${total ? all : "none"} found`;
      return mark;
    }, () => null);
  }

  // Go to the next thing, or the one before, whose name is searched for.
  function find(api, step) {
    const { picked, low, find: text } = api.state();
    count(text, { step, at: Math.round(picked ? picked.start : low), ...(picked ? { row: picked.row, item: picked.item } : {}) }).then((mark) => {
      if (!mark) return;
      // The first is a leap, from it on one goes step by step.
      (going ? api.see : api.reveal)(mark);
      going = true;
      api.pick(mark);
    });
  }

  // Tables

  const UNITS = {
    time: { ns: 1, us: 1e3, "µs": 1e3, "μs": 1e3, ms: 1e6, s: 1e9, "": 1e6 },
    size: { b: 1, kb: 1e3, mb: 1e6, gb: 1e9, "": 1e6 },
    rate: { "b/s": 1, "kb/s": 1e3, "mb/s": 1e6, "gb/s": 1e9, "": 1e9 },
    ratio: { "%": 0.01, "": 0.01 },
    count: { "": 1 },
  };
  const HINTS = { text: "contains", time: "> 1 ms", size: "> 1 MB", rate: "< 10 GB/s", ratio: "< 50 %", count: "> 1" };

  // What a person writes above a column: a sign and its value, or nothing where it means nothing.
  function condition(kind, text) {
    if (kind === "text") return ["has", text];
    const found = text.trim().match(/^(<=|>=|<|>|=)?\s*(\d+(?:\.\d+)?)\s*(\S*)$/);
    const unit = found && UNITS[kind][found[3].toLowerCase()];
    return unit === undefined || !found ? null : [found[1] || ">=", +(found[2] * unit).toPrecision(15)];
  }

  const MEETS = {
    has: (value, text) => String(value).toLowerCase().includes(text.toLowerCase()),
    "<": (a, b) => a < b, "<=": (a, b) => a <= b, "=": (a, b) => a === b, ">=": (a, b) => a >= b, ">": (a, b) => a > b,
  };

  function tables(api) {
    const order = { operations: ["start", 1], findings: [3, -1], ranges: [5, -1] };
    const filters = { operations: {}, findings: {}, ranges: {} };
    let open = "operations", drawn = "", count = 0, seen = false;
    const tabs = byId("tabs"), place = byId("table");
    place.setAttribute("role", "tabpanel");
    for (const name of Object.keys(order)) {
      const tab = element("button", "tab", tabs, { type: "button", role: "tab", id: `tab-${name}`, "aria-selected": "false", "aria-controls": "table", tabindex: "-1" });
      tab.textContent = name;
      tab.addEventListener("click", () => turn(name));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], names = Object.keys(order);
        if (!step) return;
        event.preventDefault();
        event.stopPropagation();
        turn(names[(names.indexOf(name) + step + names.length) % names.length]);
        byId(`tab-${open}`).focus();
      });
    }
    function turn(name) {
      open = name;
      fill();
      api.set({});
    }
    const shape = () => (open === "operations" ? api.meta.operations : api.meta.tables[open]);
    const keyOf = (at) => (open === "operations" ? api.meta.operations.columns[at] : at);

    // Heads and filters stay while rows come and go, so that whoever types is not disturbed.
    function drawHead() {
      const { columns, kinds } = shape(), table = element("table", "", null, { "aria-labelledby": `tab-${open}` });
      const top = element("thead", "", table), head = element("tr", "", top), wanted = element("tr", "filters", top);
      columns.forEach((name, at) => {
        const cell = element("th", "", head, { scope: "col" });
        const button = element("button", "", cell, { type: "button" });
        button.dataset.name = name;
        button.addEventListener("click", () => {
          const [sorted, direction] = order[open], key = keyOf(at);
          order[open] = [key, key === sorted ? -direction : 1];
          fill();
          api.set({});
        });
        const box = element("input", "box", element("td", "", wanted), { type: "text", placeholder: HINTS[kinds[at]], "aria-label": `Filter ${name}: ${HINTS[kinds[at]]}`, spellcheck: "false", autocomplete: "off" });
        box.value = filters[open][name] || "";
        let waiting = 0;
        const check = () => {
          const bad = Boolean(box.value) && !condition(kinds[at], box.value);
          box.setAttribute("aria-invalid", String(bad));
          return !bad;
        };
        check();
        box.addEventListener("input", () => {
          clearTimeout(waiting);
          if (!check()) return;
          filters[open][name] = box.value;
          waiting = setTimeout(() => { fill(); api.set({}); }, 200);
        });
      });
      element("tbody", "", table);
      place.replaceChildren(table);
      place.setAttribute("aria-labelledby", `tab-${open}`);
      drawn = open;
    }

    function draw(rows) {
      if (drawn !== open) drawHead();
      const [sorted, direction] = order[open], { picked, range, low, high } = api.state();
      place.querySelectorAll("thead th").forEach((cell, at) => {
        const mine = keyOf(at) === sorted, button = cell.firstChild;
        cell.setAttribute("aria-sort", mine ? (direction > 0 ? "ascending" : "descending") : "none");
        button.textContent = button.dataset.name + (mine ? (direction > 0 ? " ▲" : " ▼") : "");
      });
      const body = document.createDocumentFragment();
      for (const row of rows) {
        const line = element("tr", "", body, { tabindex: "-1" });
        const same = row.item !== undefined ? picked && picked.row === row.row && picked.item === row.item
          : row.range !== undefined ? row.range !== null && (row.range === range || Boolean(picked) && picked.name === row.cells[0]) : false;
        if (same) { line.className = "picked"; line.setAttribute("aria-current", "true"); }
        else if (row.window && row.window[0] < high && row.window[1] > low && open !== "operations") line.className = "in-view";
        for (const text of row.cells) element("td", "", line, { title: text }).textContent = text;
        const use = () => {
          if (row.item !== undefined) go(api, row);
          else if (row.window) {
            api.show(...row.window, row.range ?? -1);
            if (row.op) pickItem(api, ...row.op);
          }
        };
        line.addEventListener("click", use);
        line.addEventListener("keydown", (event) => {
          const other = { ArrowDown: line.nextElementSibling, ArrowUp: line.previousElementSibling }[event.key];
          if (event.key === "Enter") use();
          else if (other) { line.tabIndex = -1; other.tabIndex = 0; other.focus(); }
          else return;
          event.preventDefault();
          event.stopPropagation();
        });
      }
      const lines = () => [...place.querySelectorAll("tbody tr")], focused = lines().indexOf(document.activeElement);
      place.querySelector("tbody").replaceChildren(body);
      // One row is reached by Tab, the others from it by the arrows.
      const chosen = place.querySelector(".picked"), reached = lines()[focused] || chosen || lines()[0];
      if (reached) reached.tabIndex = 0;
      if (focused >= 0) (reached || place.querySelector("thead button")).focus();
      if (chosen) place.scrollTop = Math.max(0, chosen.offsetTop - place.clientHeight / 2);
    }

    // What is asked of the columns: pairs of column and condition; what means nothing is left out.
    function conditions() {
      const { columns, kinds } = shape();
      return columns.flatMap((name, at) => {
        const text = filters[open][name], found = text ? condition(kinds[at], text) : null;
        return found ? [[open === "operations" ? name : at, ...found]] : [];
      });
    }

    // What nobody sees is not filled; its tab can be reached all the same.
    new IntersectionObserver(([entry]) => { seen = entry.isIntersecting; fill(); }).observe(place);
    async function fill() {
      for (const tab of tabs.children) {
        const chosen = tab.textContent === open;
        tab.setAttribute("aria-selected", String(chosen));
        tab.tabIndex = chosen ? 0 : -1;
      }
      if (!seen) return;
      const mine = ++count, state = api.state(), [sorted, direction] = order[open], wanted = conditions();
      if (open !== "operations") {
        const { rows } = api.meta.tables[open];
        const found = state.find ? await findIn(state.find, rows.map((row) => row.cells.join("\n"))).catch(() => []) : rows.map(() => true);
        if (mine !== count) return;
        const value = (row, at, sign) => (sign === "has" ? row.cells[at] : row.keys[at]);
        const kept = rows.filter((row, number) => found[number] && wanted.every(([at, sign, limit]) => MEETS[sign](value(row, at, sign), limit)));
        kept.sort((a, b) => direction * (a.keys[sorted] < b.keys[sorted] ? -1 : a.keys[sorted] > b.keys[sorted] ? 1 : 0));
        byId("table-count").textContent = `${kept.length === rows.length ? "" : `${kept.length} of `}${rows.length} ${open}`;
        draw(kept);
        return;
      }
      const [low, high] = state.brush || [state.low, state.high], { picked } = state;
      try {
        const answer = await ask("/operations", { low, high, find: state.find, where: JSON.stringify(wanted), sort: sorted, descending: direction < 0 ? 1 : 0 });
        // The picked one has its row in the table, wherever the order puts it.
        const known = !picked || answer.rows.some((row) => row.row === picked.row && row.item === picked.item);
        const extra = known ? null : await ask("/operation", { row: picked.row, item: picked.item });
        if (mine !== count) return;
        if (extra) answer.rows.unshift({ ...extra, row: picked.row });
        const more = answer.total > answer.rows.length ? `, the first ${answer.rows.length - (extra ? 1 : 0)} shown` : "";
        byId("table-count").textContent = `${answer.total.toLocaleString("en-US")} operations in ${state.brush ? "the selection" : "view"}${more}`;
        draw(answer.rows);
      } catch (error) {
        if (mine === count) byId("table-count").textContent = error.message;
      }
    }
    return {
      fill,
      where: () => JSON.stringify(open === "operations" ? conditions() : []),
      // For the address: the open table, its order and its filters.
      state: () => [open, ...order[open], JSON.stringify(filters[open])],
      restore(name, sorted, direction, text) {
        if (!(name in order)) return;
        open = name;
        const known = shape().columns, key = open === "operations" ? sorted : +sorted;
        if (open === "operations" ? known.includes(key) : known[key]) order[open] = [key, direction === "-1" ? -1 : 1];
        try {
          for (const [column, value] of Object.entries(JSON.parse(text))) {
            if (known.includes(column) && typeof value === "string") filters[open][column] = value;
          }
        } catch (error) { /* what is no filter filters nothing */ }
      },
    };
  }

  function start(meta) {
    const source = {
      async view({ low, high, pixels, rows, find }) {
        const all = { low, high, pixels, rows: rows.join() };
        const [found, rest] = await Promise.all([ask("/view", { ...all, find }), find ? ask("/view", all) : null]);
        return { ...found, rest };
      },
    };
    let device = 0, table = null, waiting = 0, late = 0, leaps = false, sought = "";
    const tell = (state) => {
      if (state.find !== sought) count(sought = state.find);
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        write(api, device, table.state(), leaps);
        leaps = false;
        window.dash_clientside.set_props("view", { data: { low: state.low, high: state.high, range: state.range, brush: state.brush, device } });
      }, 120);
      clearTimeout(late);
      late = setTimeout(() => table.fill(), 250);
    };
    // The figures are those of the GPU that one looks at.
    const aim = (at) => {
      device = at;
      byId("device").value = String(at);
    };
    const api = window.gpuscope.timeline(byId("timeline"), meta, source, {
      picked: (mark) => fillDetails(api, mark),
      touched: (row) => {
        const { trace, device: mine } = meta.rows[row], at = meta.devices.findIndex((each) => each[0] === trace && each[1] === mine);
        if (at >= 0) aim(at);
      },
      leap: () => {
        if (!leaps) write(api, device, table.state());
        leaps = true;
      },
      hovered: ({ row, item }) => ask("/item", { row, item }).then(({ title, facts, why }) => [title, ...facts.map(([name, text]) => `${name}: ${text}`), ...(why ? [why] : [])]),
    });
    window.gpuscope.page = api;
    table = tables(api);
    const restore = () => {
      const query = new URLSearchParams(location.search);
      table.restore(...(query.get("table") || "operations.start.1").split("."), query.get("where") || "{}");
      const wanted = Number(query.get("device")) || 0;
      leaps = true; // what leads there is none
      const picked = read(api);
      leaps = false;
      aim(wanted);
      picked.then(() => { aim(wanted); tell(api.state()); });
    };
    api.listen(tell);
    window.gpuscope.connect(api, {
      csv: () => {
        const { low, high, brush, find } = api.state();
        const [from, to] = brush || [low, high];
        location.assign(`/operations.csv?${new URLSearchParams({ low: from, high: to, find, where: table.where() })}`);
      },
      // Beyond what is loaded, the server knows what comes next of the names that are searched for.
      next: () => (api.state().find ? find(api, 1) : api.step(1)),
      previous: () => (api.state().find ? find(api, -1) : api.step(-1)),
      link: async () => {
        write(api, device, table.state());
        const said = await copied(location.href).then(() => "Copied.", () => "The browser does not let the page copy: take the address from its bar.");
        byId("said").textContent = said;
      },
    });
    restore();
    window.addEventListener("popstate", restore);
    byId("device").addEventListener("change", (event) => { device = +event.target.value; tell(api.state()); });
    document.addEventListener("click", (event) => {
      if (!event.target.closest) return;
      const evidence = event.target.closest("[data-op]");
      if (evidence) pickItem(api, ...evidence.dataset.op.split(".").map(Number));
      const card = event.target.closest("[data-device]");
      if (card) { aim(+card.dataset.device); tell(api.state()); }
    });
    table.fill();
  }

  const waiting = setInterval(() => {
    const empty = document.querySelector(".panel.empty");
    if (!byId("timeline") && !empty) return;
    clearInterval(waiting);
    if (empty) window.gpuscope.connect(null, {});
    else ask("/describe", {}).then(start);
  }, 30);
})();
