"use strict";
// Zoom, pan and readings for the charts. Without this script every chart is there as it was drawn.
(() => {
  const LEFT = 68, RIGHT = 16, TOP = 14, BOTTOM = 34;
  const known = (value) => value !== null;
  const figure = (value) => {
    if (Math.abs(value) >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(3)));
  };
  const short = (label) => {
    const found = /^\d{4}-(\d\d-\d\d)[ T](\d\d:\d\d)/.exec(label);
    if (!found) return label.length <= 16 ? label : label.slice(0, 15) + "…";
    return found[2] === "00:00" ? label.slice(0, 10) : found[1] + " " + found[2];
  };
  const valueTicks = (low, high, count) => {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
    const ticks = [];
    for (let n = Math.ceil(low / step); n <= Math.floor(high / step); n++) ticks.push(n * step);
    return ticks;
  };
  const stepTicks = (first, last, w, count) => {
    const length = last - first;
    let gap = w;
    if (length >= 2 * w) {
      let power = 1;
      const fits = (factor) => factor * power >= (length / w / count) * 0.8;
      while (![1, 2, 5].some(fits)) power *= 10;
      gap = w * power * [1, 2, 5].find(fits);
    } else {
      for (let size = 1; size <= w; size++) if (w % size === 0 && size * count >= length) { gap = size; break; }
    }
    const ticks = [];
    for (let at = Math.ceil(first / gap) * gap; at <= last; at += gap) ticks.push(at);
    return ticks;
  };
  const add = (parent, name, attributes, text) => {
    const made = document.createElementNS(parent.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };

  class Chart {
    constructor(box, line, subject) {
      this.line = line;
      this.subject = subject;
      this.plot = box.querySelector(".plot");
      this.svg = box.querySelector("svg");
      this.output = box.querySelector("output");
      this.count = line.values.length;
      this.first = 0;
      this.last = this.count - 1;
      this.at = null;
      this.tools(box.querySelector(".tools"));
      this.plot.tabIndex = 0;
      this.plot.setAttribute("role", "group");
      this.plot.setAttribute("aria-roledescription", "chart");
      this.plot.setAttribute("aria-label", line.name + ": arrow keys read the figures one by one, plus and minus zoom");
      this.plot.addEventListener("keydown", (event) => this.key(event));
      this.svg.addEventListener("pointermove", (event) => this.move(event));
      this.svg.addEventListener("pointerdown", (event) => { this.grip = { x: event.clientX, first: this.first }; });
      addEventListener("pointerup", () => { this.grip = null; });
      this.svg.addEventListener("pointerleave", () => { if (!this.grip) this.read(null); });
      this.svg.addEventListener("dblclick", () => this.show(0, this.count - 1));
      this.svg.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
        event.preventDefault();
        this.zoom((event.deltaY || event.deltaX) > 0 ? 1.3 : 1 / 1.3, this.stepAt(event));
      }, { passive: false });
      // Drawn in the next frame: to change a height while it is being observed is an error.
      new ResizeObserver(() => { if (this.plot.clientWidth !== this.width) requestAnimationFrame(() => this.draw()); }).observe(this.plot);
    }

    tools(bar) {
      const middle = () => this.at ?? (this.first + this.last) / 2;
      const actions = [
        ["Zoom in", () => this.zoom(0.5, middle())], ["Zoom out", () => this.zoom(2, middle())],
        ["Earlier", () => this.pan(-0.5)], ["Later", () => this.pan(0.5)], ["Show all", () => this.show(0, this.count - 1)],
      ];
      for (const [name, act] of actions) {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = name;
        button.addEventListener("click", act);
        bar.insertBefore(button, this.output);
      }
      bar.hidden = false;
    }

    key(event) {
      const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -this.subject.w, PageDown: this.subject.w };
      const from = this.at ?? this.first - 1;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in steps) this.read(Math.min(Math.max(from + steps[event.key], 0), this.count - 1));
      else if (event.key === "Home") this.read(0);
      else if (event.key === "End") this.read(this.count - 1);
      else if (event.key === "+" || event.key === "=") this.zoom(0.5, this.at ?? (this.first + this.last) / 2);
      else if (event.key === "-") this.zoom(2, this.at ?? (this.first + this.last) / 2);
      else if (event.key === "0" || event.key === "Escape") this.show(0, this.count - 1);
      else return;
      event.preventDefault();
    }

    stepAt(event) {
      const box = this.svg.getBoundingClientRect();
      const share = (event.clientX - box.left - LEFT) / Math.max(box.width - LEFT - RIGHT, 1);
      return Math.min(Math.max(Math.round(this.first + share * (this.last - this.first)), 0), this.count - 1);
    }

    move(event) {
      if (!this.grip || !event.buttons) {
        this.read(this.stepAt(event));
        return;
      }
      const length = this.last - this.first;
      const by = ((this.grip.x - event.clientX) / Math.max(this.svg.clientWidth - LEFT - RIGHT, 1)) * length;
      this.show(this.grip.first + by, this.grip.first + by + length);
    }

    zoom(factor, around) {
      const length = (this.last - this.first) * factor, share = (around - this.first) / Math.max(this.last - this.first, 1);
      this.show(around - share * length, around + (1 - share) * length);
    }

    pan(share) {
      const length = this.last - this.first;
      this.show(this.first + share * length, this.last + share * length);
    }

    show(first, last) {
      const all = this.count - 1;
      const length = Math.min(Math.max(Math.round(last - first), Math.min(4, all)), all);
      this.first = Math.min(Math.max(Math.round(first), 0), all - length);
      this.last = this.first + length;
      this.draw();
      if (this.at === null) {
        this.output.textContent = length < all ? this.subject.labels[this.first] + " to " + this.subject.labels[this.last] : "";
      }
    }

    read(at) {
      this.at = at;
      if (at !== null && (at < this.first || at > this.last)) {
        const length = this.last - this.first;
        this.show(at - length / 2, at + length / 2);
      }
      this.draw();
      if (at === null) {
        this.output.textContent = "";
        return;
      }
      const { values, low, high } = this.line;
      this.output.textContent = this.subject.labels[at] + ": " + (known(values[at])
        ? figure(values[at]) + (this.subject.unit ? " " + this.subject.unit : "") + ", band " + figure(low[at]) + " to " + figure(high[at])
        : "nothing published");
    }

    range() {
      let low = Infinity, high = -Infinity;
      for (let at = this.first; at <= this.last; at++) {
        if (!known(this.line.values[at])) continue;
        low = Math.min(low, this.line.low[at], this.line.values[at]);
        high = Math.max(high, this.line.high[at], this.line.values[at]);
      }
      if (low > high) [low, high] = [0, 1];
      if (low > 0 && low < (high - low) * 0.6) low = 0;
      const room = (high - low) * 0.04 || Math.max(Math.abs(high), 1) * 0.1;
      return [low === 0 ? 0 : low - room, high + room];
    }

    draw() {
      const width = this.plot.clientWidth;
      if (!width || matchMedia("print").matches) return;
      this.width = width;
      const height = Math.min(320, Math.max(220, width * 0.6)), [low, high] = this.range();
      const x = (at) => LEFT + ((width - LEFT - RIGHT) * (at - this.first)) / Math.max(this.last - this.first, 1);
      const y = (value) => TOP + ((height - TOP - BOTTOM) * (high - value)) / (high - low);
      const svg = this.svg, { values } = this.line;
      svg.setAttribute("viewBox", "0 0 " + width + " " + height);
      svg.replaceChildren();
      for (const value of valueTicks(low, high, 5)) {
        add(svg, "path", { class: "grid", d: "M" + LEFT + " " + y(value) + "H" + (width - RIGHT) });
        add(svg, "text", { x: LEFT - 8, y: y(value), dy: ".35em", "text-anchor": "end" }, figure(value));
      }
      const room = Math.max(2, Math.floor((width - LEFT) / 130));
      for (const at of stepTicks(this.first, this.last, this.subject.w, room)) {
        add(svg, "path", { class: "tick", d: "M" + x(at) + " " + (height - BOTTOM) + "v5" });
        const anchor = x(at) > width - 50 ? "end" : "middle";
        add(svg, "text", { x: Math.min(x(at), width - 2), y: height - 10, "text-anchor": anchor }, short(this.subject.labels[at]));
      }
      add(svg, "path", { class: "axis", d: "M" + LEFT + " " + (height - BOTTOM) + "H" + (width - RIGHT) });
      if (this.subject.unit) add(svg, "text", { class: "unit", x: LEFT + 6, y: TOP + 8 }, this.subject.unit);
      let run = [];
      const finish = () => {
        if (!run.length) return;
        const upper = run.map((at) => x(at).toFixed(1) + "," + y(this.line.high[at]).toFixed(1)).join(" ");
        const lower = run.map((at) => x(at).toFixed(1) + "," + y(this.line.low[at]).toFixed(1)).reverse().join(" ");
        add(svg, "path", { class: "band", d: "M" + upper + " " + lower + "Z" });
        add(svg, "path", { class: "line", d: "M" + run.map((at) => x(at).toFixed(1) + "," + y(values[at]).toFixed(1)).join(" ") });
        run = [];
      };
      for (let at = this.first; at <= this.last; at++) {
        if (known(values[at])) run.push(at);
        else finish();
      }
      finish();
      if (this.at !== null && this.at >= this.first && this.at <= this.last) {
        add(svg, "path", { class: "cursor", d: "M" + x(this.at) + " " + TOP + "V" + (height - BOTTOM) });
        if (known(values[this.at])) add(svg, "circle", { class: "dot", cx: x(this.at), cy: y(values[this.at]), r: 5 });
      }
    }
  }

  const cell = (text) => '"' + String(text).replaceAll('"', '""') + '"';
  const save = (subject) => {
    const rows = ["step,name,value,low,high"];
    for (const line of subject.lines) {
      line.values.forEach((value, at) => {
        if (known(value)) rows.push([cell(subject.labels[at]), cell(line.name), value, line.low[at], line.high[at]].join(","));
      });
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([rows.join("\r\n") + "\r\n"], { type: "text/csv" }));
    link.download = "figures.csv";
    link.click();
    URL.revokeObjectURL(link.href);
  };

  for (const article of document.querySelectorAll("article")) {
    const subject = JSON.parse(article.querySelector("script.data").textContent);
    const boxes = [...article.querySelectorAll(".chart[data-line]")];
    boxes.forEach((box) => new Chart(box, subject.lines[Number(box.dataset.line)], subject));
    const picker = article.querySelector("select.lines");
    if (picker) {
      const pick = () => boxes.forEach((box, at) => { box.closest(".panel").hidden = at !== picker.selectedIndex; });
      picker.addEventListener("change", pick);
      picker.closest(".picker").hidden = false;
      pick();
      // On paper every chart is shown.
      addEventListener("beforeprint", () => boxes.forEach((box) => { box.closest(".panel").hidden = false; }));
      addEventListener("afterprint", pick);
    }
    const button = article.querySelector("button.save");
    if (button) {
      button.hidden = false;
      button.addEventListener("click", () => save(subject));
    }
  }
})();
