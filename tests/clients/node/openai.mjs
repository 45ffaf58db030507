// The official client's usual calls, one a run: node openai.mjs BASE_URL CASE. Prints what came back.
import OpenAI from "openai";

const [base, name] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "none", maxRetries: 0 });
const model = "smollm2";
const messages = [{ role: "user", content: "Say hello." }];
const asked = { model, messages, temperature: 0, max_tokens: 12 };
const answer = { type: "object", properties: { n: { type: "integer" } }, required: ["n"] };
const response_format = { type: "json_schema", json_schema: { name: "a", schema: answer } };

async function refused(request) {
  try {
    await request();
    return "nothing";
  } catch (error) {
    const { constructor, status, code, message } = error;
    return { kind: constructor.name, status, code, message };
  }
}

const cases = {
  async chat() {
    const reply = await client.chat.completions.create(asked);
    const chunks = [];
    const stream_options = { include_usage: true };
    const stream = await client.chat.completions.create({ ...asked, stream: true, stream_options });
    for await (const chunk of stream) chunks.push(chunk);
    return {
      whole: reply.choices[0].message.content,
      streamed: chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""),
      usages: [reply.usage.total_tokens, chunks.at(-1).usage.total_tokens],
    };
  },
  async tools() {
    const { chat, tools } = JSON.parse(process.env.CHAT);
    const request = { ...asked, messages: chat, tools, tool_choice: "required", max_tokens: 60 };
    const whole = await client.chat.completions.create(request);
    const runner = client.chat.completions.stream(request);
    const streamed = await runner.finalChatCompletion();
    const { message } = whole.choices[0];
    const said = { role: "tool", tool_call_id: message.tool_calls[0].id, content: "Rain." };
    const after = { ...asked, messages: [...chat, message, said], tools };
    if (!(await client.chat.completions.create(after)).choices.length) throw new Error("no reply");
    return [whole, streamed].map(({ choices: [{ finish_reason, message }] }) => ({
      finish_reason,
      name: message.tool_calls[0].function.name,
      arguments: JSON.parse(message.tool_calls[0].function.arguments),
    }));
  },
  async structured() {
    const request = { ...asked, response_format, max_tokens: 60 };
    const whole = await client.chat.completions.parse(request);
    const streamed = await client.chat.completions.stream(request).finalChatCompletion();
    const [one, other] = [whole, streamed].map((reply) => reply.choices[0].message.content);
    return Number.isInteger(JSON.parse(one).n) && one === other;
  },
  async completions() {
    const prompt = ["Once upon a", "One, two,"];
    const reply = await client.completions.create({ model, prompt, temperature: 0, max_tokens: 3 });
    return reply.choices.map((choice) => [choice.index, choice.text.length > 0]);
  },
  async responses() {
    const request = { model, input: "Say hello.", temperature: 0, max_output_tokens: 12 };
    const { output_text, status } = await client.responses.create(request);
    const runner = client.responses.stream(request);
    const events = [];
    for await (const event of runner) events.push(event.type);
    const final = await runner.finalResponse();
    return { output_text, status, streamed: final.output_text, last: events.at(-1) };
  },
  async models() {
    const listed = [];
    for await (const each of client.models.list()) listed.push(each.id);
    return { listed, one: (await client.models.retrieve(model)).id };
  },
  async errors() {
    const long = [{ role: "user", content: "word ".repeat(3000) }];
    const create = (more) => () => client.chat.completions.create({ ...asked, ...more });
    return {
      unknown: await refused(create({ model: "nope" })),
      long: await refused(create({ messages: long })),
      "long stream": await refused(create({ messages: long, stream: true })),
      embeddings: await refused(() => client.embeddings.create({ model, input: "a" })),
    };
  },
  async lost() {
    const stream = await client.chat.completions.create({ ...asked, stream: true });
    const read = async () => {
      for await (const chunk of stream) if (!chunk.choices) break;
    };
    return refused(read);
  },
  async locked() {
    return refused(() => client.chat.completions.create(asked));
  },
  async leaving() {
    const long = { ...asked, max_tokens: 900, ignore_eos: true };
    const stream = await client.chat.completions.create({ ...long, stream: true });
    for await (const chunk of stream) if (chunk.choices[0].delta.content) break;
    const short = { timeout: 300 };
    const slow = () => client.chat.completions.create(long, short);
    return { aborted: stream.controller.signal.aborted, timeout: await refused(slow) };
  },
};

console.log(JSON.stringify(await cases[name]()));
