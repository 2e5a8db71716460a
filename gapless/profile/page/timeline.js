// The timeline: a canvas that draws what is in view, moved by mouse, keyboard and buttons.
"use strict";
(() => {
  const LABEL = 210, RULER = 22, ROW = 18, GAP = 6, TITLE = 22, MIN_SPAN = 200; // ns
  const PALETTE = ["#3b6ea8", "#c9862b", "#7a5aa6", "#2a8f96", "#a8447a", "#8a7a2c", "#5b8fd0",
    "#b5603c", "#6f6fc0", "#3f8f6a"];
  const data = JSON.parse(document.getElementById("data").textContent);
  const box = document.getElementById("timeline"), canvas = document.getElementById("canvas");
  const space = document.getElementById("space"), tip = document.getElementById("tip");
  const view = document.getElementById("view"), about = document.getElementById("about");
  const pen = canvas.getContext("2d");

  const unpack = (text, Kind) =>
    new Kind(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
  const colours = data.names.map((name) => {
    let hash = 7;
    for (const letter of name) hash = (hash * 31 + letter.codePointAt(0)) >>> 0;
    return PALETTE[hash % PALETTE.length];
  });

  // Every line of the picture, from top to bottom, with its place.
  const lines = [], gaps = [];
  let height = RULER;
  for (const process of data.processes) {
    lines.push({ kind: "title", name: process.label, top: height });
    height += TITLE;
    for (const track of process.tracks) {
      if (track.kind === "queue") {
        lines.push({ kind: "queue", name: track.name, top: height, most: track.most,
          time: unpack(track.time, Float64Array), value: unpack(track.value, Int32Array) });
        height += 2 * ROW + GAP;
        continue;
      }
      track.rows.forEach((row, depth) => {
        const line = { kind: track.kind, name: depth ? "" : track.name, track: track.name,
          process: process.label, top: height, start: unpack(row.start, Float64Array),
          length: unpack(row.length, Float32Array), id: unpack(row.name, Uint16Array),
          step: unpack(row.step, Int32Array) };
        lines.push(line);
        height += ROW;
        if (track.kind !== "idle") return;
        for (let i = 0; i < line.start.length; ++i) gaps.push({ line, i });
      });
      height += GAP;
    }
  }
  gaps.sort((a, b) => a.line.start[a.i] - b.line.start[b.i]);
  space.style.height = `${height}px`;

  let from = 0, until = data.end, chosen = null, width = 0, shown = 0, asked = false;

  const time = (ns) => {
    const size = Math.abs(ns);
    if (size >= 1e9) return `${(ns / 1e9).toFixed(3)} s`;
    if (size >= 1e6) return `${(ns / 1e6).toFixed(3)} ms`;
    return `${(ns / 1e3).toFixed(size < 1e4 ? 2 : 1)} us`;
  };
  // A moment, in the unit of the view and as exactly as its size asks for.
  const place = (ns, span) => {
    const [unit, name] = span >= 1e9 ? [1e9, "s"] : span >= 1e6 ? [1e6, "ms"] : [1e3, "us"];
    const digits = Math.max(0, Math.min(6, 2 - Math.floor(Math.log10(span / unit))));
    return `${(ns / unit).toFixed(digits)} ${name}`;
  };
  const describe = (line, i) => {
    const step = line.step[i] >= 0 ? `, step ${line.step[i]}` : "";
    if (line.kind === "idle") {
      return `idle for ${time(line.length[i])} before step ${line.step[i]}, ` +
        `the host: ${data.names[line.id[i]]}; at ${place(line.start[i], until - from)}`;
    }
    const when = place(line.start[i], until - from);
    return `${data.names[line.id[i]]}${step}: ${time(line.length[i])}, at ${when}`;
  };
  const x = (ns) => LABEL + ((ns - from) / (until - from)) * (width - LABEL);
  const moment = (pixel) => from + ((pixel - LABEL) / (width - LABEL)) * (until - from);
  // The first bar that ends after a moment. Bars of a line are disjoint, so their ends ascend too.
  const firstAfter = (line, ns) => {
    let low = 0, high = line.start.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (line.start[middle] + line.length[middle] > ns) high = middle;
      else low = middle + 1;
    }
    return low;
  };

  function drawBars(line, top, style) {
    const perPixel = (until - from) / (width - LABEL);
    let column = -1, covered = 0, longest = 0, colour = "";
    const bar = line.kind === "stream" ? style.work : "";
    // What is narrower than a pixel is added up by columns: their shade says how full each is.
    const flush = () => {
      if (column < 0) return;
      pen.globalAlpha = Math.max(0.3, Math.min(1, covered / perPixel));
      pen.fillStyle = colour;
      pen.fillRect(column, top, 1, ROW - 3);
      pen.globalAlpha = 1;
      column = -1;
      covered = longest = 0;
    };
    for (let i = firstAfter(line, from); i < line.start.length && line.start[i] < until; ++i) {
      const left = x(line.start[i]), right = x(line.start[i] + line.length[i]);
      const fill = bar || colours[line.id[i]];
      if (right - left < 1) {
        const here = Math.floor(left);
        if (here !== column) flush();
        column = here;
        covered += line.length[i];
        if (line.length[i] >= longest) { longest = line.length[i]; colour = fill; }
        continue;
      }
      flush();
      const start = Math.max(left, LABEL), end = Math.min(right, width);
      pen.fillStyle = fill;
      // A hair line between neighbours, where there is room for one.
      pen.fillRect(start, top, Math.max(0.5, end - start - (end - start > 3 ? 0.6 : 0)), ROW - 3);
      if (end - start > 26) {
        pen.save();
        pen.beginPath();
        pen.rect(start, top, end - start - 3, ROW);
        pen.clip();
        pen.fillStyle = "#fff";
        pen.fillText(data.names[line.id[i]], start + 4, top + ROW - 7);
        pen.restore();
      }
    }
    flush();
    if (line.kind !== "idle") return;
    // Gaps must be found by eye however short they are.
    pen.fillStyle = style.idle;
    let drawn = -1;
    for (let i = firstAfter(line, from); i < line.start.length && line.start[i] < until; ++i) {
      const left = Math.max(LABEL, x(line.start[i]));
      const right = Math.min(width, Math.max(x(line.start[i] + line.length[i]), left + 1));
      if (right <= drawn) continue;
      pen.fillRect(left, top + ROW - 5, right - left, 3);
      drawn = right;
    }
  }

  function drawQueue(line, top, style) {
    const size = 2 * ROW - 4;
    const y = (value) => top + size - (value / Math.max(1, line.most)) * size;
    let low = 0, high = line.time.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (line.time[middle] > from) high = middle;
      else low = middle + 1;
    }
    pen.fillStyle = style.dim;
    let column = LABEL, most = low ? line.value[low - 1] : 0, now = most;
    const fill = (left, right, value) => {
      if (value > 0 && right > left) pen.fillRect(left, y(value), right - left, top + size - y(value));
    };
    // The most of what happened within a pixel is drawn there, and what it ended with from there on.
    const paint = (end) => {
      fill(column, Math.min(column + 1, end), most);
      fill(column + 1, end, now);
      column = end;
      most = now;
    };
    for (let i = low; i < line.time.length && line.time[i] < until; ++i) {
      const at = Math.floor(x(line.time[i]));
      if (at > column) paint(at);
      now = line.value[i];
      most = Math.max(most, now);
    }
    paint(Math.min(width, x(Math.min(until, data.end))));
  }

  function drawRuler(style) {
    const step = 10 ** Math.floor(Math.log10((until - from) / 5));
    const every = [1, 2, 5, 10].map((factor) => factor * step)
      .find((tick) => (until - from) / tick <= 9);
    pen.fillStyle = style.ground;
    pen.fillRect(0, 0, width, RULER);
    for (let tick = Math.ceil(from / every) * every; tick < until; tick += every) {
      pen.fillStyle = style.line;
      pen.fillRect(x(tick), 0, 1, shown);
      pen.fillStyle = style.dim;
      pen.fillText(place(tick, until - from), x(tick) + 4, RULER - 8);
    }
  }

  function draw() {
    asked = false;
    const looks = getComputedStyle(document.documentElement);
    const style = Object.fromEntries(["ground", "text", "dim", "line", "band", "idle", "work",
      "focus"].map((name) => [name, looks.getPropertyValue(`--${name}`).trim()]));
    width = box.clientWidth;
    shown = Math.min(box.clientHeight || height, height);
    const scale = window.devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = shown * scale;
    canvas.style.height = `${shown}px`;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = '12px system-ui, "DejaVu Sans", sans-serif';
    pen.fillStyle = style.ground;
    pen.fillRect(0, 0, width, shown);
    const scrolled = box.scrollTop;
    drawRuler(style);
    for (const line of lines) {
      const top = line.top - scrolled;
      if (top < -3 * ROW || top > shown) continue;
      if (line.kind === "title") {
        pen.fillStyle = style.band;
        pen.fillRect(0, top, width, TITLE - 4);
        pen.fillStyle = style.text;
        pen.font = 'bold 12px system-ui, "DejaVu Sans", sans-serif';
        pen.fillText(line.name, 6, top + 13);
        pen.font = '12px system-ui, "DejaVu Sans", sans-serif';
        continue;
      }
      if (line.kind === "queue") drawQueue(line, top, style);
      else drawBars(line, top, style);
      pen.fillStyle = style.ground;
      pen.fillRect(0, top, LABEL - 4, line.kind === "queue" ? 2 * ROW : ROW);
      pen.fillStyle = style.text;
      const label = line.kind === "queue" ? `${line.name} (max ${line.most})` : line.name;
      pen.fillText(label, 12, top + 12, LABEL - 20);
      if (chosen && chosen.line === line) {
        pen.strokeStyle = style.focus;
        pen.lineWidth = 2;
        const left = x(line.start[chosen.i]);
        const right = x(line.start[chosen.i] + line.length[chosen.i]);
        pen.strokeRect(left - 2, top - 2, Math.max(4, right - left + 4), ROW + 1);
      }
    }
    // Again, over what scrolled beneath it.
    pen.fillStyle = style.ground;
    pen.fillRect(0, 0, LABEL - 4, RULER);
    const part = ((until - from) / data.end) * 100;
    const share = part < 99.95 ? part.toPrecision(2) : 100;
    view.textContent = `${place(from, until - from)} to ${place(until, until - from)}, ${share} %`;
  }
  const redraw = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(draw);
  };

  function show(start, end) {
    const span = Math.min(data.end, Math.max(MIN_SPAN, end - start));
    const middle = (start + end) / 2;
    from = Math.max(0, Math.min(data.end - span, middle - span / 2));
    until = from + span;
    redraw();
  }
  function zoom(factor, at = (from + until) / 2) {
    const span = Math.min(data.end, Math.max(MIN_SPAN, (until - from) * factor));
    const start = at - ((at - from) / (until - from)) * span;
    show(start, start + span);
  }
  const move = (part) => {
    const by = (until - from) * part;
    show(from + by, until + by);
  };
  function choose(line, i) {
    chosen = { line, i };
    about.textContent = `${line.process}, ${line.track}: ${describe(line, i)}`;
    if (line.top < box.scrollTop + RULER || line.top > box.scrollTop + shown - ROW) {
      box.scrollTop = Math.max(0, line.top - shown / 2);
    }
    redraw();
  }
  function goTo(gap) {
    if (!gap) {
      about.textContent = gaps.length ? "There is no further gap." : "There is no idle gap.";
      return;
    }
    const start = gap.line.start[gap.i], length = gap.line.length[gap.i];
    const span = Math.max(length * 6, 20000);
    show(start + length / 2 - span / 2, start + length / 2 + span / 2);
    choose(gap.line, gap.i);
  }
  function neighbour(direction) {
    const at = chosen ? gaps.findIndex((gap) => gap.line === chosen.line && gap.i === chosen.i) : -1;
    if (at >= 0) return gaps[at + direction];
    const middle = (from + until) / 2;
    return direction > 0
      ? gaps.find((gap) => gap.line.start[gap.i] >= (from > 0 ? middle : 0))
      : gaps.findLast((gap) => gap.line.start[gap.i] < (until < data.end ? middle : data.end));
  }

  const actions = {
    "zoom-in": () => zoom(0.5), "zoom-out": () => zoom(2), left: () => move(-0.2),
    right: () => move(0.2), all: () => show(0, data.end), next: () => goTo(neighbour(1)),
    previous: () => goTo(neighbour(-1)),
    up: () => { box.scrollTop -= 3 * ROW; }, down: () => { box.scrollTop += 3 * ROW; },
  };
  const keys = { "+": "zoom-in", "=": "zoom-in", "-": "zoom-out", ArrowLeft: "left", w: "zoom-in",
    s: "zoom-out", a: "left", d: "right", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down",
    0: "all", Home: "all", n: "next", p: "previous" };
  box.addEventListener("keydown", (event) => {
    const action = keys[event.key];
    if (!action || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    actions[action]();
  });
  for (const button of document.querySelectorAll("[data-do]")) {
    button.addEventListener("click", () => actions[button.dataset.do]());
  }
  for (const button of document.querySelectorAll("[data-at]")) {
    button.addEventListener("click", () => {
      const at = Number(button.dataset.at);
      // The same moment may be a gap of several devices; the nearest in time is meant.
      let nearest = null, apart = Infinity;
      for (const gap of gaps) {
        const away = Math.abs(gap.line.start[gap.i] - at);
        if (away < apart && gap.line.process === button.dataset.process) {
          nearest = gap;
          apart = away;
        }
      }
      goTo(nearest);
      box.focus({ preventScroll: true });
      box.scrollIntoView({ block: "nearest" });
    });
  }

  const under = (event) => {
    const bounds = canvas.getBoundingClientRect();
    const left = event.clientX - bounds.left, top = event.clientY - bounds.top + box.scrollTop;
    if (left < LABEL || event.clientY - bounds.top < RULER) return null;
    const line = lines.find((each) => each.start && top >= each.top && top < each.top + ROW);
    if (!line) return null;
    const i = firstAfter(line, moment(left - 1));
    return i < line.start.length && x(line.start[i]) <= left + 1 ? { line, i } : null;
  };
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { at: event.clientX, from, until, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const by = ((event.clientX - drag.at) / (width - LABEL)) * (drag.until - drag.from);
      drag.moved = drag.moved || Math.abs(event.clientX - drag.at) > 3;
      if (drag.moved) show(drag.from - by, drag.until - by);
      return;
    }
    const found = under(event);
    tip.hidden = !found;
    if (!found) return;
    tip.textContent = describe(found.line, found.i);
    tip.style.left = `${Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.clientY + 16}px`;
  });
  canvas.addEventListener("pointerup", (event) => {
    const found = drag && !drag.moved && under(event);
    if (found) choose(found.line, found.i);
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("dblclick", (event) =>
    zoom(0.5, moment(event.clientX - canvas.getBoundingClientRect().left)));
  box.addEventListener("wheel", (event) => {
    if (event.ctrlKey) {
      event.preventDefault();
      zoom(Math.exp(Math.max(-50, Math.min(50, event.deltaY)) / 100),
        moment(event.clientX - canvas.getBoundingClientRect().left));
    } else if (event.shiftKey || event.deltaX) {
      event.preventDefault();
      move((event.deltaX || event.deltaY) / (width - LABEL));
    }
  }, { passive: false });
  box.addEventListener("scroll", redraw);
  new ResizeObserver(redraw).observe(box);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  draw();
})();
