// Charts with uPlot from /history.json. The same numbers are in a table on the page, for people who do not see them.
"use strict";

const REFRESH_MS = 10000;
const charts = [];
// Steps of the axes of times and durations: seconds, minutes, hours and days that people count in.
const STEPS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200];
const DAYS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].map((days) => days * 86400);

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.plotBox = figure.querySelector(".plot");
    this.values = [...this.plotBox.querySelectorAll("[data-value]")].map((value) => ({ ...value.dataset }));
    this.plot = null;
  }

  show(history) {
    const columns = this.values.map((value) => history.values[value.value] || history.times.map(() => null));
    const data = [history.times, ...columns];
    if (this.plot) {
      this.plot.setData(data);
      return;
    }
    this.plot = new uPlot(this.options(), data, this.plotBox);
    new ResizeObserver(() => this.plot.setSize(this.size())).observe(this.plotBox);
  }

  redraw() {
    if (!this.plot) return;
    const data = this.plot.data;
    this.plot.destroy();
    this.plot = new uPlot(this.options(), data, this.plotBox);
  }

  size() {
    return { width: Math.max(this.plotBox.clientWidth, 200), height: 200 };
  }

  options() {
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
    const format = (value) => (value === null || value === undefined ? "–" : this.text(value));
    return {
      ...this.size(),
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      cursor: { drag: { x: false, y: false } },
      scales: { y: { range: (plot, least, most) => [0, most > 0 ? most * 1.05 : 1] } },
      axes: [
        { ...axis, values: (plot, times) => times.map((time) => this.time(time)), space: 70, incrs: [...STEPS.filter((step) => step >= 60), ...DAYS] },
        { ...axis, values: (plot, values) => values.map(format), size: 64, ...(this.figure.dataset.unit === "s" ? { incrs: [...STEPS, ...DAYS] } : {}) },
      ],
      series: [
        { label: this.figure.dataset.time, value: (plot, time) => (time === null ? "–" : stamp(time)) },
        ...this.values.map((value, index) => ({
          label: value.label,
          stroke: color(`--chart-${index + 1}`),
          width: 2,
          points: { show: false },
          value: (plot, one) => format(one),
        })),
      ],
    };
  }

  text(value) {
    const { unit, days, hours, minutes, seconds } = this.figure.dataset;
    if (unit !== "s") return value.toLocaleString(document.documentElement.lang, { maximumFractionDigits: value < 10 ? 2 : 0 });
    for (const [form, length] of [[days, 86400], [hours, 3600], [minutes, 60]]) {
      if (value >= 2 * length) return form.replace("#", Math.round(value / length));
    }
    return seconds.replace("#", Math.round(value));
  }

  time(seconds) {
    const text = stamp(seconds);
    return this.figure.dataset.range === "14d" ? text.slice(5, 10) : text.slice(11, 16);
  }
}

function stamp(seconds) {
  return `${new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ")}Z`;
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

async function refresh() {
  if (!charts.length || document.hidden) return;
  const response = await fetch(charts[0].figure.dataset.chart, { headers: { Accept: "application/json" } }).catch(() => null);
  if (!response || !response.ok) return;
  const history = await response.json();
  for (const chart of charts) chart.show(history);
}

function start() {
  for (const figure of document.querySelectorAll("[data-chart]")) charts.push(new Chart(figure));
  refresh();
  setInterval(refresh, REFRESH_MS);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.redraw()));
}

start();
