// What page and report have beside the timeline: the panel of details, keys, buttons, fields, themes.
(function () {
  "use strict";

  const { formatNs, formatAt } = window.gpuscope;
  const ARROWS = { launch: "launched by", stream: "before it in its stream", event: "waited for by an event", "null-stream": "by the rule of the null stream", engine: "before it on its engine" };

  function element(tag, className, parent, attributes) {
    const made = document.createElement(tag);
    made.className = className;
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    if (parent) parent.append(made);
    return made;
  }

  function pattern(text) {
    try {
      return text ? new RegExp(text, "i") : null;
    } catch (error) {
      return null;
    }
  }

  // An expression is searched for in a worker, which is ended where it would take for ever.
  const PATIENCE_MS = 2000;
  const FINDER = "onmessage = ({ data: [text, names] }) => { const wanted = new RegExp(text, 'i'); postMessage(names.map((name) => wanted.test(name))); };";
  function findIn(text, names) {
    if (!pattern(text)) return Promise.reject(new Error("This is no regular expression."));
    const address = URL.createObjectURL(new Blob([FINDER], { type: "text/javascript" })), worker = new Worker(address);
    let late = 0;
    return new Promise((resolve, reject) => {
      late = setTimeout(() => reject(new Error("Searching for this expression takes too long: make it simpler.")), PATIENCE_MS);
      worker.onmessage = ({ data }) => resolve(data);
      worker.onerror = () => reject(new Error("The browser cannot search here."));
      worker.postMessage([text, names]);
    }).finally(() => { clearTimeout(late); worker.terminate(); URL.revokeObjectURL(address); });
  }

  // What is known of the picked item: facts is what details.py returns.
  function showDetails(place, facts, go) {
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
      button.addEventListener("click", () => go(arrow));
    }
  }

  // Keys and buttons that page and report share: an element with data-act does what it names.

  const KEYS = {
    w: "zoom-in", "+": "zoom-in", "=": "zoom-in", s: "zoom-out", "-": "zoom-out",
    a: "move-left", arrowleft: "move-left", d: "move-right", arrowright: "move-right", f: "fit", n: "next", p: "previous",
    z: "to-brush", b: "brush", escape: "clear", "/": "search", "?": "help", t: "theme",
  };

  // Elsewhere these scroll the page, and press its buttons.
  const KEYS_OF_TIMELINE = { arrowup: "zoom-in", arrowdown: "zoom-out", enter: "next" };

  function download(name, blob) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  // What is picked, with as much again on either side.
  function around({ start, end }) {
    const wide = Math.max(end - start, 10);
    return [start - wide, end + wide];
  }

  function typing(target) {
    return target && (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.isContentEditable);
  }

  function connect(api, more) {
    const byId = (name) => document.getElementById(name);
    const say = (text) => { const note = byId("said"); if (note) note.textContent = text; };
    const acts = {
      "zoom-in": () => api.zoom(0.5),
      "zoom-out": () => api.zoom(2),
      "move-left": () => api.move(-0.3),
      "move-right": () => api.move(0.3),
      fit: () => api.fit(),
      next: () => api.step(1),
      previous: () => api.step(-1),
      "to-brush": () => {
        const { brush, picked } = api.state();
        if (brush) api.show(...brush);
        else if (picked) api.show(...around(picked));
      },
      // By keyboard, too: the stretch of what is picked, or all that is seen.
      brush: () => {
        const { picked, low, high } = api.state();
        api.set({ brush: picked && picked.end > picked.start ? [picked.start, picked.end] : [low, high] });
      },
      clear: () => { if (api.state().picked) api.pick(null); else api.set({ brush: null }); },
      search: () => { const box = byId("find"); if (box) { box.focus(); box.select(); } },
      help: () => byId("help").showModal(),
      theme: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark", api),
      svg: () => download("timeline.svg", new Blob([api.svg()], { type: "image/svg+xml" })),
      png: () => api.png().then((blob) => download("timeline.png", blob)),
      copy: () => api.png().then((blob) => navigator.clipboard.write([new ClipboardItem({ "image/png": blob })])).then(() => say("Copied."), () => say("The browser does not let the page copy: download PNG instead.")),
      ...more,
    };
    const bare = { theme: acts.theme, help: acts.help };
    const act = (name) => { const known = (api ? acts : bare)[name]; if (known) known(); return known; };
    document.addEventListener("keydown", (event) => {
      const box = event.target;
      if (typing(box)) {
        if (event.key === "Escape") box.blur();
        return;
      }
      const help = byId("help");
      if (event.ctrlKey || event.metaKey || event.altKey || (help && help.open)) return;
      const key = event.key.toLowerCase(), known = box.matches(".tl-canvas") && KEYS_OF_TIMELINE[key];
      if (act(known === "next" && event.shiftKey ? "previous" : known || KEYS[key])) event.preventDefault();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target.matches("tr[data-low]")) event.target.click();
    });
    const menu = document.querySelector(".menu");
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !menu || !menu.open) return;
      menu.open = false;
      menu.querySelector("summary").focus();
      event.stopPropagation();
    }, true);
    if (menu) menu.addEventListener("toggle", () => say(""));
    document.addEventListener("pointerdown", (event) => { if (menu && !menu.contains(event.target)) menu.open = false; });
    document.addEventListener("click", (event) => {
      if (!event.target.closest) return;
      const button = event.target.closest("[data-act]"), to = event.target.closest("[data-low]");
      if (button) act(button.dataset.act);
      else if (to) {
        api.show(+to.dataset.low, +to.dataset.high, to.dataset.range === undefined ? -1 : +to.dataset.range);
        document.querySelector(".tl").scrollIntoView({ block: "nearest" });
      }
    });
    if (!api) return;
    const { end_ns } = api.meta, range = byId("range");
    api.meta.ranges.forEach((each, at) => { element("option", "", range, { value: at }).textContent = each.label; });
    range.value = String(api.state().range);
    range.addEventListener("change", () => api.fit(+range.value));
    api.listen((state) => {
      range.value = String(state.range);
      const low = Math.max(0, state.low), high = Math.min(end_ns, state.high);
      byId("window").textContent = high > low ? `${formatAt(low, high - low)} – ${formatAt(high, high - low)} (${formatNs(high - low)})` : "beside the trace";
    });
    for (const place of document.querySelectorAll("[data-box]")) {
      const name = place.dataset.box;
      const box = element("input", "box", place, { id: name, type: "text", placeholder: place.dataset.hint, "aria-label": place.dataset.label, spellcheck: "false", autocomplete: "off" });
      let waiting = 0;
      box.value = api.state()[name];
      api.listen((state) => { if (document.activeElement !== box) box.value = state[name]; });
      box.addEventListener("input", () => {
        clearTimeout(waiting);
        const bad = box.value && !pattern(box.value);
        box.setAttribute("aria-invalid", String(Boolean(bad)));
        if (!bad) waiting = setTimeout(() => api.set({ [name]: box.value }), 150);
      });
      box.addEventListener("keydown", (event) => {
        if (event.key !== "Enter") return;
        document.querySelector(".tl-canvas").focus({ preventScroll: true });
        if (name === "find") { api.set({ find: box.value }); act(event.shiftKey ? "previous" : "next"); }
      });
    }
  }

  // A link's theme goes first, then the one picked last, then the system's. A cookie, because it
  // holds for every port of this host, and the page's port changes.
  function firstTheme() {
    const kept = (document.cookie.match(/(?:^|; )gpuscope-theme=(\w+)/) || [])[1];
    const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const query = new URLSearchParams(window.location.search).get("theme");
    return [query, kept, system].find((name) => name === "dark" || name === "light");
  }

  function setTheme(name, api) {
    document.documentElement.dataset.theme = name;
    document.cookie = `gpuscope-theme=${name}; path=/; max-age=31536000; samesite=strict`;
    if (api) { api.theme(name); api.set({}); }
  }

  document.documentElement.dataset.theme = firstTheme();
  Object.assign(window.gpuscope, { element, findIn, showDetails, connect });
})();
