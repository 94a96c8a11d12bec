// Moves a plan's chunks over the drawing of the machine. Data: see plan_page.py.
(() => {
  "use strict";
  const player = document.querySelector(".tf-player");
  const data = JSON.parse(player.querySelector("script[type='application/json']").textContent);
  const find = (selector) => player.querySelector(selector);
  const all = (selector) => [...player.querySelectorAll(selector)];
  const make = (name, kind, parent) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    made.setAttribute("class", kind);
    parent.append(made);
    return made;
  };

  const lines = data.links.map((link) => {
    const path = find(`#link-${link.path}`);
    const length = path.getTotalLength();
    const point = (along) => path.getPointAtLength(link.back ? length - along : along);
    return { path, length, point, start: point(0), stop: point(length) };
  });

  // A route: links, and straight ways along the bars between the end of one and the start of the next.
  const routeOf = (links) => {
    const parts = [];
    links.forEach((number, index) => {
      const line = lines[number];
      if (index) {
        const from = lines[links[index - 1]].stop;
        const gap = Math.hypot(line.start.x - from.x, line.start.y - from.y);
        const point = (along) => ({
          x: from.x + ((line.start.x - from.x) * along) / gap,
          y: from.y + ((line.start.y - from.y) * along) / gap,
        });
        if (gap > 1) parts.push({ length: gap, point });
      }
      parts.push(line);
    });
    return { parts, length: parts.reduce((sum, part) => sum + part.length, 0) };
  };

  // Those that travel the other way pass beside: everyone keeps to the right.
  const placeOn = (route, share) => {
    let along = share * route.length;
    let part = route.parts[0];
    for (part of route.parts) {
      if (along <= part.length) break;
      along -= part.length;
    }
    along = Math.min(along, part.length);
    const here = part.point(along);
    const near = part.point(Math.min(along + 1, part.length));
    const before = part.point(Math.max(along - 1, 0));
    const dx = near.x - before.x;
    const dy = near.y - before.y;
    const size = Math.hypot(dx, dy) || 1;
    return { x: here.x - (dy / size) * 3.6, y: here.y + (dx / size) * 3.6 };
  };

  const largest = Math.max(...data.moves.map((move) => move.bytes));
  const moves = data.moves.map((move) => ({
    ...move,
    route: routeOf(move.links),
    starts: move.spans.filter((_, index) => index % 2 === 0),
    stops: move.spans.filter((_, index) => index % 2 === 1),
    radius: 3.6 + 3 * Math.sqrt(move.bytes / largest),
  }));

  const countUpTo = (sorted, time) => {
    let low = 0;
    let high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  };

  const stage = find(".stage svg");
  const lit = make("g", "tf-lit-links", find(".stage .tf-links"));
  const layer = make("g", "tf-chunks", stage);
  const shown = find(".shown");
  const dots = [];
  const slider = find("input");
  const output = find("output");
  const play = find(".play");
  const heads = all("svg .tf-timeline").map((timeline) => {
    const rule = timeline.querySelector(".tf-axis line");
    const line = make("line", "playhead", timeline);
    line.setAttribute("y1", rule.getAttribute("y1"));
    line.setAttribute("y2", rule.getAttribute("y2"));
    return line;
  });
  const loads = all("[data-links]").map((row) => {
    const links = row.dataset.links.split(",").map(Number);
    const room = links.reduce((sum, number) => sum + (data.links[number].bytes_per_s * data.duration) / 1e6, 0);
    return { row, links, room, bar: row.querySelector("b"), words: row.querySelector("span:last-child") };
  });

  let now = 0;
  let only = -1;
  let running = false;
  let asked = 0;
  let last = 0;

  const words = (time) => {
    const [size, unit] = data.duration >= 1e6 ? [1e6, "s"] : data.duration >= 1e3 ? [1e3, "ms"] : [1, "µs"];
    return `${(time / size).toFixed(2)} of ${(data.duration / size).toFixed(2)} ${unit}`;
  };

  const showLoads = (carried) => {
    loads.forEach(({ row, links, room, bar, words: label }) => {
      const share = (100 * links.reduce((sum, number) => sum + carried[number].bytes, 0)) / room;
      bar.style.width = `${Math.min(share, 100).toFixed(1)}%`;
      label.textContent = `${share.toFixed(0)} %`;
      row.classList.toggle("busy", links.some((number) => carried[number].busy));
    });
  };

  const show = (time) => {
    // On a phone the drawing is small, and its dots would be specks.
    const grown = Math.max(1, 0.45 / stage.getScreenCTM().a);
    now = Math.min(Math.max(time, 0), data.duration);
    let used = 0;
    const carried = data.links.map(() => ({ bytes: 0, busy: false }));
    for (const move of moves) {
      const begun = countUpTo(move.starts, now);
      const done = countUpTo(move.stops, now);
      let bytes = done * move.bytes;
      for (let chunk = done; chunk < begun; chunk += 1) {
        const share = (now - move.starts[chunk]) / (move.stops[chunk] - move.starts[chunk] || 1);
        bytes += share * move.bytes;
        if (only >= 0 && only !== move.pack) continue;
        const dot = (dots[used] ||= make("circle", "", layer));
        used += 1;
        const place = placeOn(move.route, share);
        dot.setAttribute("class", `${move.down ? "tf-down" : "tf-up"} tf-tone-${move.pack % data.tones}`);
        dot.setAttribute("cx", place.x.toFixed(1));
        dot.setAttribute("cy", place.y.toFixed(1));
        dot.setAttribute("r", ((move.radius + (move.down ? 2 : 0)) * grown).toFixed(1));
      }
      for (const number of move.links) {
        carried[number].bytes += bytes;
        carried[number].busy ||= begun > done;
      }
    }
    dots.forEach((dot, index) => { dot.style.display = index < used ? "" : "none"; });
    showLoads(carried);
    const x = data.axis[0] + ((data.axis[1] - data.axis[0]) * now) / data.duration;
    heads.forEach((line) => { line.setAttribute("x1", x.toFixed(1)); line.setAttribute("x2", x.toFixed(1)); });
    slider.value = String(Math.round((1000 * now) / data.duration));
    slider.setAttribute("aria-valuetext", words(now));
    output.textContent = words(now);
  };

  const frame = (clock) => {
    if (!running) return;
    const seconds = 14 / Number(find("select").value);
    show(now + (data.duration * (clock - last)) / 1000 / seconds);
    last = clock;
    if (now >= data.duration) setRunning(false);
    else asked = requestAnimationFrame(frame);
  };

  const setRunning = (wanted) => {
    running = wanted;
    play.textContent = running ? "Pause" : "Play";
    cancelAnimationFrame(asked);
    if (!running) return;
    if (now >= data.duration) show(0);
    last = performance.now();
    asked = requestAnimationFrame(frame);
  };

  const choose = (pack) => {
    only = pack === only ? -1 : pack;
    if (only < 0) delete player.dataset.only;
    else player.dataset.only = String(only);
    all("[data-pack]").forEach((item) => {
      const packs = (item.dataset.packs || item.dataset.pack).split(",").map(Number);
      const chosen = packs.includes(only);
      item.classList.toggle("on", chosen);
      if (item.tagName === "BUTTON") item.setAttribute("aria-pressed", String(chosen));
    });
    shown.textContent = only < 0 ? ": all are shown" : `: pack ${only} is shown`;
    lit.replaceChildren();
    const crossed = new Set(moves.filter((move) => move.pack === only).flatMap((move) => move.links));
    for (const path of new Set([...crossed].map((number) => lines[number].path))) {
      make("path", `tf-lit tf-tone-${only % data.tones}`, lit).setAttribute("d", path.getAttribute("d"));
    }
    show(now);
  };

  play.addEventListener("click", () => setRunning(!running));
  slider.addEventListener("input", () => { setRunning(false); show((data.duration * Number(slider.value)) / 1000); });
  all("[data-pack]").forEach((item) => {
    if (item.tagName === "path") return;
    if (item.tagName === "g") { item.setAttribute("tabindex", "0"); item.setAttribute("role", "button"); }
    item.addEventListener("click", () => choose(Number(item.dataset.pack)));
    item.addEventListener("keydown", (event) => {
      if (item.tagName === "g" && event.key === "Enter") choose(Number(item.dataset.pack));
    });
  });
  all("svg .tf-timeline").forEach((timeline) => {
    timeline.addEventListener("click", (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(timeline.getScreenCTM().inverse());
      show((data.duration * (at.x - data.axis[0])) / (data.axis[1] - data.axis[0]));
    });
  });
  const keys = {
    " ": () => setRunning(!running),
    ArrowRight: () => show(now + data.duration / 100),
    ArrowLeft: () => show(now - data.duration / 100),
    Home: () => show(0),
    End: () => show(data.duration),
    ArrowDown: () => choose(only + 1 < data.packs ? only + 1 : only),
    ArrowUp: () => choose(only > 0 ? only - 1 : only),
    Escape: () => choose(-1),
  };
  player.addEventListener("keydown", (event) => {
    const isControl = ["INPUT", "SELECT"].includes(event.target.tagName);
    const isPressed = event.target.tagName === "BUTTON" && event.key === " ";
    if (isControl || isPressed || !(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  // One tree, playing: what a plan does is seen on one pack, and all of them at once only show how busy it is.
  choose(data.first);
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) show(0.3 * data.duration);
  else setRunning(true);
})();
