// Renders a workflow with comfy-ui-client and keeps the pictures.
//
// Arguments: address of the server, workflow file, folder for the pictures.
// Prints one JSON object per line: {"progress": n, "of": m} and {"file": name}.
"use strict";

const { randomUUID } = require("node:crypto");
const fs = require("node:fs");
const { ComfyUIClient } = require("comfy-ui-client");

async function main() {
  const [address, workflow, folder] = process.argv.slice(2);
  const client = new ComfyUIClient(new URL(address).host, randomUUID());
  await client.connect();
  // The client has no call for progress; its socket is at hand.
  client.ws.on("message", (bytes, isBinary) => {
    const message = isBinary ? {} : JSON.parse(bytes.toString());
    if (message.type === "progress") {
      console.log(JSON.stringify({ progress: message.data.value, of: message.data.max }));
    }
  });
  const pictures = await client.getImages(JSON.parse(fs.readFileSync(workflow, "utf8")));
  await client.saveImages(pictures, folder);
  for (const { image } of Object.values(pictures).flat()) {
    console.log(JSON.stringify({ file: image.filename }));
  }
  await client.disconnect();
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
