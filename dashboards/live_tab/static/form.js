// The start form keeps what was typed into it while its page is loaded anew. This runs before
// Locust's own script, which draws the form from `templateArgs`. What is kept belongs to this tab
// of the browser and to this process of Locust.
(() => {
  const STORE = "kvswarm-form", NAMES = { user_count: "num_users" };
  const page = window.templateArgs;
  let typed = null, wasRestored = false;

  /** The name that Locust's options have for a field of its form. */
  function optionOf(field) {
    const name = field.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    return NAMES[name] || name;
  }

  function restore() {
    const { process, values } = JSON.parse(sessionStorage.getItem(STORE) || "{}");
    if (!values || process !== page.process) return;
    wasRestored = true;
    for (const [name, value] of Object.entries(values)) {
      if (page.extra_options[name]) page.extra_options[name].default_value = value;
      else page[name] = value;
    }
  }

  function keep() {
    const form = document.querySelector("form");
    sessionStorage.removeItem(STORE);
    if (!form || isEdit(form) || !(wasRestored || form === typed)) return;
    const fields = [...form.querySelectorAll("input[name], select[name]:not([multiple])")];
    const values = Object.fromEntries(fields.map((field) =>
      [optionOf(field.name), field.type === "checkbox" ? field.checked : field.value]));
    sessionStorage.setItem(STORE, JSON.stringify({ process: page.process, values }));
  }

  /** That of a running swarm shows what the swarm has. */
  function isEdit(form) {
    return form.querySelector('[type="submit"]').textContent === "Update";
  }

  function touch(event) {
    typed = event.target.form || event.target;
    wasRestored = false;
  }

  restore();
  document.addEventListener("input", touch);
  document.addEventListener("submit", touch, true);
  window.addEventListener("pagehide", keep);
})();
