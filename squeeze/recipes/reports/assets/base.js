const $ = id => document.getElementById(id);
const grouped = number => number.toLocaleString("en-US");
const escaped = text => String(text).replace(/[&<>"]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})[c]);
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

async function inflate(id) {  // what page.packed made of an element's data
  const text = atob($(id).textContent), packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

let dark = matchMedia("(prefers-color-scheme: dark)").matches;
function showTheme() {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = dark ? "Light" : "Dark";
}
