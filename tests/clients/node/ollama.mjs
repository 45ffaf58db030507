// The official client's usual calls: node ollama.mjs BASE_URL. Prints what came back.
import { Ollama } from "ollama";

const client = new Ollama({ host: process.argv[2] });
const options = { temperature: 0, num_predict: 12 };
const asked = { model: "smollm2", messages: [{ role: "user", content: "Say hello." }], options };

const whole = await client.chat(asked);
let streamed = "";
for await (const part of await client.chat({ ...asked, stream: true })) {
  streamed += part.message.content;
}
const generated = await client.generate({ model: "smollm2", prompt: "Say hello.", options });
const listed = (await client.list()).models.map((model) => model.name);
let refused;
try {
  await client.chat({ ...asked, model: "nope" });
} catch (error) {
  refused = { kind: error.name, status: error.status_code, message: error.message };
}
console.log(
  JSON.stringify({
    whole: whole.message.content,
    streamed,
    generated: generated.response,
    listed,
    refused,
  }),
);
