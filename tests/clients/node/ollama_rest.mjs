// The official client's other calls: node ollama_rest.mjs BASE_URL. Prints what came back.
import { Ollama } from "ollama";

const [host] = process.argv.slice(2);
const client = new Ollama({ host });
const model = "embedder";

async function refused(request) {
  try {
    await request();
    return "nothing";
  } catch (error) {
    return `${error.status_code}: ${error.message}`;
  }
}

const { embeddings } = await client.embed({ model, input: ["a", "b c"] });
const { embedding } = await client.embeddings({ model, prompt: "a" });
const running = (await client.ps()).models.map((each) => each.name);
const { version } = await client.version();
const shown = await client.show({ model });
const pushed = await refused(() => client.push({ model }));
const pushing = await refused(async () => {
  for await (const line of await client.push({ model, stream: true })) void line;
});
const scored = await refused(() => client.systemone({ model, state: "a", questions: {} }));
const stream = await client.chat({ model: "tiny", messages: [], stream: true }).catch(String);
client.abort();

// Every public method of the client: those that are not called anywhere ask ollama.com itself.
const methods = new Set();
for (let at = client; at !== Object.prototype; at = Object.getPrototypeOf(at)) {
  for (const name of Object.getOwnPropertyNames(at)) {
    if (typeof client[name] === "function") methods.add(name);
  }
}
console.log(
  JSON.stringify({
    embeddings,
    embedding,
    running,
    version,
    family: shown.details.family,
    pushed,
    pushing,
    scored,
    stream,
    methods: [...methods],
  }),
);
