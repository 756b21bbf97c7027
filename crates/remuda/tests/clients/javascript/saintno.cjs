// Renders a workflow with @saintno/comfyui-sdk and keeps the pictures.
//
// Arguments: address of the server, workflow file, folder for the pictures.
// Prints one JSON object per line: {"progress": n, "of": m} and {"file": name}.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const { CallWrapper, ComfyApi, PromptBuilder } = require("@saintno/comfyui-sdk");

async function main() {
  const [address, workflow, folder] = process.argv.slice(2);
  const api = new ComfyApi(address);
  await api.init().waitForReady();
  const prompt = new PromptBuilder(JSON.parse(fs.readFileSync(workflow, "utf8")), [], ["pictures"]);
  prompt.setOutputNode("pictures", "9");
  const result = await new Promise((resolve, reject) => {
    new CallWrapper(api, prompt)
      .onProgress(({ value, max }) => console.log(JSON.stringify({ progress: value, of: max })))
      .onFinished(resolve)
      .onFailed(reject)
      .run();
  });
  for (const image of result.pictures.images) {
    const blob = await api.getImage(image);
    fs.writeFileSync(path.join(folder, image.filename), Buffer.from(await blob.arrayBuffer()));
    console.log(JSON.stringify({ file: image.filename }));
  }
  api.destroy();
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
