"use strict";
// Steps through the frames of an episode: a contact sheet is moved behind a window of one frame's size.
for (const player of document.querySelectorAll(".player")) {
  const data = JSON.parse(player.querySelector("script").textContent);
  const { columns, width, height, scale } = Object.fromEntries(
    Object.entries(player.dataset).map(([name, value]) => [name, Number(value)]));
  const screen = player.querySelector(".screen"), image = screen.querySelector("img");
  const slider = player.querySelector("input"), play = player.querySelector('[data-move="play"]');
  const fields = Object.fromEntries(
    [...player.querySelectorAll("[data-field]")].map((field) => [field.dataset.field, field]));
  const last = data.step.length - 1;
  let at = 0, timer = null;

  function show(place) {
    at = Math.max(0, Math.min(last, place));
    const x = (at % columns) * width, y = Math.floor(at / columns) * height;
    image.style.transform = `scale(${scale}) translate(${-x}px, ${-y}px)`;
    const step = data.step[at], over = step > data.last, say = (count) => count.toLocaleString("en");
    fields.step.textContent = over ? "none" : `${say(step)} of 0 to ${say(data.last)}`;
    fields.index.textContent = over ? "none" : say(data.first + step);
    for (const name of ["action", "reward", "total", "mark"]) fields[name].textContent = data[name][at];
    slider.value = at;
    const said = over ? "no step" : `step ${step}, action ${data.action[at]}, reward ${data.reward[at]}`;
    slider.setAttribute("aria-valuetext", data.mark[at] ? `${said}, ${data.mark[at]}` : said);
    image.alt = `${said}${data.mark[at] ? `, ${data.mark[at]}` : ""}`;
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
    play.setAttribute("aria-label", "Play");
  }

  function start() {
    if (at === last) show(0);
    play.textContent = "Stop";
    play.setAttribute("aria-label", "Stop");
    timer = setInterval(() => (at === last ? stop() : show(at + 1)), 1000 / 15);
  }

  const moves = {
    first: () => show(0), back: () => show(at - 1), on: () => show(at + 1), last: () => show(last),
    play: () => (timer === null ? start() : stop()),
  };
  for (const button of player.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      if (button !== play) stop();
      moves[button.dataset.move]();
    });
  }
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  const keys = { ArrowLeft: "back", ArrowRight: "on", Home: "first", End: "last" };
  player.addEventListener("keydown", (event) => {
    const move = keys[event.key];
    // With Alt and the like they are the browser's.
    if (!move || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    stop();
    moves[move]();
  });

  player.classList.add("playing");
  screen.style.width = `${width * scale}px`;
  screen.style.height = `${height * scale}px`;
  player.querySelector(".controls").hidden = false;
  show(0);
}
