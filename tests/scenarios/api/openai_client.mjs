// What a program in JavaScript does with OpenAI's client. Prints what it has got, as JSON.

import { createRequire } from "node:module";

const { default: OpenAI } = createRequire(`${process.env.PACKAGES}/`)("openai");
const settings = { baseURL: `${process.env.URL}/v1`, apiKey: process.env.TOKEN, maxRetries: 0 };
const client = new OpenAI(settings);
const model = "talaria";
const hello = [{ role: "user", content: "hello" }];
const got = {};

got.models = (await client.models.list()).data.map((one) => one.id);

const chat = await client.chat.completions.create({ model, messages: hello });
got.chat = chat.choices[0].message.content;

const answered = [...hello, { role: "assistant", content: got.chat }, { role: "user", content: "and again" }];
const chunks = await client.chat.completions.create({
  model,
  messages: answered,
  stream: true,
  stream_options: { include_usage: true },
});
got.streamed = "";
for await (const chunk of chunks) {
  got.streamed += chunk.choices[0]?.delta.content ?? "";
  got.tokens = chunk.usage?.total_tokens;
}

const response = await client.responses.create({ model, input: "hello" });
got.response = response.output_text;

const events = await client.responses.create({ model, input: "more", previous_response_id: response.id, stream: true });
got.events = [];
got.deltas = "";
let streamed;
for await (const event of events) {
  got.events.push(event.type);
  got.deltas += event.type === "response.output_text.delta" ? event.delta : "";
  streamed = event.response ?? streamed;
}
got.sameConversation = streamed.conversation.id === response.conversation.id;

const begun = await client.responses.create({ model, input: "later", background: true });
got.background = "";
for await (const event of await client.responses.retrieve(begun.id, { stream: true })) {
  got.background += event.type === "response.output_text.delta" ? event.delta : "";
}

async function failure(work) {
  try {
    await work();
  } catch (error) {
    return [error.constructor.name, error.status, error.code, error.param];
  }
  return null;
}

const stranger = new OpenAI({ ...settings, apiKey: "tal_wrong" });
got.unauthorized = await failure(() => stranger.models.list());
got.unknown = await failure(() => client.responses.retrieve(`resp_${"0".repeat(32)}`));
got.malformed = await failure(() => client.chat.completions.create({ model, messages: "hello" }));

const slow = { ...settings, apiKey: process.env.SLOW_TOKEN };
let limited = null;
while (limited === null) limited = await failure(() => new OpenAI(slow).models.list());
got.limited = limited;
const patient = new OpenAI({ ...slow, maxRetries: 8 });
got.retried = (await patient.models.list()).data.length;

console.log(JSON.stringify(got));
