// Every RPC of AgentService from Node, on @grpc/grpc-js. Prints one JSON line a step.
// usage: node client.js ADDRESS PROTO_DIR GOOGLE_DIR

const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, protos, google] = process.argv.slice(2);
const definition = loader.loadSync("innkeeper/v1/agent_service.proto", {
  includeDirs: [protos, google],
  keepCase: true,
  enums: String,
  longs: Number,
  oneofs: true,
  arrays: true,
});
const { AgentService } = grpc.loadPackageDefinition(definition).innkeeper.v1;
const client = new AgentService(address, grpc.credentials.createInsecure());
const agent = { type: "counter", id: "from-node" };
const options = () => ({ deadline: Date.now() + 30000 });
const say = (step, value) => console.log(JSON.stringify({ step, value }));

const unary = (name, request) =>
  new Promise((resolve, reject) =>
    client[name](request, options(), (error, reply) => (error ? reject(error) : resolve(reply))));

function stream(call, each) {
  return new Promise((resolve, reject) => {
    call.on("data", each);
    call.on("error", reject);
    call.on("end", resolve);
  });
}

async function main() {
  const input = { json: { structValue: { fields: { n: { numberValue: 2 } } } } };
  const invoked = await unary("Invoke", { agent, action: "add", input });
  say("invoke", invoked.output.json.numberValue);

  const words = [];
  const chat = client.StreamChat({ agent, message: { text: "one two" } }, options());
  let last;
  await stream(chat, ({ event }) => {
    last = event.event;
    if (event.event === "text_delta") words.push(event.text_delta);
  });
  say("chat", [words, last]);

  const { receipt } = await unary("Followup", { agent, message: { text: "later" } });
  say("followup", receipt.state);
  const asked = { receipt_id: receipt.receipt_id, wait: true };
  say("receipt", (await unary("GetReceipt", asked)).receipt.state);

  const answers = {};
  const session = client.Session(options());
  const ended = stream(session, ({ frames }) => {
    for (const frame of frames) {
      answers[frame.frame] = frame;
      if (frame.frame === "opened")
        session.write({ frames: [
          { call_id: "1", invoke: { action: "get" } },
          { call_id: "2", ping: { nonce: 7 } },
          { close: {} },
        ] });
      if (frame.frame === "closed") session.end();
    }
  });
  session.write({ frames: [{ open: { agent } }] });
  await ended;
  say("session", [answers.result.result.invoke.output.json.numberValue, answers.pong.pong.nonce]);

  const cancelled = await unary("Cancel", { agent, scope: "CANCEL_SCOPE_ALL" });
  say("cancel", cancelled.cancelled.length);

  await unary("Invoke", { agent: { type: "nobody", id: "x" } }).catch((error) =>
    say("refused", [error.code, error.metadata.get("grpc-status-details-bin").length]));
}

main().then(() => client.close(), (error) => {
  console.error(error);
  process.exit(1);
});
