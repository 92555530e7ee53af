// Numbers and times as people read them, always with their unit.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const count = (number) => (number === null || number === undefined ? "–" : whole.format(number));

export function compact(number) {
  if (number === null || number === undefined) return "–";
  if (Math.abs(number) < 10_000) return Math.abs(number) < 10 ? short.format(number) : whole.format(number);
  const [size, letter] = number >= 1e9 ? [1e9, "G"] : number >= 1e6 ? [1e6, "M"] : [1e3, "k"];
  return `${short.format(number / size)}${letter}`;
}

export function rate(perSecond) {
  return perSecond === null || perSecond === undefined ? "–" : `${compact(perSecond)}/s`;
}

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (number >= 1024 && place < units.length - 1) {
    number /= 1024;
    place += 1;
  }
  // A number and its unit stay on one line.
  return `${short.format(number)}\u00a0${units[place]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1) return ms === 0 ? "0 s" : `${short.format(ms)} ms`;
  if (ms < 1000) return `${short.format(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

export const timeOfDay = (date = new Date()) => date.toLocaleTimeString("en-GB");

export const plural = (number, one, many = one + "s") => `${count(number)} ${number === 1 ? one : many}`;

/** At most so many characters; the end is left out. */
export function cut(text, most) {
  const characters = [...text];
  return characters.length <= most ? text : characters.slice(0, most - 1).join("") + "…";
}

/** The same, leaving out the middle: ids differ at their ends. */
export function shortened(text, most) {
  const characters = [...text];
  if (characters.length <= most) return text;
  const head = Math.ceil((most - 1) * 0.45);
  return characters.slice(0, head).join("") + "…" + characters.slice(characters.length - (most - 1 - head)).join("");
}
