// Renders a workflow with @stable-canvas/comfyui-client and keeps the pictures.
//
// Arguments: address of the server, workflow file, folder for the pictures.
// Prints one JSON object per line: {"progress": n, "of": m} and {"file": name}.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const WebSocket = require("ws");
const { Client } = require("@stable-canvas/comfyui-client");

async function main() {
  const [address, workflow, folder] = process.argv.slice(2);
  const client = new Client({ api_host: new URL(address).host, ssl: false, WebSocket, fetch });
  await client.getSystemStats();
  await client.connect();
  const result = await client.enqueue(JSON.parse(fs.readFileSync(workflow, "utf8")), {
    progress: ({ value, max }) => console.log(JSON.stringify({ progress: value, of: max })),
  });
  // Previews come as bytes, what was saved as addresses.
  for (const image of result.images.filter(({ type }) => type === "url")) {
    const name = new URL(image.data).searchParams.get("filename");
    const answer = await fetch(image.data);
    if (!answer.ok) throw new Error(`${image.data}: ${answer.status}`);
    fs.writeFileSync(path.join(folder, name), Buffer.from(await answer.arrayBuffer()));
    console.log(JSON.stringify({ file: name }));
  }
  client.close();
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
