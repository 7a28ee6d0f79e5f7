// Maps of spatial indexes, as SVG: a graticule, on the globe a coarse outline of the land (`land.js`), and bounding boxes of
// some of the index's geometries. Longitude and latitude go to the right and upwards, as they are (plate carrée); a plane has its own bounds.
"use strict";

const MAP = { width: 720, height: 360, dot: 3, box: 8, margin: 0.08, lines: 8 };
const SVG = "http://www.w3.org/2000/svg";
const GLOBE = [-180, -90, 180, 90];
const LEAST_DEGREES = 4;  // of longitude, that a map of the globe shows: a single point has surroundings

function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// What a map shows: [west, south, east, north] around the boxes, with a margin, of the map's form.
function windowOf(boxes, planar) {
  let [west, south, east, north] = planar ? boxes[0] : [180, 90, -180, -90];
  for (const [left, low, right, high] of boxes) {
    const across = !planar && left > right;  // the antimeridian: all of it is shown
    west = Math.min(west, across ? -180 : left);
    east = Math.max(east, across ? 180 : right);
    south = Math.min(south, low);
    north = Math.max(north, high);
  }
  const least = planar ? Math.max(Math.abs(west), Math.abs(north), 1) * 1e-6 : LEAST_DEGREES;
  const form = MAP.width / MAP.height;
  let wide = Math.max((east - west) * (1 + 2 * MAP.margin), (north - south) * (1 + 2 * MAP.margin) * form, least);
  if (!planar) wide = Math.min(wide, 360);
  const middle = [west / 2 + east / 2, south / 2 + north / 2];
  const found = [middle[0] - wide / 2, middle[1] - wide / form / 2, middle[0] + wide / 2, middle[1] + wide / form / 2];
  if (planar) return found;
  const right = Math.max(GLOBE[0] - found[0], 0) - Math.max(found[2] - GLOBE[2], 0);
  const up = Math.max(GLOBE[1] - found[1], 0) - Math.max(found[3] - GLOBE[3], 0);
  return [found[0] + right, found[1] + up, found[2] + right, found[3] + up];
}

function stepOf(wide, planar) {
  if (!planar) return [0.5, 1, 2, 5, 10, 15, 30, 60].find((step) => wide / step <= MAP.lines) || 60;
  const ten = 10 ** Math.floor(Math.log10(wide / MAP.lines));
  return [1, 2, 5, 10].map((one) => one * ten).find((step) => wide / step <= MAP.lines) || 10 * ten;
}

const rounded = (value) => Number(value.toPrecision(6));
const degrees = (value, sides) => `${rounded(Math.abs(value))}°${value ? ` ${sides[value < 0 ? 0 : 1]}` : ""}`;

function labelOf(value, axis, planar) {
  if (planar) return String(rounded(value));
  return degrees(axis === "x" && Math.abs(value) > 180 ? value - 360 * Math.sign(value) : value, axis === "x" ? "WE" : "SN");
}

function graticule([west, south, east, north], at, planar) {
  const step = stepOf(east - west, planar);
  const lines = draw("g", { class: "graticule" });
  const labels = draw("g", { class: "labels", "aria-hidden": "true" });
  for (let n = Math.ceil(west / step); n * step <= east && lines.childElementCount < 50; n += 1) {
    const [x] = at(n * step, south);
    lines.append(draw("path", { d: `M${x} 0V${MAP.height}` }));
    if (x > 4 && x < MAP.width - 60) labels.append(draw("text", { x: x + 3, y: MAP.height - 4 }, labelOf(n * step, "x", planar)));
  }
  for (let n = Math.ceil(south / step); n * step <= north && lines.childElementCount < 99; n += 1) {
    const [, y] = at(west, n * step);
    lines.append(draw("path", { d: `M0 ${y}H${MAP.width}` }));
    if (y > 20 && y < MAP.height - 24) labels.append(draw("text", { x: 4, y: y - 3 }, labelOf(n * step, "y", planar)));
  }
  return [lines, labels];
}

function outline([west, , east, north]) {
  const scale = MAP.width / (east - west);
  const moved = `matrix(${scale / 2} 0 0 ${scale / 2} ${-west * scale} ${north * scale})`;
  return draw("path", { class: "land", d: LAND, transform: moved });
}

// How many are drawn as a box (a line or an area that is more than a dot), and the drawings.
function marks(boxes, at, planar) {
  const group = draw("g", { class: "geometries" });
  let wide = 0;
  for (const [west, south, east, north] of boxes) {
    const across = !planar && west > east;
    const middle = across ? (west + east + 360) / 2 : west / 2 + east / 2;
    const [x, y] = at(middle > 180 && !planar ? middle - 360 : middle, south / 2 + north / 2);
    const [left, top] = at(west, north);
    const [right, bottom] = at(east, south);
    if (!across && Math.max(right - left, bottom - top) > MAP.box) {
      group.append(draw("rect", { x: left, y: top, width: Math.max(right - left, 1), height: Math.max(bottom - top, 1) }));
      wide += 1;
    } else {
      group.append(draw("circle", { cx: x, cy: y, r: MAP.dot }));
    }
  }
  return [group, wide];
}

function swatch(mark) {
  return draw("svg", { class: "swatch", viewBox: "0 0 14 14", "aria-hidden": "true" }, draw("g", { class: "geometries" }, mark));
}

// The map of an index: {name, srid, entries, boxes}, each box [west, south, east, north].
function mapOf({ name, srid, entries, boxes }) {
  const planar = srid === 0;
  const title = make("h3", {}, name);
  const [west, south, east, north] = boxes.length ? windowOf(boxes, planar) : GLOBE;
  const scale = MAP.width / (east - west);
  if (!boxes.length || !Number.isFinite(scale) || scale === 0) {
    return make("figure", { class: "map card" }, title,
      make("p", { class: "empty" }, boxes.length ? "What it holds is too far apart to be drawn." : "There is nothing in it yet."));
  }
  const at = (x, y) => [(x - west) * scale, (north - y) * scale];
  const [lines, labels] = graticule([west, south, east, north], at, planar);
  const [dots, wide] = marks(boxes, at, planar);
  const told = `${number(boxes.length)} geometries of ${name}, between ${labelOf(west, "x", planar)} and ${labelOf(east, "x", planar)}, `
    + `${labelOf(south, "y", planar)} and ${labelOf(north, "y", planar)}`;
  const id = `map-${name}`;
  const drawing = draw("svg", { viewBox: `0 0 ${MAP.width} ${MAP.height}`, role: "img", "aria-labelledby": id },
    draw("title", { id }, told), ...(planar ? [] : [outline([west, south, east, north])]), lines, dots, labels);
  const legend = [swatch(draw("circle", { cx: 7, cy: 7, r: 3.5 })), ` a geometry; ${number(boxes.length)} are shown, of ${number(entries)} entries`];
  if (wide) legend.push(swatch(draw("rect", { x: 2, y: 3, width: 10, height: 8 })), " the bounding box of a line or an area");
  const system = planar ? "a plane (srid 0)" : `longitude and latitude (srid ${srid}); land: Natural Earth`;
  return make("figure", { class: "map card" }, title, drawing, make("figcaption", {}, ...legend, make("span", { class: "sub" }, system)));
}
