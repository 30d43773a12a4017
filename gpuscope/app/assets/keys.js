// Keyboard, mouse on the timeline, theme and help. Everything else happens on the server.
(function () {
  "use strict";

  const buttons = {
    w: "zoom-in", "+": "zoom-in", "=": "zoom-in", arrowup: "zoom-in",
    s: "zoom-out", "-": "zoom-out", arrowdown: "zoom-out",
    a: "move-left", arrowleft: "move-left",
    d: "move-right", arrowright: "move-right",
    f: "fit", t: "theme-button", "?": "help-button",
  };

  function typing(element) {
    return element && (/^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName) ||
      element.isContentEditable || element.closest('[role="listbox"], [role="combobox"], .dash-dropdown-content'));
  }

  document.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    const help = document.getElementById("help");
    if (help && help.open) return;
    const button = document.getElementById(buttons[event.key.toLowerCase()]);
    if (!button) return;
    event.preventDefault();
    button.click();
  });

  document.addEventListener("click", function (event) {
    if (event.target.closest && event.target.closest("#help-button")) {
      document.getElementById("help").showModal();
    }
  });

  // Plotly's own events: Dash reports no zoom that equals the last one it reported, even when the
  // view was changed by other means in between.
  const waiting = setInterval(function () {
    const graph = document.querySelector("#timeline .js-plotly-plot");
    if (!graph || !graph.on) return;
    clearInterval(waiting);
    graph.on("plotly_relayout", function (change) {
      if (!Object.keys(change).some((name) => name.startsWith("xaxis."))) return;
      const [low, high] = graph.layout.xaxis.range;
      window.dash_clientside.set_props("dragged", { data: { low, high, at: Date.now() } });
    });
    graph.on("plotly_doubleclick", () => document.getElementById("fit").click());
  }, 50);

  // A link's theme goes first, then the one picked last, then the system's. A cookie, because it
  // holds for every port of this host, and the page's port changes.
  const query = new URLSearchParams(window.location.search).get("theme");
  const kept = (document.cookie.match(/(?:^|; )gpuscope-theme=(\w+)/) || [])[1];
  const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  let theme = [query, kept, system].find((name) => name === "dark" || name === "light");
  document.documentElement.dataset.theme = theme;

  let seen = 0;
  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    gpuscope: {
      theme: function (clicks) {
        if (clicks > seen) {
          theme = theme === "dark" ? "light" : "dark";
          document.documentElement.dataset.theme = theme;
          document.cookie = `gpuscope-theme=${theme}; path=/; max-age=31536000; samesite=strict`;
        }
        seen = clicks;
        return theme;
      },
    },
  });
})();
