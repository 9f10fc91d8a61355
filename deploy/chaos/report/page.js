"use strict";
// Nothing here is needed to read the report: it zooms, and says in a line what
// the mouse or the keyboard is at.
for (const e of document.querySelectorAll(".js")) e.hidden = false;

function time(ms, fine) {
  const sign = ms < 0 ? "-" : "", a = Math.abs(ms);
  const digits = fine <= 1 ? 3 : fine < 100 ? 2 : fine < 1000 ? 1 : 0;
  const unit = Math.pow(10, 3 - digits), r = Math.round(a / unit) * unit;
  const s = (Math.floor(r / 1000) % 60) + (r % 1000) / 1000;
  return sign + Math.floor(r / 60000) + ":" + s.toFixed(digits).padStart(digits ? 3 + digits : 2, "0");
}

const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 18e5, 36e5, 144e5, 864e5];

function timeline(section) {
  const scroll = section.querySelector(".scroll"), plot = section.querySelector(".plot"), info = section.querySelector(".info");
  const ticks = section.querySelector(".ticks"), where = section.querySelector(".where");
  const from = Number(scroll.dataset.from), to = Number(scroll.dataset.to), all = to - from;
  const names = () => section.querySelector(".axis .name").offsetWidth;
  const room = () => Math.max(scroll.clientWidth - names(), 50);
  const most = () => Math.max(1, Math.min(all / 20, 2e6 / room())); // 20 ms over the width, as far as a browser can
  const cursor = plot.appendChild(document.createElement("div"));
  cursor.className = "cursor";
  cursor.hidden = true;
  let zoom = 1;

  const at = x => from + all * (x / (room() * zoom)); // of pixels right of the names, in the plot
  function draw() {
    const first = Math.max(from, at(scroll.scrollLeft)), last = Math.min(to, at(scroll.scrollLeft + room()));
    const step = steps.find(s => (last - first) / s <= Math.max(2, Math.min(12, room() / 90))) || (last - first) / 4;
    const spans = [];
    for (let t = Math.ceil(first / step - 1) * step; t <= last + step && spans.length < 60; t += step) {
      if (t < from || t > to) continue;
      const e = document.createElement("span");
      e.style.left = (t - from) / all * 100 + "%";
      e.textContent = time(t, step);
      spans.push(e);
    }
    ticks.replaceChildren(...spans);
    where.textContent = time(first, step / 10) + " to " + time(last, step / 10) + (zoom > 1 ? ", " + zoom.toFixed(zoom < 10 ? 1 : 0) + " times" : "");
  }
  function show(factor, centre) { // centre stays where it is seen
    const keep = centre === undefined ? at(scroll.scrollLeft + room() / 2) : centre;
    const before = (keep - from) / all * room() * zoom - scroll.scrollLeft;
    zoom = Math.max(1, Math.min(most(), factor));
    plot.style.setProperty("--zoom", zoom);
    scroll.scrollLeft = (keep - from) / all * room() * zoom - (centre === undefined ? room() / 2 : before);
    draw();
  }
  function range(a, b) {
    zoom = Math.max(1, Math.min(most(), all / Math.max(b - a, 1)));
    plot.style.setProperty("--zoom", zoom);
    scroll.scrollLeft = ((a + b) / 2 - from) / all * room() * zoom - room() / 2;
    draw();
  }
  const text = b => b.dataset.says || (b.dataset.says = b.title);
  function say(b) {
    const lane = b.closest(".row").querySelector(".name").textContent.trim();
    info.textContent = lane === "Steps" || lane === "" ? text(b) : lane + ": " + text(b);
  }
  let now = null;
  function go(b, keyboard) {
    if (now) now.classList.remove("now");
    now = b;
    b.classList.add("now");
    b.tabIndex = -1;
    b.setAttribute("role", "img");
    b.setAttribute("aria-label", text(b));
    if (keyboard) b.focus({preventScroll: true});
    const left = b.offsetLeft, width = b.offsetWidth, top = b.closest(".row").offsetTop;
    if (left + width < scroll.scrollLeft || left > scroll.scrollLeft + room()) scroll.scrollLeft = left - room() / 3;
    const head = section.querySelector(".top").offsetHeight;
    if (top < scroll.scrollTop + head) scroll.scrollTop = top - head - 30;
    else if (top + 24 > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + 60 - scroll.clientHeight;
    say(b);
  }
  // open comes from a link: the span is made wide enough to be seen.
  function open(b) {
    const share = parseFloat(b.style.width) / 100, middle = from + all * (parseFloat(b.style.left) / 100 + share / 2);
    if (share * room() * zoom < 30) range(middle - all * Math.max(share, 1e-9) * 8 - 50, middle + all * share * 8 + 50);
    section.scrollIntoView({block: "start"});
    go(b, true);
  }

  section.querySelector(".tools").addEventListener("click", e => {
    const what = e.target.dataset.do;
    if (what === "in") show(zoom * 2);
    if (what === "out") show(zoom / 2);
    if (what === "all") show(1);
  });
  scroll.addEventListener("scroll", () => requestAnimationFrame(draw), {passive: true});
  addEventListener("resize", () => show(zoom));
  scroll.addEventListener("wheel", e => {
    if (!e.ctrlKey) return;
    e.preventDefault();
    const x = e.clientX - scroll.getBoundingClientRect().left - names() + scroll.scrollLeft;
    show(zoom * Math.pow(1.002, -e.deltaY), at(x));
  }, {passive: false});
  scroll.addEventListener("keydown", e => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const rows = [...plot.querySelectorAll(".row")].filter(r => r.querySelector("b"));
    let done = true;
    const row = now && now.closest(".row"), list = row ? [...row.querySelectorAll("b")].sort((a, b) => parseFloat(a.style.left) - parseFloat(b.style.left)) : [];
    const nearest = (r, left) => [...r.querySelectorAll("b")].reduce((x, y) => Math.abs(parseFloat(y.style.left) - left) < Math.abs(parseFloat(x.style.left) - left) ? y : x);
    switch (e.key) {
    case "+": case "=": show(zoom * 2, now ? from + all * parseFloat(now.style.left) / 100 : undefined); break;
    case "-": show(zoom / 2); break;
    case "0": show(1); break;
    case "Escape": if (now) now.classList.remove("now"); now = null; info.textContent = ""; scroll.focus({preventScroll: true}); break;
    case "ArrowRight": case "ArrowLeft": case "Home": case "End":
      if (!rows.length) break;
      if (!row) { go(rows[0].querySelector("b"), true); break; }
      const i = list.indexOf(now) + (e.key === "ArrowRight" ? 1 : -1);
      go(list[e.key === "Home" ? 0 : e.key === "End" ? list.length - 1 : Math.max(0, Math.min(list.length - 1, i))], true);
      break;
    case "ArrowDown": case "ArrowUp":
      if (!rows.length) break;
      if (!row) { go(rows[0].querySelector("b"), true); break; }
      const j = rows.indexOf(row) + (e.key === "ArrowDown" ? 1 : -1);
      if (rows[j]) go(nearest(rows[j], parseFloat(now.style.left)), true);
      break;
    default: done = false;
    }
    if (done) e.preventDefault();
  });

  let start = null, drag = null;
  const right = e => e.clientX - scroll.getBoundingClientRect().left - names() + scroll.scrollLeft;
  scroll.addEventListener("pointerdown", e => {
    if (e.button !== 0 || e.pointerType !== "mouse" || !e.target.closest(".track")) return;
    start = right(e);
  });
  scroll.addEventListener("pointermove", e => {
    const x = right(e);
    cursor.hidden = !e.target.closest || !e.target.closest(".plot") || x < scroll.scrollLeft;
    cursor.style.left = x + names() + "px";
    const b = e.target.closest && e.target.closest("b");
    if (b) say(b);
    else if (!now && !cursor.hidden) info.textContent = "at " + time(at(x), all / zoom / 1000);
    if (start === null) return;
    if (!(e.buttons & 1)) { start = null; if (drag) drag.remove(); drag = null; return; }
    if (!drag && Math.abs(x - start) > 5) {
      drag = plot.appendChild(document.createElement("div"));
      drag.className = "drag";
      scroll.setPointerCapture(e.pointerId);
    }
    if (drag) {
      drag.style.left = Math.min(x, start) + names() + "px";
      drag.style.width = Math.abs(x - start) + "px";
      e.preventDefault();
    }
  });
  scroll.addEventListener("pointerup", e => {
    if (drag) {
      drag.remove();
      const a = at(Math.min(start, right(e))), b = at(Math.max(start, right(e)));
      range(Math.max(a, from), Math.min(b, to));
    } else if (start !== null) {
      const b = e.target.closest("b");
      if (b) go(b, false);
    }
    start = drag = null;
  });
  scroll.addEventListener("pointerleave", () => { cursor.hidden = true; if (now) say(now); });
  scroll.addEventListener("dragstart", e => e.preventDefault());
  section.open = open;
  draw();
}
for (const s of document.querySelectorAll(".timeline")) timeline(s);

function follow() {
  const e = location.hash && document.getElementById(location.hash.slice(1));
  const section = e && e.closest(".timeline");
  if (!section) return;
  if (e.matches("b")) section.open(e);
  else if (e.matches(".row")) {
    section.scrollIntoView({block: "start"});
    const scroll = section.querySelector(".scroll");
    scroll.scrollTop = e.offsetTop - scroll.clientHeight / 3;
    scroll.focus({preventScroll: true});
  }
}
addEventListener("hashchange", follow);
// A second click on the same link changes no hash.
document.addEventListener("click", e => {
  const a = e.target.closest && e.target.closest("a[href^='#']");
  if (a && a.getAttribute("href") === location.hash) { e.preventDefault(); follow(); }
});
follow();
