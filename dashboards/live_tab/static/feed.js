// What the server has told of the swarm, and asking it for more.
const MOST_MARKS = 3000;

export const state = { epoch: 0, step_s: 0, rows: [], nextRow: 0, marks: [], nextMark: 0,
  names: new Map(), last: null, trouble: "" };

function takeIn(answer) {
  const isNew = answer.epoch !== state.epoch;
  if (isNew) {
    state.marks = [];
    state.names.clear();
  }
  if (isNew || answer.step_s !== state.step_s) state.rows = [];
  state.hasNewRows = isNew || answer.rows.length > 0;
  state.hasNewMarks = isNew || answer.marks.length > 0;
  state.epoch = answer.epoch;
  state.step_s = answer.step_s;
  state.rows.push(...answer.rows);
  state.nextRow = answer.first_row + answer.rows.length;
  for (const [number, name] of Object.entries(answer.names)) state.names.set(+number, name);
  state.marks.push(...answer.marks);
  state.nextMark = answer.first_mark + answer.marks.length;
  // Requests reach the page as they end; they are shown as they were served.
  state.marks.sort((one, other) => one[1] - other[1]);
  state.marks.splice(0, state.marks.length - MOST_MARKS);
  forgetNames();
  state.last = answer;
}

function forgetNames() {
  const used = new Set(state.marks.map((mark) => mark[0]));
  for (const number of state.names.keys()) if (!used.has(number)) state.names.delete(number);
}

export async function ask() {
  const query = new URLSearchParams({ epoch: state.epoch, step_s: state.step_s,
    since: state.nextRow, mark: state.nextMark });
  try {
    const response = await fetch(`./kvswarm/live?${query}`);
    const type = response.headers.get("Content-Type") || "";
    if (response.redirected || !type.includes("json")) throw new Error("log in again");
    takeIn(await response.json());
    state.trouble = "";
  } catch (error) {
    state.trouble = `No figures from Locust (${error.message}): trying again.`;
  }
}
