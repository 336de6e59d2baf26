"use strict";
// What every page has: buttons that copy, and the scheme of colours.
const $ = id => document.getElementById(id);

async function copy(button) {
  const text = button.parentNode.querySelector("pre").textContent;
  try { await navigator.clipboard.writeText(text); }
  catch {
    const area = document.createElement("textarea"); area.value = text; document.body.append(area); area.select();
    document.execCommand("copy"); area.remove();
  }
  button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1200);
}
document.addEventListener("click", event => { if (event.target.dataset && "copy" in event.target.dataset) copy(event.target); });

const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
const label = () => { $("theme").textContent = isDark() ? "Light" : "Dark"; };
$("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; label(); });
dark.addEventListener("change", label);
label();
