// Times in words, and painters: the same few strokes on a canvas and in SVG.
(function () {
  "use strict";

  const FONT = "11px system-ui, 'DejaVu Sans', sans-serif";

  // Units

  function digits(value) {
    const size = Math.abs(value);
    return value.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0);
  }

  function formatNs(ns) {
    for (const [step, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
      if (Math.abs(ns) >= step) return `${digits(ns / step)} ${unit}`;
    }
    return `${Math.round(ns)} ns`;
  }

  // A time with as many decimals as a stretch of that length needs.
  function formatAt(ns, stretch) {
    const decimals = Math.min(6, Math.max(0, 3 - Math.floor(Math.log10(Math.max(1, stretch) / 1e6))));
    return `${(ns / 1e6).toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })} ms`;
  }

  function ticks(low, high, count) {
    const rough = (high - low) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) || power * 10;
    const [unit, name] = high - low > 1e10 ? [1e9, "s"] : Math.max(Math.abs(low), high) < 1e6 ? [1e3, "µs"] : [1e6, "ms"];
    const decimals = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
    const found = [];
    for (let t = Math.ceil(low / step) * step + 0; t <= high; t += step) {
      const text = (t / unit + 0).toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
      found.push([t, `${text} ${name}`]);
    }
    return found;
  }

  // Painters: the same few strokes on a canvas and in SVG

  const PALE = 0.15; // the opacity of what a search does not find

  function canvasPainter(context) {
    const { patterns, stack } = context.kept = context.kept || { patterns: new Map(), stack: document.createElement("canvas") };
    let image = null, opacity = 1;
    const packed = (color) => (0xff000000 | parseInt(color.slice(5, 7), 16) << 16 | parseInt(color.slice(3, 5), 16) << 8 | parseInt(color.slice(1, 3), 16)) >>> 0;
    function style(colors) {
      if (colors.length === 1) return colors[0];
      const key = colors.join();
      if (!patterns.has(key)) {
        // Diagonal stripes that repeat without a seam.
        const size = 4 * colors.length, tile = document.createElement("canvas");
        tile.width = tile.height = size;
        const pen = tile.getContext("2d");
        colors.forEach((color, at) => {
          pen.fillStyle = color;
          for (const shift of [-size, 0, size]) {
            const x = 4 * at + shift;
            pen.beginPath();
            pen.moveTo(x, 0); pen.lineTo(x + 4, 0); pen.lineTo(x + 4 + size, size); pen.lineTo(x + size, size);
            pen.fill();
          }
        });
        patterns.set(key, context.createPattern(tile, "repeat"));
      }
      return patterns.get(key);
    }
    return {
      rects(list, colors, alpha) {
        context.fillStyle = style(colors);
        context.globalAlpha = opacity * (alpha === undefined ? 1 : alpha);
        for (let i = 0; i < list.length; i += 4) context.fillRect(list[i], list[i + 1], list[i + 2], list[i + 3]);
        context.globalAlpha = 1;
      },
      // Stacks of shares, a pixel wide each: written pixel by pixel, and put on the canvas at once.
      stacks(x0, y, tall, feet, heights, colors) {
        const ratio = window.devicePixelRatio || 1, { width: w, height: h } = context.canvas;
        if (!image || image.width !== w || image.height !== h) image = new ImageData(w, h);
        const pixels = new Uint32Array(image.data.buffer), left = Math.round(x0 * ratio);
        heights.forEach((high, part) => {
          const shades = Uint32Array.from({ length: 4 * colors[part].length }, (_, i) => packed(colors[part][i >> 2]));
          const period = shades.length, foot = feet[part], last = high.length - 1, wide = Math.min(w - left, Math.round(high.length * ratio));
          for (let x = 0; x < wide; x++) {
            const at = ratio === 1 ? x : Math.min(last, Math.floor(x / ratio)), share = high[at];
            if (!share) continue;
            const end = Math.round((y + foot[at]) * ratio), begin = Math.min(end - 1, Math.round((y + foot[at] - share) * ratio));
            for (let line = Math.max(0, begin), to = Math.min(h, end); line < to; line++) {
              pixels[line * w + left + x] = period === 4 ? shades[0] : shades[(x + line) % period];
            }
          }
        });
      },
      flush() {
        if (!image) return;
        stack.width = image.width;
        stack.height = image.height;
        stack.getContext("2d").putImageData(image, 0, 0);
        context.save();
        context.globalAlpha = opacity;
        context.setTransform(1, 0, 0, 1, 0, 0);
        context.drawImage(stack, 0, 0);
        context.restore();
        image = null;
      },
      text(x, y, words, color, align, bold) {
        context.fillStyle = color;
        context.font = bold ? `600 ${FONT}` : FONT;
        context.textAlign = align || "left";
        context.textBaseline = "middle";
        context.globalAlpha = opacity;
        context.fillText(words, x, y);
        context.globalAlpha = 1;
      },
      pale(inside) {
        opacity = PALE;
        inside();
        opacity = 1;
      },
      path(points, color, width, dash) {
        context.strokeStyle = color;
        context.lineWidth = width;
        context.setLineDash(dash || []);
        context.beginPath();
        const [x, y, ...rest] = points;
        context.moveTo(x, y);
        if (rest.length === 6) context.bezierCurveTo(...rest);
        else for (let i = 0; i < rest.length; i += 2) context.lineTo(rest[i], rest[i + 1]);
        context.stroke();
        context.setLineDash([]);
      },
      clip(x, y, width, height, inside) {
        context.save();
        context.beginPath();
        context.rect(x, y, width, height);
        context.clip();
        inside();
        context.restore();
      },
    };
  }

  function escaped(text) {
    return text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
  }

  function svgPainter(width, height) {
    const parts = [], defs = [], patterns = new Map();
    const short = (value) => +value.toFixed(2);
    function fill(colors) {
      if (colors.length === 1) return colors[0];
      const key = colors.join();
      if (!patterns.has(key)) {
        const name = `p${patterns.size}`;
        patterns.set(key, `url(#${name})`);
        const bars = colors.map((color, at) => `<rect x="${4 * at}" width="4" height="8" fill="${color}"/>`).join("");
        defs.push(`<pattern id="${name}" width="${4 * colors.length}" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">${bars}</pattern>`);
      }
      return patterns.get(key);
    }
    return {
      rects(list, colors, alpha) {
        const steps = [];
        for (let i = 0; i < list.length; i += 4) {
          steps.push(`M${short(list[i])} ${short(list[i + 1])}h${short(list[i + 2])}v${short(list[i + 3])}h${-short(list[i + 2])}z`);
        }
        if (steps.length) parts.push(`<path d="${steps.join("")}" fill="${fill(colors)}"${alpha === undefined ? "" : ` opacity="${alpha}"`}/>`);
      },
      stacks(x0, y, tall, feet, heights, colors) {
        heights.forEach((high, part) => {
          const list = [], foot = feet[part];
          for (let x = 0; x < high.length; x++) {
            if (!high[x]) continue;
            const last = list.length - 4, top = y + foot[x] - high[x];
            if (last >= 0 && list[last] + list[last + 2] === x0 + x && Math.abs(list[last + 1] - top) < 0.3 && Math.abs(list[last + 3] - high[x]) < 0.3) list[last + 2] += 1;
            else list.push(x0 + x, top, 1, high[x]);
          }
          this.rects(list, colors[part]);
        });
      },
      flush() {},
      text(x, y, words, color, align, bold) {
        const anchor = { center: "middle", right: "end" }[align] || "start";
        parts.push(`<text x="${short(x)}" y="${short(y)}" fill="${color}" text-anchor="${anchor}" dominant-baseline="central"${bold ? ' font-weight="600"' : ""}>${escaped(words)}</text>`);
      },
      path(points, color, width, dash) {
        const [x, y, ...rest] = points.map(short);
        const line = rest.length === 6 ? `C${rest.join(" ")}` : `L${rest.join(" ")}`;
        parts.push(`<path d="M${x} ${y}${line}" fill="none" stroke="${color}" stroke-width="${width}"${dash ? ` stroke-dasharray="${dash}"` : ""}/>`);
      },
      clip(x, y, w, h, inside) {
        const name = `c${defs.length}`;
        defs.push(`<clipPath id="${name}"><rect x="${x}" y="${y}" width="${w}" height="${h}"/></clipPath>`);
        parts.push(`<g clip-path="url(#${name})">`);
        inside();
        parts.push("</g>");
      },
      pale(inside) {
        parts.push(`<g opacity="${PALE}">`);
        inside();
        parts.push("</g>");
      },
      done() {
        return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="system-ui, 'DejaVu Sans', sans-serif" font-size="11"><defs>${defs.join("")}</defs>${parts.join("")}</svg>`;
      },
    };
  }

  window.gpuscope = { formatNs, formatAt, ticks, canvasPainter, svgPainter };
})();
