// Keyboard, theme and help. Everything else happens on the server.
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

  const preferred = function () {
    return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  };

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    gpuscope: {
      theme: function (clicks, stored) {
        const triggered = window.dash_clientside.callback_context.triggered;
        const clicked = triggered.some((item) => item.prop_id.startsWith("theme-button")) && clicks;
        let theme = stored || preferred();
        if (clicked) theme = theme === "dark" ? "light" : "dark";
        document.documentElement.dataset.theme = theme;
        return theme;
      },
    },
  });
})();
