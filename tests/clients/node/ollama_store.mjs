// The official client's calls that change models: node ollama_store.mjs BASE_URL MODEL REGISTRY_MODEL.
import { Ollama } from "ollama";

const [host, base, pulled] = process.argv.slice(2);
const client = new Ollama({ host });

async function refused(request) {
  try {
    await request();
    return "nothing";
  } catch (error) {
    return error.message;
  }
}

const made = await client.create({ model: "mine", from: base, system: "Be brief." });
const lines = [];
for await (const line of await client.create({ model: "two", from: "mine", stream: true })) {
  lines.push(line.status);
}
await client.copy({ source: "two", destination: "three" });
const pull = [];
for await (const line of await client.pull({ model: pulled, insecure: true, stream: true })) {
  pull.push(line);
}
const listed = (await client.list()).models.map((model) => model.name).sort();
const { system } = await client.show({ model: "three" });
await client.delete({ model: "two" });
const unknown = await refused(() => client.delete({ model: "two" }));
const notOurs = await refused(() => client.delete({ model: base }));
console.log(JSON.stringify({ made, lines, pull, listed, system, unknown, notOurs }));
