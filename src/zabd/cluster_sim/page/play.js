"use strict";
// Moves: each is a new address, from which the whole run is made anew (see play.py).
(() => {
const game = JSON.parse(document.getElementById("game").textContent);
const { record, chosen } = window.zabdPicture;
const $ = (id) => document.getElementById(id);
const words = { kill: "kill", power_off: "power off", start: "start", pause: "pause", resume: "resume", cut_off: "cut off", heal: "heal all" };
const nowUs = () => (chosen() < 0 ? game.until_ms * 1000 : record.at[chosen()]);

function go(moves, untilMs) {
  const asked = new URLSearchParams({ seed: game.seed, members: game.members, until: Math.min(Math.ceil(untilMs), game.until_ms_max), moves: moves.join(",") });
  location.search = asked.toString();
}
const more = () => Number($("play-more").value);
function make(verb) { // what had been done after this instant is forgotten: a fork
  const now = nowUs(), kept = game.moves.filter((m) => Number(m.split(":")[0]) <= now);
  go([...kept, `${now}:${verb}:${$("play-member").value}`], now / 1000 + more());
}
for (let m = 1; m <= game.members; m++) $("play-member").append(new Option(`m${m}`, m));
for (const verb of game.verbs) {
  const button = document.createElement("button"); button.textContent = words[verb]; button.dataset.verb = verb;
  button.addEventListener("click", () => make(verb)); $("play-verbs").append(button, " ");
}
$("play-on").addEventListener("click", () => go(game.moves, game.until_ms + more()));
$("play-on").title = "Change nothing, and see what happens next";
const list = $("play-moves").querySelector(".choices");
if (!game.moves.length) list.textContent = "None yet. Choose an event, a member, and what happens to it then.";
game.moves.forEach((move, n) => {
  const [at, verb, member] = move.split(":"), p = document.createElement("p"), undo = document.createElement("button");
  undo.textContent = "take back"; undo.addEventListener("click", () => go(game.moves.filter((_, k) => k !== n), game.until_ms));
  p.append(`${(at / 1000).toFixed(3)} ms: ${words[verb]}${verb === "heal" ? "" : ` m${member}`} `, undo); list.append(p);
});
$("play-python").querySelector("pre").textContent = game.python;
const tell = () => { $("play-now").textContent = `at ${(nowUs() / 1000).toFixed(3)} ms:`; };
new MutationObserver(tell).observe($("said"), { childList: true, characterData: true, subtree: true }); tell();
// A member's lane chosen, its member is meant.
new MutationObserver(() => { const m = chosen() >= 0 && record.lanes[record.lane[chosen()]].match(/^m(\d+)$/); if (m) $("play-member").value = m[1]; }).observe($("said"), { childList: true });
if (game.moves.length) { // come back to where the last move was made
  const at = Number(game.moves[game.moves.length - 1].split(":")[0]), v = window.zabdPicture.visible();
  const i = v.find((e) => record.at[e] >= at); if (i !== undefined) window.zabdPicture.choose(i);
} else if (window.zabdPicture.visible().length) window.zabdPicture.choose(window.zabdPicture.visible().at(-1));
})();
