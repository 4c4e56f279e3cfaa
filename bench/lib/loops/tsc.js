// Checks a file with TypeScript's compiler, in one process, as often as each line of stdin says. Arguments: tsc's library, the file.
const ts = require(process.argv[2]);
const options = { noEmit: true, strict: true, skipLibCheck: true, target: ts.ScriptTarget.ES2022, lib: ["lib.es2022.d.ts"] };
const host = ts.createCompilerHost(options);
const { getSourceFile } = host;
const libraries = new Map(); // parsed once
host.getSourceFile = (name, ...more) => {
  if (name === process.argv[3]) return getSourceFile(name, ...more);
  if (!libraries.has(name)) libraries.set(name, getSourceFile(name, ...more));
  return libraries.get(name);
};
require("readline").createInterface({ input: process.stdin }).on("line", (times) => {
  for (let n = 0; n < times; n++) {
    const errors = ts.getPreEmitDiagnostics(ts.createProgram([process.argv[3]], options, host));
    if (errors.length) throw new Error(ts.flattenDiagnosticMessageText(errors[0].messageText, "\n"));
  }
  console.log("done");
});
