// Works with ComfyUI's own web page as a user would: loads a workflow, runs it, watches it, sees the picture,
// cancels a second run, reloads and finds the history.
//
// Arguments: address of the server, workflow file, folder for the screenshots.
// Prints one JSON object per line: {"progress": percent, "of": 100}, {"picture": name}, {"file": name}.
"use strict";

const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const { chromium } = require("playwright-core");

// Longer than a ComfyUI that does not answer is waited for.
const PATIENCE = 120_000;
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

function tell(what) {
  console.log(JSON.stringify(what));
}

// The page as a user sees it, by the words on it.
class Page {
  constructor(page, folder) {
    this.page = page;
    this.folder = folder;
    this.run = page.getByRole("button", { name: "Run", exact: true });
    this.cancel = page.getByRole("button", { name: "Cancel current run" });
    this.jobs = page.getByRole("region", { name: "Jobs" });
    this.pictures = this.jobs.getByRole("img", { name: /\.png$/ });
    this.previews = 0;
    page.on("websocket", (socket) => {
      socket.on("framereceived", ({ payload }) => (this.previews += typeof payload === "string" ? 0 : 1));
    });
  }

  // Opens a workflow as from a file, and shows all of it.
  async open(name, graph) {
    const buffer = Buffer.from(JSON.stringify(graph));
    const file = { name: `${name}.json`, mimeType: "application/json", buffer };
    await this.page.locator("#comfy-file-input").setInputFiles(file);
    await this.page.getByRole("tab", { name, exact: true }).waitFor();
    await this.page.getByRole("button", { name: /^Fit View/ }).click();
  }

  active(count) {
    return this.page.getByRole("button", { name: `${count} active` });
  }

  // Waits until the running job says how far it is, and says so itself.
  async progress() {
    const label = this.jobs.getByTitle(/^KSampler : [1-9]\d*%$/).first();
    const percent = (await label.getAttribute("title")).replace(/\D+/g, "");
    tell({ progress: Number(percent), of: 100 });
  }

  // A picture of the list that was really loaded, not only named.
  async loaded(picture) {
    await picture.waitFor();
    await picture.evaluate((image) => image.decode());
    return picture.getAttribute("alt");
  }

  async screenshot(name) {
    await this.page.screenshot({ path: path.join(this.folder, name) });
    tell({ file: name });
  }
}

async function work(browser, address, workflow, folder) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 } });
  context.setDefaultTimeout(PATIENCE);
  // The page would ask its makers for news.
  const elsewhere = (url) => url.protocol.startsWith("http") && url.host !== new URL(address).host;
  await context.route(elsewhere, (route) => route.abort());
  const shown = new Page(await context.newPage(), folder);
  const page = shown.page;
  const broken = [];
  page.on("pageerror", (error) => broken.push(String(error)));
  page.on("response", (answer) => answer.status() >= 500 && broken.push(`${answer.status()} ${answer.url()}`));

  // A server that has never been used greets with its templates.
  await page.goto(address);
  const greeting = page.getByRole("dialog");
  await greeting.waitFor();
  await greeting.getByRole("button", { name: "Close" }).first().click();
  await greeting.waitFor({ state: "hidden" });

  const graph = JSON.parse(fs.readFileSync(workflow, "utf8"));
  await shown.open("short", graph);
  await shown.active(0).click();

  // The page asks for the picture when the node that saves it is to show it.
  const fetched = page.waitForResponse((answer) => /\/view\?.*&rand=/.test(answer.url()));
  await shown.run.click();
  await shown.active(1).waitFor();
  await shown.progress();
  await shown.active(0).waitFor();
  const answer = await fetched;
  assert.equal(answer.status(), 200, `the picture at ${answer.url()}`);
  tell({ picture: await shown.loaded(shown.pictures.first()) });
  assert.ok(shown.previews > 0, "previews came while it ran");
  // The list covers the node that shows the picture.
  await shown.active(0).click();
  await shown.jobs.waitFor({ state: "hidden" });
  await shown.screenshot("picture.png");
  await shown.active(0).click();

  // So long that it cannot end before it is cancelled.
  graph["3"].inputs.steps = 2000;
  await shown.open("long", graph);
  await shown.run.click();
  await shown.active(1).waitFor();
  await shown.progress();
  await shown.cancel.click();
  await shown.active(0).waitFor();
  assert.equal(await shown.pictures.count(), 1, "a cancelled run has no picture");

  await page.reload();
  await shown.run.waitFor();
  tell({ picture: await shown.loaded(shown.pictures.first()) });
  assert.equal(await shown.pictures.count(), 1, "the history is what it was before the reload");
  // What the user chose is kept by the server: it does not greet twice.
  assert.equal(await greeting.count(), 0, "the page knows its user again");
  await shown.screenshot("history.png");
  assert.deepEqual(broken, [], "nothing broke on the way");
}

async function main() {
  const [address, workflow, folder] = process.argv.slice(2);
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: FLAGS });
  try {
    await work(browser, address, workflow, folder);
  } finally {
    await browser.close();
  }
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
